"""The caps on what a spec may ask of us, in one place. Over a cap is an error with its number, never a truncation."""

from __future__ import annotations

MAX_SPEC_BYTES = 2 * 1024 * 1024
"""Size of a chain or job file. 10,000 nodes with their ids and a few settings are about 1.2 MB."""
MAX_DEPTH = 64
"""Levels of nesting in a file; the deepest field of a chain is at level 8."""
MAX_VALUES = 200_000
"""Keys, items and scalars in a file; 10,000 nodes with fifteen values each fit."""
MAX_KEYS = 1_000
"""Keys of one mapping; the largest that means something is the list of properties in a JSON schema."""
MAX_REASONS = 100
"""Reasons that are listed one by one; the others are counted."""
MAX_INTEGER_DIGITS = 100
"""Longer numbers are a mistake or an attack: converting digits to an integer is quadratic."""
