"""`python -m trainyard.train.quantization`: the table of docs/quantization.md, measured on this machine."""

from trainyard.train.quantization.roundtrip import build_table

print("\n".join(build_table()))
