"""Devices, precision, processes, threads and interrupts."""
