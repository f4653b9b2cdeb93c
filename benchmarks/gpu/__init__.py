"""Measurements on a CUDA card: `make bench-gpu`, or `python -m benchmarks.gpu [NAME…]` on a bare machine."""
