"""Whose files an adapter can be in, and what writes them. Imports no numpy: the code of a layout is loaded late."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from trainyard.loading import load


class Layout(StrEnum):
    """Whose files an adapter is in."""

    PEFT = "peft"
    MLX = "mlx"
    GGUF = "gguf"


PEFT_WRITERS = {
    Layout.MLX: "trainyard.serve.conversion.mlx:peft_to_mlx",
    Layout.GGUF: "trainyard.serve.conversion.gguf:peft_to_gguf",
}
"""Layout -> the function that writes a PEFT adapter in it: (source, target), for GGUF also the folder of the base."""


def peft_writer(layout: Layout) -> Callable[..., None]:
    writer: Callable[..., None] = load(PEFT_WRITERS[layout])
    return writer
