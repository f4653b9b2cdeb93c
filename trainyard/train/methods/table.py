"""The methods by name, and the functions that work with any row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel

from trainyard.json_types import JsonObject
from trainyard.spec.axes.methods import Method
from trainyard.spec.training import TrainerConfig
from trainyard.train.methods.adapters import NEW, save_adapter
from trainyard.train.methods.composition import adapter_policy, find_summed_adapter, whole_policy
from trainyard.train.methods.contract import Groups, MethodSpec, Policy, PolicyRequest
from trainyard.train.methods.full import build_rotation, plain_groups, train_all_weights, train_last_blocks
from trainyard.train.methods.loading import load_base
from trainyard.train.methods.lora import load_quantised, lora_config, lora_plus_groups
from trainyard.train.methods.oft import oft_config
from trainyard.train.methods.reloading import require_reloaded
from trainyard.train.methods.sums import list_adapted_layers, write_difference, write_sum

METHODS: dict[Method, MethodSpec] = {
    Method.FULL: MethodSpec(load_base, plain_groups, choose=train_all_weights),
    Method.LORA: MethodSpec(load_base, plain_groups, adapter_config=lora_config),
    Method.QLORA: MethodSpec(load_quantised, plain_groups, adapter_config=lora_config),
    Method.DORA: MethodSpec(load_base, plain_groups, adapter_config=lora_config),
    Method.LORA_PLUS: MethodSpec(load_base, lora_plus_groups, adapter_config=lora_config),
    Method.OFT: MethodSpec(load_base, plain_groups, adapter_config=oft_config),
    Method.FREEZE: MethodSpec(load_base, plain_groups, choose=train_last_blocks, rotate=build_rotation),
}


def build(request: PolicyRequest, *, with_reference: bool) -> Policy:
    """Return the policy of a request on its device, in training mode; the same request gives the same bits.

    Seeds torch from the config, because the first weights of an adapter or a score must not depend on what was drawn
    before. Raises `InvalidInput` (`E-TRAINABLE`, `E-ADAPTER-MISMATCH`, …),
    `Refused` (`R-BASE-MISMATCH`) and `NotFound` (`E-ADAPTER-NOT-FOUND`).
    """
    torch.manual_seed(request.config.hyperparameters.seed)
    spec = METHODS[request.config.method.type]
    make = adapter_policy if spec.adapter_config is not None else whole_policy
    policy = make(request, spec, with_reference=with_reference)
    if request.config.hyperparameters.gradient_checkpointing:
        checkpoint_activations(policy.model)
    policy.model.train()
    policy.facts |= counts(policy.model)
    return policy


def checkpoint_activations(model: Any) -> None:
    """Recompute each block's activations in the backward pass instead of keeping them."""
    model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    # transformers also asks for gradients of the embeddings' output, which only re-entrant checkpoints need: below the
    # first weight that moves, they are work for nothing.
    model.disable_input_require_grads()


def parameter_groups(policy: Policy, config: TrainerConfig) -> Groups:
    """Groups of the weights that move: `params`, `names`, `lr`, `weight_decay`."""
    return METHODS[config.method.type].groups(policy.model, config)


def save(policy: Policy, request: PolicyRequest, folder: Path) -> None:
    """Write the adapter (one that works on `request.base` alone) or the whole model, as safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    if not isinstance(policy.model, PeftModel):
        policy.model.save_pretrained(folder)
        return
    save_adapter(policy.model, request.base, folder)
    layers, earlier = list_adapted_layers(policy.model, NEW), find_summed_adapter(request)
    if earlier is not None:
        assert policy.earlier_layers is not None, "an adapter that is stacked or merged"
        write_sum((earlier, folder), (policy.earlier_layers, layers), request.base, folder)
    if policy.initial is not None:
        write_difference(policy.initial, layers, folder, request.base)


def verify_saved(policy: Policy, request: PolicyRequest, folder: Path) -> None:
    """Load a written adapter again and run it once next to the trained one. Raises as `require_reloaded`."""
    if isinstance(policy.model, PeftModel):
        merged = request.adapter if request.config.adapter == "merge" else None
        require_reloaded(policy.model, folder, request.head, merged=merged, initial=policy.initial)


def counts(model: torch.nn.Module) -> JsonObject:
    """Return how many weights there are and how many of them move. A 4-bit base stores two in a byte."""
    parameters = list(model.parameters())
    return {
        "trainable_parameters": sum(value.numel() for value in parameters if value.requires_grad),
        "parameters": sum(value.numel() * (2 if value.dtype is torch.uint8 else 1) for value in parameters),
    }
