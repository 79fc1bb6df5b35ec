"""Files damaged on purpose: seeded changes, the formats they are made to, and who watches."""
