"""Rows of tokens with explicit targets, from the body of a call (imports torch).

lengths (B,)    tokens of each row                  widths (B,)   targets of a position; 0: one, in a list
input_ids (N,)  tokens of all rows                  targets (M,)  of all rows, position by position
input/NAME (M,) inputs of the loss                  has/NAME (B,) rows that have the input
"""

from __future__ import annotations

import torch

from trainyard.backends.native.sessions.batches import MOST_ROWS, invalid, read_tensors
from trainyard.errors import LimitExceeded
from trainyard.train.contracts import Batch
from trainyard.train.session.token_steps import TokenRow

INPUT, HAS = "input/", "has/"


def read_token_rows(body: bytes, vocabulary: int, context: int | None) -> list[TokenRow]:
    """Return the rows. Raises `InvalidInput` (`E-STEP`) and `LimitExceeded` (`E-LIMIT`) for what no model can take."""
    tensors = read_tensors(body)
    missing = {"lengths", "widths", "input_ids", "targets"} - tensors.keys()
    if missing:
        raise invalid(f"has no {sorted(missing)[0]}")
    lengths, widths = tensors["lengths"].tolist(), tensors["widths"].tolist()
    sizes = [length * max(width, 1) for length, width in zip(lengths, widths, strict=True)]
    if not lengths or len(lengths) > MOST_ROWS or min(lengths) < 1 or min(widths) < 0:
        raise invalid(f"has {len(lengths)} rows, or a row without tokens; it takes 1 to {MOST_ROWS:,}")
    if context is not None and max(lengths) > context:
        raise LimitExceeded(
            f"A row has {max(lengths):,} tokens, and the model sees {context:,}.", do="Cut it.", code="E-LIMIT"
        )
    require_length(tensors, "input_ids", sum(lengths))
    require_length(tensors, "targets", sum(sizes))
    for name in ("input_ids", "targets"):
        least, most = (int(bound) for bound in tensors[name].aminmax())
        if not 0 <= least <= most < vocabulary:
            raise invalid(f"has a token in {name} outside of 0 … {vocabulary - 1}")
    ids, targets = tensors["input_ids"].long().split(lengths), tensors["targets"].long().split(sizes)
    inputs = read_inputs(tensors, sizes)
    shapes = [(length, width) if width else (length,) for length, width in zip(lengths, widths, strict=True)]
    return [
        TokenRow(
            ids[index], targets[index].view(shape), {name: value.view(shape) for name, value in inputs[index].items()}
        )
        for index, shape in enumerate(shapes)
    ]


def read_inputs(tensors: Batch, sizes: list[int]) -> list[dict[str, torch.Tensor]]:
    """Return the inputs of each row by name."""
    rows: list[dict[str, torch.Tensor]] = [{} for _ in sizes]
    for full, value in tensors.items():
        if not full.startswith(INPUT):
            continue
        name = full.removeprefix(INPUT)
        require_length(tensors, full, sum(sizes))
        present = tensors[HAS + name].tolist() if HAS + name in tensors else [1] * len(sizes)
        for index, part in enumerate(value.float().split(sizes)):
            if present[index]:
                rows[index][name] = part
    return rows


def require_length(tensors: Batch, name: str, length: int) -> None:
    if tensors[name].dim() != 1 or len(tensors[name]) != length:
        raise invalid(f"has {name} of the shape {tuple(tensors[name].shape)}, and needs ({length},)")
