"""Readings of the GPUs of this machine: memory, load, temperature, power, clocks and processes."""
