"""Methods: which weights are trainable."""

from __future__ import annotations

from enum import StrEnum


class Method(StrEnum):
    """Which weights move."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"
    DORA = "dora"
    LORA_PLUS = "lora_plus"
    OFT = "oft"
    FREEZE = "freeze"


ADAPTER_METHODS = frozenset({Method.LORA, Method.QLORA, Method.DORA, Method.LORA_PLUS, Method.OFT})
"""Methods that leave an adapter beside an unchanged base; the others write a whole model."""
