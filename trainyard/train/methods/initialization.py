"""Initialization of adapters: PiSSA (Meng et al. 2024, arXiv 2404.02948) and LoftQ (Li et al. 2023, 2310.08659).

    default   B A = 0; the base is W
    pissa     B A = the largest singular values of W; the base is W - B A while it trains
    loftq     B A = the largest singular values of W - Q(W); the base is Q(W), quantised, while it trains

PEFT computes PiSSA. Its LoftQ replaces the base by rounded weights in full precision; here the base stays the quantised
one that is computed with, so the decomposition is done once (the paper alternates, each time with another Q).

What the adapter began with is kept, on the CPU, and subtracted when it is saved (`adapters.write_difference`). It is
computed again when a training is resumed: the same base gives the same product B A.

Shapes: O outputs, I inputs, R rank.
"""

from __future__ import annotations

from typing import Any

import peft
import torch
from peft.utils.integrations import dequantize_module_weight
from transformers.pytorch_utils import Conv1D

from trainyard.errors import InvalidInput
from trainyard.spec.axes.methods import LOFTQ, LowRankSettings
from trainyard.train.methods.adapters import NEW
from trainyard.train.methods.contract import PolicyRequest
from trainyard.train.methods.loading import load_model, require_memory
from trainyard.train.methods.sums import PREFIX, Weights


def initialize_adapter(model: Any, request: PolicyRequest) -> Weights | None:
    """Set the first weights of a new adapter; returns what they are where that is not zero.

    Raises `InvalidInput` (`E-TRAINABLE`) for a rank that a layer does not have, and `LimitExceeded` (`E-MEMORY-FIT`)
    where the base in full precision, which LoftQ reads, has no room.
    """
    method = request.config.method
    if not isinstance(method, LowRankSettings) or not method.changes_base:
        return None
    require_rank(model)
    if method.init == LOFTQ:
        correct_rounding(model, request)
    return initial_factors(model)


def initial_factors(model: Any) -> Weights:
    """Return the low-rank factors as they are now, on the CPU, by the names of a saved adapter."""
    state = peft.get_peft_model_state_dict(model, adapter_name=NEW, save_embedding_layers=False)
    return {name: value.detach().cpu().clone() for name, value in state.items() if ".lora_" in name}


def require_rank(model: Any) -> None:
    """Raise `InvalidInput` (`E-TRAINABLE`) where a layer has fewer singular values than the adapter has ranks."""
    for name, module in list_adapted_layers(model):
        most = min(module.in_features, module.out_features)
        if module.r[NEW] > most:
            raise InvalidInput(
                f"The rank is {module.r[NEW]}, and {name} has {most} singular values.",
                why="The adapter begins with as many of them as its rank.",
                do=f"Use a rank of at most {most}, or `init: default`.",
                code="E-TRAINABLE",
            )


def list_adapted_layers(model: Any) -> list[tuple[str, Any]]:
    """Return the layers with the adapter, by their names in the base."""
    return [
        (name.removeprefix(PREFIX), module)
        for name, module in model.named_modules()
        if NEW in getattr(module, "lora_A", ())
    ]


@torch.no_grad()
def correct_rounding(model: Any, request: PolicyRequest) -> None:
    """Let the adapter be the best correction of its rank for what quantising took from the base."""
    require_memory(request.base, torch.float32)
    options = {"trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32}
    whole = dict(load_model(request.base, request.head, options).named_modules())
    for name, module in list_adapted_layers(model):
        rounded_OI = dequantize_module_weight(module.get_base_layer()).float()
        layer: Any = whole[name]
        exact_OI = (layer.weight.T if isinstance(layer, Conv1D) else layer.weight).to(rounded_OI.device)
        a_RI, b_OR = largest_part(exact_OI - rounded_OI.view_as(exact_OI), module.r[NEW])
        scale = module.scaling[NEW]
        module.lora_A[NEW].weight.copy_(a_RI)
        module.lora_B[NEW].weight.copy_(b_OR / scale)


def largest_part(matrix_OI: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a (R, I) and B (O, R) whose product is the nearest of its rank (Eckart and Young 1936)."""
    u_OR, s_R, v_RI = torch.linalg.svd(matrix_OI, full_matrices=False)
    root_R = s_R[:rank].sqrt()
    return root_R[:, None] * v_RI[:rank], u_OR[:, :rank] * root_R
