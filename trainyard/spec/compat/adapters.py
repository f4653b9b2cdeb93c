"""Rows on what an adapter cannot have on the base that its `config.json` states: stacked experts, shared blocks."""

from __future__ import annotations

from trainyard.spec.axes.methods import (
    DEFAULT_INIT,
    AdapterSettings,
    LowRankSettings,
    Method,
    OftSettings,
    adapter_settings,
)
from trainyard.spec.compat.context import Match, NodeView, Row
from trainyard.spec.compat.training import earlier, find_stacked_trainer
from trainyard.spec.estimate.shape import BaseFacts
from trainyard.spec.training import TrainerConfig

EXPERT_NAMES = frozenset({
    "gate_proj", "up_proj", "down_proj", "gate_up_proj", "w1", "w2", "w3", "experts", "input_linear", "output_linear",
})  # fmt: skip
"""Last names of layers that the experts of a block have as stacked matrices."""
SHARING_TYPES = ("zamba", "zamba2")
"""Model types whose blocks share weights, with an adapter for each block."""


def reaches_experts(config: TrainerConfig) -> bool:
    """Return whether an adapter is put on the experts of a base that has some."""
    method = config.method
    if not isinstance(method, LowRankSettings) or method.target_modules == "attention-only":
        return False
    names = method.target_modules
    return isinstance(names, str) or any(name.rpartition(".")[2] in EXPERT_NAMES for name in names or ())


def unfit_for_experts(config: TrainerConfig, base: BaseFacts) -> Match:
    """Return what PEFT does not have for stacked matrices."""
    method = config.method
    if base.experts and isinstance(method, OftSettings) and method.target_modules == "all-linear":
        return {"where": "method", "what": "method oft", "use": "method lora", "experts": base.experts}
    if not base.experts or not reaches_experts(config) or not isinstance(method, LowRankSettings):
        return False
    problems = [
        (method.type is Method.DORA, "method", "method dora", "method lora"),
        (method.init != DEFAULT_INIT, "method.init", f"init {method.init}", "`init: default`"),
        (bool(method.dropout), "method.dropout", f"dropout {method.dropout}", "`dropout: 0`"),
    ]
    return [
        {"where": where, "what": kind, "use": use, "experts": base.experts}
        for wrong, where, kind, use in problems
        if wrong
    ]


def find_base_facts(config: TrainerConfig, at: NodeView) -> BaseFacts | None:
    return at.facts.base(config.base_model) if at.facts.base and config.base_model else None


def other_experts(config: TrainerConfig, at: NodeView) -> Match:
    """Return two adapters on different matrices of the experts, which PEFT does not compute with together."""
    before, base = find_stacked_trainer(config, at), find_base_facts(config, at)
    if before is None or base is None or not base.experts or not (reaches_experts(config) and reaches_experts(before)):
        return False
    old, new = adapter_settings(before.method), adapter_settings(config.method)
    return (old.target_modules, old.layers) != (new.target_modules, new.layers)


def has_shape(config: TrainerConfig) -> bool:
    return isinstance(config.method, AdapterSettings)


def sums_into_shared(config: TrainerConfig, at: NodeView) -> Match:
    """Return an earlier adapter that would be written into weights that several blocks share."""
    base, before = find_base_facts(config, at), earlier(at)
    if base is None or before is None or base.model_type not in SHARING_TYPES:
        return False
    return (config.adapter == "merge" or not has_shape(config)) and {"type": base.model_type}


ADAPTER_BASE_ROWS = (
    Row(
        "adapter-experts", "R-ADAPTER", "trainer", "config.{where}",
        lambda config, at: (base := find_base_facts(config, at)) is not None and unfit_for_experts(config, base),
        "The base {config.base_model!r} has {experts} experts in a block as stacked matrices, and an adapter on those "
        "cannot have {what}.",
        "Use {use}, or `target_modules: attention-only`.", scope="run",
    ),
    Row(
        "adapter-experts-together", "R-ADAPTER", "trainer", "config.adapter", other_experts,
        "With `adapter: {config.adapter}` both adapters are written as one, and on a mixture of experts they have to "
        "be on the same matrices of the experts.",
        "Write the same method.target_modules and method.layers in both trainers, or use `adapter: continue`.",
        scope="run",
    ),
    Row(
        "adapter-shared-blocks", "R-ADAPTER", "trainer", "config.adapter", sums_into_shared,
        "Blocks of a {type} share their weights and have adapters of their own: summed into the weights, each would be "
        "added to all.",
        "Use `adapter: continue` or stack, with an adapter method.", scope="run",
    ),
)  # fmt: skip
"""Asked of a machine that has the base's files."""
