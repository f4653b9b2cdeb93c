"""`python -m docs.generator`: write the pages of docs/reference from the tables in the code.

A page is made of what the product itself reads: the models of `spec/`, the rows of `spec/compat`, the operations of
`operations/table.py`, the enums of `spec/axes`, and the codes in the sources. `tests/architecture/test_reference.py`
fails if a page is out of date.
"""

from __future__ import annotations

from docs.generator.pages import write

if __name__ == "__main__":
    print(f"wrote {len(write())} files: docs/reference, what agents read, the types of the SDK")
