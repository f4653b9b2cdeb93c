"""Compile the contract of the ledger's anchors: `python -m tools.contract` writes LedgerAnchor.json next to its source.

It needs vyper (extra dev). The same source and version give the same bytes, which a test compares.
"""

from __future__ import annotations

import json
from hashlib import sha256
from importlib.metadata import version

from trainyard.stores.ledger.anchors.evm import COMPILED

SOURCE = COMPILED.with_suffix(".vy")


def compile_contract() -> str:
    """Return the compiled contract as JSON."""
    import vyper  # an extra; a second to import

    text = SOURCE.read_text(encoding="utf-8")
    compiled = vyper.compile_code(text, output_formats=["abi", "bytecode"])
    facts = {"vyper": version("vyper"), "source_sha256": sha256(text.encode()).hexdigest()}
    return json.dumps({**facts, "abi": compiled["abi"], "bytecode": compiled["bytecode"]}, indent=1) + "\n"


if __name__ == "__main__":
    COMPILED.write_text(compile_contract(), encoding="utf-8")
