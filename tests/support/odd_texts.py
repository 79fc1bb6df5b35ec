"""Odd texts: emoji, marks, scripts without blanks, control characters, gaps, endless words."""

from __future__ import annotations

from hypothesis import strategies as st

PARTS = (
    "the", " movie", "Berlin, ", "don't", "'", "'r", "'re", "'LL", "we've", " '", "12", "1234567",
    "3.50", "!", "...", " ?!", "!\n", "-", "_", " ", "  ", "   ", "\n", "\r\n", "\n\n", "\t",
    "\u3000", "\u00a0", "\u2003", "\x85", "\x1c", " \n ", "\n  ", "é", "e\u0301", "\u0301",
    "\u0327\u0301", "Ångström", "A\u030a", "中", "中文没有空格", "漢字かな", "한국어",
    "\u1112\u1161\u11ab", "\u1161", "\u11ab", "سلام", "\ufdfa", "नमस्ते", "\u09c7\u09be", "ก",
    "Привет", "👩\u200d👩\u200d👧", "🙂", "👍🏽", "\u2764\ufe0f", "\u200b", "\u200d", "\ufeff",
    "\x00", "\x7f", "\u0600", "\ue000", "\U0010fffe", "ﬁ", "½", "㍿", "\uff21", "\u017f", "İ", "ß",
    "``", "''", "<mask>", "[SEP]", "</s>", "\u2581", "Ġ", "##x",
)  # fmt: skip

odd_texts = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from(PARTS), max_size=14).map("".join),
    st.lists(st.sampled_from(PARTS), max_size=10).map(" ".join),
)
long_texts = st.lists(
    st.tuples(st.sampled_from(PARTS), st.one_of(st.integers(1, 4), st.integers(1, 150))),
    min_size=1,
    max_size=6,
).map(lambda parts: "".join(part * count for part, count in parts))
