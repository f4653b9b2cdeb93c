"""Quantization formats of a frozen base (`formats.py`), and how far each is from full precision (`roundtrip.py`)."""
