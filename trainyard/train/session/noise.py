"""NEFTune (Jain et al. 2023, arXiv 2310.05914): uniform noise on the embeddings of each training pass.

noise ~ U(-1, 1) x alpha / sqrt(L D), with L the tokens of the row and D the width of its embeddings. L counts no
padding, as in the authors' code, so a row has the same noise however it is batched; transformers and TRL take the
padded length. The noise is drawn by torch's generator, which a checkpoint contains: a resumed run draws the same.

Shapes: B rows, T positions, D width; packed rows lie end to end in one.
"""

from __future__ import annotations

from typing import Any

import torch

from trainyard.json_types import JsonObject


class EmbeddingNoise:
    """Two hooks on a model: one notes which positions are a row, the other adds the noise. Evaluation has none."""

    def __init__(self, model: Any, alpha: float) -> None:
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        self.alpha, self.model_inputs = alpha, JsonObject()
        base.base_model.register_forward_pre_hook(self.note, with_kwargs=True)
        base.get_input_embeddings().register_forward_hook(self.add)

    def note(self, _module: torch.nn.Module, _args: Any, model_inputs: JsonObject) -> None:
        self.model_inputs = model_inputs

    def add(self, module: torch.nn.Module, _args: Any, embedded_BTD: torch.Tensor) -> torch.Tensor | None:
        if not module.training:
            return None
        size_B11 = lengths(self.model_inputs, embedded_BTD) * embedded_BTD.shape[-1]
        noise_BTD = torch.empty(embedded_BTD.shape, device=embedded_BTD.device).uniform_(-1, 1)
        return embedded_BTD + (noise_BTD * self.alpha / size_B11.sqrt()).to(embedded_BTD.dtype)


def lengths(model_inputs: JsonObject, embedded_BTD: torch.Tensor) -> torch.Tensor:
    """Return tokens of the row that each position belongs to: (B, T or 1, 1)."""
    positions_BT, mask_BT, borders_S = map(model_inputs.get, ("position_ids", "attention_mask", "cu_seq_lens_q"))
    if borders_S is not None:  # attention gets the sequences separately, and no mask (`layout/sequence_attention`)
        rows, width = embedded_BTD.shape[:2]
        sizes_S = borders_S.diff()
        return sizes_S.repeat_interleave(sizes_S, output_size=rows * width).view(rows, width, 1).float()
    if mask_BT is not None:
        return mask_BT.sum(1).clamp(min=1)[:, None, None].float()
    if positions_BT is not None:
        rows_BT = (positions_BT == 0).flatten().cumsum(0).view_as(positions_BT)
        return rows_BT.flatten().bincount()[rows_BT][..., None].float()
    return torch.full((1, 1, 1), float(embedded_BTD.shape[1]), device=embedded_BTD.device)
