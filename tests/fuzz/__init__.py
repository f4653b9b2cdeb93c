"""Fuzzing of whatever reads input of others: `python -m tests.fuzz --target readers --minutes 10 --seed 7`."""
