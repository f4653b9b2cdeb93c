"""Attention over packed or padded rows without a mask: each sequence is computed separately.

Rows that lie end to end in one batch may not see each other, and padding may not be seen. With a mask (T, T), SDPA
computes the masked pairs of tokens as well, and on CUDA takes its memory-efficient kernel, whose deterministic backward
pass was half of a training step on an H200 (docs/performance.md). Here attention gets the borders of the sequences.

    CUDA    `varlen_attn`, torch's own build of FlashAttention-2 (arXiv 2307.08691): nothing needs to be installed, and
            its backward pass is deterministic where torch is asked for that
    CPU     SDPA for one sequence after the other

Shapes: B rows, T positions, H heads of queries, G heads of keys and values, D head size, N = B * T, S sequences,
L positions of one sequence.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from trainyard.json_types import JsonObject

KERNEL = "sdpa_varlen"
"""The name under which transformers finds `attend`."""
AMPERE = (8, 0)
LARGEST_HEAD, HEAD_MULTIPLE = 256, 8
"""Head sizes that FlashAttention-2 has kernels for."""
VARLEN: Any = varlen_attn
"""torch's function, whose arguments depend on the release."""
FEWER_KEY_HEADS = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
"""Lets keys have fewer heads than queries, which has to be asked for since torch 2.13."""
States = tuple[torch.Tensor, ...]
"""Queries (N, H, D), keys and values (N, G, D)."""


def attend(
    module: torch.nn.Module,
    query_BHTD: torch.Tensor,
    key_BGTD: torch.Tensor,
    value_BGTD: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within the sequences of `cu_seq_lens_q` (S + 1,); without it, as SDPA with the mask.

    Returns (B, T, H, D). The arguments are those of transformers' `AttentionInterface`.
    """
    borders_S = options.get("cu_seq_lens_q")
    if borders_S is None:
        if attention_mask is not None and not attention_mask.numel():
            attention_mask = None  # a family that does not hand the borders on: its numbers show it
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query_BHTD, key_BGTD, value_BGTD, attention_mask, **options
        )
        return output
    states = tuple(each.transpose(1, 2).flatten(0, 1) for each in cast_to_autocast(query_BHTD, key_BGTD, value_BGTD))
    flash = states[0].is_cuda and states[0].dtype is not torch.float32
    kernel = attend_at_once if flash else attend_in_turn
    out_NHD = kernel(states, borders_S, options["max_length_q"], options.get("scaling"), options.get("sliding_window"))
    return out_NHD.view(query_BHTD.shape[0], -1, *out_NHD.shape[1:]), None


def cast_to_autocast(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors in the dtype of the autocast around them, which SDPA would compute them in."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return [*tensors]
    return [each.to(torch.get_autocast_dtype(device)) for each in tensors]


def attend_at_once(
    states: States, borders_S: torch.Tensor, longest: int, scale: float | None, window: int | None
) -> torch.Tensor:
    """Causal attention of all sequences by FlashAttention-2, as `attend_in_turn`."""
    query_NHD, key_NGD, value_NGD = states
    missing = query_NHD.shape[-1] - value_NGD.shape[-1]
    if missing:  # latent attention (DeepSeek), which the kernel does not know
        value_NGD = functional.pad(value_NGD, (0, missing))
    found_NHD: torch.Tensor = VARLEN(
        query_NHD, key_NGD, value_NGD, borders_S, borders_S, longest, longest,
        scale=scale, window_size=(-1 if window is None else window - 1, 0), **FEWER_KEY_HEADS,
    )  # fmt: skip
    return found_NHD[..., :-missing] if missing else found_NHD


def attend_in_turn(
    states: States, borders_S: torch.Tensor, _longest: int, scale: float | None, window: int | None
) -> torch.Tensor:
    """Causal attention of one sequence after the other, within a window of so many tokens if given: (N, H, D)."""
    lengths, outputs = borders_S.diff().tolist(), []
    shared = states[0].shape[1] != states[1].shape[1]
    parts = (each_NHD.transpose(0, 1)[None].split(lengths, dim=2) for each_NHD in states)
    for query_1HLD, key_1GLD, value_1GLD in zip(*parts, strict=True):
        length = query_1HLD.shape[2]
        mask_LL = None
        if window is not None and length > window:
            mask_LL = torch.ones(length, length, dtype=torch.bool, device=borders_S.device).tril().triu(1 - window)
        out_1HLD = functional.scaled_dot_product_attention(
            query_1HLD, key_1GLD, value_1GLD, attn_mask=mask_LL, is_causal=mask_LL is None, scale=scale,
            enable_gqa=shared,
        )  # fmt: skip
        outputs.append(out_1HLD[0].transpose(0, 1))
    return torch.cat(outputs)


def border_inputs(batch: dict[str, torch.Tensor]) -> JsonObject:
    """Return what a forward pass gets for the borders of a batch's sequences (transformers: `FlashAttentionKwargs`).

    A sequence begins at each row, where a position (`position_ids`) is not the one before it plus one, and where
    padding (`attention_mask`) begins or ends: padding at one end of a row is a sequence that nobody reads.
    """
    first_BT = torch.ones_like(batch["input_ids"], dtype=torch.bool)
    first_BT[:, 1:] = False
    for name, step in (("position_ids", 1), ("attention_mask", 0)):
        if name in batch:
            first_BT[:, 1:] |= batch[name].diff(dim=1) != step
    found_N, device = first_BT.flatten().cpu(), first_BT.device
    borders_S = torch.cat((found_N.nonzero()[:, 0], torch.tensor([len(found_N)])))
    longest, on_device_S = int(borders_S.diff().max()), borders_S.to(device, torch.int32)
    # A mask of four dimensions is handed on as it is, so that none of (T, T) is computed.
    unused = torch.empty(0, device=device).view(1, 1, 0, 0)
    return {
        "attention_mask": unused, "cu_seq_lens_q": on_device_S, "cu_seq_lens_k": on_device_S,
        "max_length_q": longest, "max_length_k": longest,
    }  # fmt: skip


def takes_borders(base: Any) -> bool:
    """Return whether a transformers model computes its attention by `attend`."""
    return bool(base.config._attn_implementation == KERNEL)


def explain_unsupported(base: Any, device: str, dtype: torch.dtype) -> str:
    """Return why a transformers model cannot be computed by `attend` in this precision; empty if it can."""
    config, kernel = base.config.get_text_config(), base.config._attn_implementation
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    compute_capability = (
        torch.cuda.get_device_capability() if device == "cuda" and torch.cuda.is_available() else AMPERE
    )
    half = device == "cuda" and dtype is not torch.float32
    parameters = inspect.signature(base.base_model.forward).parameters.values()
    reasons = {
        f"{type(base).__name__} gives no tokens": base.get_output_embeddings() is None,
        f"the attention kernel is {kernel}": kernel != "sdpa",
        # It gets no mask either, so every model that has it says what its layers see.
        f"transformers has no flash-attention for {type(base).__name__}": not base._supports_flash_attn,
        f"{type(base).__name__} takes no borders of its caller": all(
            parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters
        ),
        "attention has dropout": bool(getattr(config, "attention_dropout", 0.0)),
        f"torch's flash kernel computes bf16 and fp16 on CUDA, not {dtype} on {device}": device != "cpu" and not half,
        "this is not tried on ROCm": half and torch.version.hip is not None,
        f"the device's capability {compute_capability} is below {AMPERE}": half and compute_capability < AMPERE,
        f"its heads have a size of {size}": half and (size > LARGEST_HEAD or size % HEAD_MULTIPLE > 0),
    }
    return next((reason for reason, applies in reasons.items() if applies), "")


def set_kernel(base: Any, name: str) -> None:
    """Let a transformers model compute its attention by the kernel `name`; one that cannot stays as it is."""
    AttentionInterface.register(KERNEL, attend)
    AttentionMaskInterface.register(KERNEL, sdpa_mask)
    base.set_attn_implementation(name)
