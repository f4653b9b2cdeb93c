"""From a chain as written to a chain as carried out: ids, edges, order, ports and defaults; or every reason why not.

`resolve` gives the complete chain or raises `Refused`; `check` gives the list of reasons, all of them at once. Both are
pure: they read no file and no setting. Cost: 10,000 nodes in under two seconds, parsing included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import TypeGuard

from trainyard.errors import Reason, Refused
from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.data import BAD_FRACTION, DATA_PORTS, GenerationTemplate, GeneratorKind, Port
from trainyard.spec.axes.methods import METHOD_SETTINGS, AutoSettings, Method, with_type
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.axes.stages import Stage
from trainyard.spec.chain import ChainSpec, ResolvedChain, ResolvedNode, Source, digest
from trainyard.spec.compat.table import spec_reasons
from trainyard.spec.load.files import read_chain
from trainyard.spec.load.parse import ParsedNode, cap_reasons, check_crowded, number, parse_nodes, suggest
from trainyard.spec.load.text import MAX_REASONS
from trainyard.spec.nodes import (
    AiGeneratorConfig,
    DataSourceConfig,
    DeployerConfig,
    EvaluatorConfig,
    ValidatorConfig,
)
from trainyard.spec.ports import PortNode, Wiring, wire
from trainyard.spec.roles import role_of_chain
from trainyard.spec.training import (
    LEAST_QUOTED,
    QUOTED_QUESTIONS,
    STARTER,
    STARTER_TOLERANCE,
    TrainerConfig,
    resolve_trainer,
)

__all__ = ["ResolvedChain", "ResolvedNode", "Source", "check", "resolve"]

MAX_CYCLE_SHOWN = 8
"""Ids of a cycle that a message lists before it says how many more there are."""


def resolve(chain: ChainSpec | object, base_model: str = "starter") -> ResolvedChain:
    """Return the complete chain. `chain` is a `ChainSpec` or a plain value of its form, `base_model` the operator's
    default.

    Raises `Refused` with every reason if there is one.
    """
    reasons, resolved = examine(chain, base_model)
    if isinstance(chain, ChainSpec) and not reasons:
        reasons = [undecided_reason(index, chain) for index in auto_trainers(chain)]
    if reasons or resolved is None:
        raise Refused(reasons)
    return resolved


def check(chain: ChainSpec | object, base_model: str = "starter") -> list[Reason]:
    """Return every reason why a chain is refused: shape, edges, ports and combinations; empty when it is accepted."""
    return examine(chain, base_model)[0]


def examine(chain: ChainSpec | object, base_model: str) -> tuple[list[Reason], ResolvedChain | None]:
    if isinstance(chain, ChainSpec):
        if auto_trainers(chain):
            return examine_each_method(chain, base_model)
        nodes = [ParsedNode(node.type, node.id, node.needs, node) for node in chain.nodes]
        reasons, resolved = examine_nodes(chain.name, chain.tenant, nodes, [], base_model)
        if resolved is not None:  # labels and limits do not change what is trained, nor the digest
            labels = {"theme": chain.theme, "tags": chain.tags, "max_spend": chain.max_spend}
            resolved = resolved.model_copy(update=labels)
        return reasons, resolved
    if reasons := check_crowded(chain):
        return reasons, None
    spec, reasons = read_chain(chain)
    if spec is not None:
        return examine(spec, base_model)
    if len(reasons) > MAX_REASONS:
        return reasons, None
    return examine_nodes("chain", "default", parse_nodes(chain), reasons, base_model)


# Method auto


RUNGS = (Method.FULL, Method.LORA, Method.QLORA, Method.FREEZE)
"""What `method: auto` chooses from, what changes most weights first; last, a model of which only a part was trained."""


def auto_trainers(chain: ChainSpec) -> list[int]:
    """Places of the trainers whose method is to be chosen."""
    configs: list[object] = [node.config for node in chain.nodes]
    return [
        at
        for at, config in enumerate(configs)
        if isinstance(config, TrainerConfig) and config.method.type is Method.AUTO
    ]


def with_method(chain: ChainSpec, at: int, config: TrainerConfig) -> ChainSpec:
    """Return the chain with another config of one trainer."""
    nodes = list(chain.nodes)
    nodes[at] = nodes[at].model_copy(update={"config": config})
    return chain.model_copy(update={"nodes": tuple(nodes)})


def check_bounds(chain: ChainSpec) -> list[Reason]:
    """Return a bound of method auto that has no effect is refused, as every other setting is."""
    choices = []
    for at in auto_trainers(chain):
        config = chain.nodes[at].config
        assert isinstance(config, TrainerConfig)
        method, length = config.method, config.hyperparameters.max_length
        if not isinstance(method, AutoSettings) or method.min_length == AutoSettings.model_fields["min_length"].default:
            continue  # a default may be without effect
        if method.min_length >= length:
            because = (
                f"Rows have at most {length} tokens, so they are never cut down to min_length {method.min_length}."
            )
            instead = "Lower method.min_length below hyperparameters.max_length, or remove it."
            choices.append(Reason("R-SETTING-UNUSED", chain.nodes[at].id, "config.method.min_length", because, instead))
    return choices


def apply_method(config: TrainerConfig, method: Method) -> TrainerConfig:
    """Return a trainer of method auto with one of the methods that it chooses from."""
    auto = config.method
    settings = (
        {"rank": auto.rank} if isinstance(auto, AutoSettings) and "rank" in METHOD_SETTINGS[method].model_fields else {}
    )
    quantised = (config.quantization or Quantization.NF4) if method.facts.quantised else None
    exported = config.quantization in config.backend.facts.exports
    updates = {"method": method.settings(**settings), "quantization": config.quantization if exported else quantised}
    return config.model_copy(update=updates)


def examine_each_method(chain: ChainSpec, base_model: str) -> tuple[list[Reason], ResolvedChain | None]:
    """Return whether every trainer of method auto has a method that nothing refuses; those of full, if none has."""
    if reasons := check_bounds(chain):
        return reasons, None
    first: list[Reason] = []
    for method in (Method.LORA, Method.FULL, Method.FREEZE, Method.QLORA):
        candidate = chain
        for at in auto_trainers(chain):
            config = chain.nodes[at].config
            assert isinstance(config, TrainerConfig)
            candidate = with_method(candidate, at, apply_method(config, method))
        reasons, resolved = examine(candidate, base_model)
        if not reasons:
            return [], resolved
        first = first or reasons
    return first, None


def undecided_reason(at: int, chain: ChainSpec) -> Reason:
    because = "Method auto is chosen by the memory of the machine that trains, which is not asked here."
    return Reason("R-DEVICE", chain.nodes[at].id, "config.method", because, "Name the method, or plan the chain there.")


def examine_nodes(
    name: str, tenant: str, nodes: Sequence[ParsedNode], reasons: list[Reason], base_model: str
) -> tuple[list[Reason], ResolvedChain | None]:
    """Place, order, wire and complete the nodes, then ask `compat` about the result."""
    placed, problems = place_nodes(nodes)
    reasons = [*reasons, *problems]
    ordered, cycles = sort_nodes(placed)
    reasons += cycles
    wiring = wire(ordered)
    completed = complete(ordered, wiring, tenant, base_model)
    listed = tuple(completed[node.id] for node in placed if node.id in completed)
    resolved = ResolvedChain.model_construct(
        name=name, tenant=tenant, nodes=listed, order=tuple(node.id for node in ordered), digest=""
    )
    unclear = frozenset(node.id for node in ordered if not node.clear)
    reasons += spec_reasons(resolved, wiring, unclear)
    if reasons:
        return cap_reasons(reasons, len(reasons)), None
    # One name for one meaning: independent of spelling, key order, listing order and omitted defaults.
    fields = {"id", "type", "config", "needs"}  # the links follow from these
    meant = [node.model_dump(mode="json", include=fields) for node in sorted(listed, key=lambda node: node.id)]
    return [], resolved.model_copy(update={"digest": digest({"name": name, "tenant": tenant, "nodes": meant})})


# Ids and edges


def place_nodes(nodes: Sequence[ParsedNode]) -> tuple[list[PortNode], list[Reason]]:
    """Give every node its id and its edges. Nodes that could not be read take part as names only."""
    ids = number(nodes)
    reasons = duplicates(ids)
    node_ids = set(ids)
    broken: set[str] = {node_id for node_id, node in zip(ids, nodes, strict=True) if node.node is None}
    readable = node_ids - broken
    placed: dict[str, PortNode] = {}
    for index, (node_id, node) in enumerate(zip(ids, nodes, strict=True)):
        before = ids[index - 1 : index] if index else []
        needs = tuple(dict.fromkeys(before if node.needs is None else node.needs))
        unknown = [need for need in node.needs or () if need not in node_ids or need == node_id]
        reasons += [unknown_need(node_id, node, need, node_ids) for need in unknown]
        if node.node is None or node_id in placed:
            continue
        clear = not unknown and not any(need in broken for need in needs)
        usable = tuple(need for need in needs if need in readable and need != node_id)
        placed[node_id] = PortNode(node_id, node.type, node.node.config, usable, clear)  # type: ignore[attr-defined]
    return list(placed.values()), reasons


def duplicates(ids: Sequence[str]) -> list[Reason]:
    return [
        Reason("E-SPEC-GRAPH", node_id, "id", f"{count} nodes have the id {node_id!r}.", "Give each node its own id.")
        for node_id, count in Counter(ids).items()
        if count > 1
    ]


def unknown_need(node_id: str, node: ParsedNode, need: str, node_ids: set[str]) -> Reason:
    if need == node_id:
        return Reason(
            "E-SPEC-GRAPH", node_id, "needs", f"The node {node_id!r} needs itself.", f"Remove {need!r} from its needs."
        )
    ids = ", ".join(sorted(node_ids)[:MAX_CYCLE_SHOWN])
    instead = suggest(need, node_ids, f"Write the id of another node: {ids}.")
    return Reason("E-SPEC-GRAPH", node_id, "needs", f"There is no node with the id {need!r}.", instead)


def sort_nodes(placed: Sequence[PortNode]) -> tuple[list[PortNode], list[Reason]]:
    """Topological order, in listing order where the edges leave a choice; and one reason per cycle.

    The nodes of a cycle follow at the end without the edges that close it, so that they are examined too.
    """
    by_id = {node.id: node for node in placed}
    sorter = TopologicalSorter[str]({node.id: () for node in placed})
    for node in placed:
        sorter.add(node.id, *(need for need in node.needs if need in by_id))
    with suppress(CycleError):  # a cycle hides no other: they are looked for in what is left
        sorter.prepare()
    ordered: dict[str, PortNode] = {}
    while ready := sorter.get_ready():
        sorter.done(*ready)
        for node in (by_id[name] for name in ready):
            clear = node.clear and all(ordered[need].clear for need in node.needs if need in by_id)
            ordered[node.id] = node if clear else replace(node, clear=False)
    left = [node for node in placed if node.id not in ordered]
    reasons = [cycle_reason(cycle) for cycle in find_cycles({node.id: node.needs for node in left})]
    return [*ordered.values(), *(replace(node, needs=(), clear=False) for node in left)], reasons


def find_cycles(needs: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Disjoint cycles in what has no order: follow needs from each node until one repeats."""
    seen: set[str] = set()
    cycles = []
    for start in needs:
        path: dict[str, int] = {}
        current: str | None = start
        while current is not None and current not in seen and current not in path:
            path[current] = len(path)
            current = next((need for need in needs[current] if need in needs), None)
        if current in path:
            cycles.append(list(path)[path[current] :][::-1])
        seen.update(path)
    return cycles


def cycle_reason(cycle: Sequence[str]) -> Reason:
    return describe_cycle(cycle[:MAX_CYCLE_SHOWN], cycle[-1], len(cycle))


def describe_cycle(begin: Sequence[str], last: str, length: int) -> Reason:
    """Return the reason against a cycle, by its first `MAX_CYCLE_SHOWN` nodes, its last one and how many it has."""
    path = [*begin, begin[0]]
    if length >= MAX_CYCLE_SHOWN:
        path = [*begin[: MAX_CYCLE_SHOWN - 2], f"… {length - MAX_CYCLE_SHOWN + 2} more", begin[0]]
    return Reason(
        "E-SPEC-GRAPH",
        begin[0],
        "needs",
        f"The nodes wait for each other in a circle: {' → '.join(path)}.",
        f"Remove {last!r} from the needs of {begin[0]!r}, or another link of the circle.",
    )


# Defaults


def complete(ordered: Sequence[PortNode], wiring: Wiring, tenant: str, base_model: str) -> dict[str, ResolvedNode]:
    """Return every node with its complete config and its links, by id."""
    configs: dict[str, Strict] = {}
    extracted = find_extracted(wiring.inputs, {node.id: node.config for node in ordered})
    for node in ordered:
        configs[node.id] = complete_config(
            node.config, wiring.inputs[node.id], configs, tenant, base_model, by_rule=node.id in extracted
        )
    fill_tokenizers(ordered, wiring, configs, base_model)
    name_roles(ordered, configs)
    name_holdouts(ordered, wiring, configs)
    limit_refusals(ordered, wiring, configs)
    return {
        node.id: ResolvedNode.model_construct(
            id=node.id,
            type=node.type,  # type: ignore[arg-type]
            config=configs[node.id],
            needs=node.needs,
            inputs=wiring.inputs[node.id],
            produces=wiring.produces[node.id],
        )
        for node in ordered
    }


def find_extracted(
    inputs: Mapping[str, Mapping[Port, Sequence[Source]]],
    configs: Mapping[str, Strict],
    extracts: Callable[[Strict], bool] | None = None,
) -> set[str]:
    """Return the nodes whose rows a generator takes from a text by rule: generators, the validators after them, and all
    that reads from either. Generators are those that `extracts` says; default: those of questions and answers.
    """
    extracts = extracts or extracts_pairs
    readers: dict[str, list[str]] = {}
    for node_id in configs:
        for port in DATA_PORTS:
            for source in inputs[node_id].get(port, ()):
                readers.setdefault(source.node_id, []).append(node_id)
    left = [node_id for node_id, config in configs.items() if extracts(config)]
    extracted = set(left)
    while left:
        for reader in readers.get(left.pop(), ()):
            if reader not in extracted:
                extracted.add(reader)
                left += [reader] if isinstance(configs[reader], ValidatorConfig) else []
    return extracted


def extracts_pairs(config: Strict) -> bool:
    """Return whether a config, complete or not, takes questions and answers from a text by rule."""
    return works_by_rule(config) and config.template is GenerationTemplate.QA


def works_by_rule(config: Strict) -> TypeGuard[AiGeneratorConfig]:
    """Return whether a config, complete or not, is that of a generator without a model."""
    if not isinstance(config, AiGeneratorConfig):
        return False
    by_default = config.engine is None and config.model is None
    return by_default or config.engine is GeneratorKind.EXTRACTIVE


def complete_config(
    config: Strict,
    inputs: Mapping[Port, Sequence[Source]],
    earlier: Mapping[str, Strict],
    tenant: str,
    base_model: str,
    *,
    by_rule: bool,
) -> Strict:
    """Return a config with the defaults that depend on its place in the chain."""
    if isinstance(config, TrainerConfig):
        before = [earlier[source.node_id] for port in (Port.ADAPTER, Port.MODEL) for source in inputs.get(port, ())]
        trainers = (config for config in before if isinstance(config, TrainerConfig))
        return complete_trainer(config, next(trainers, None), base_model)
    if isinstance(config, EvaluatorConfig):
        before = [earlier[source.node_id] for port in (Port.ADAPTER, Port.MODEL) for source in inputs.get(port, ())]
        bases = {trainer.base_model for trainer in before if isinstance(trainer, TrainerConfig)}
        return complete_evaluator(config, by_rule, bases == {STARTER})
    if isinstance(config, AiGeneratorConfig) and config.model is None:
        if config.engine is None:  # without a model, pairs are extracted by rule
            return config.model_copy(update={"engine": GeneratorKind.EXTRACTIVE})
        if config.engine is GeneratorKind.LOCAL:  # the embedded server has the default base model
            return config.model_copy(update={"model": base_model})
    if isinstance(config, DeployerConfig) and config.tenant is None:
        return config.model_copy(update={"tenant": tenant})
    return config


def complete_evaluator(config: EvaluatorConfig, by_rule: bool, on_starter: bool) -> EvaluatorConfig:
    """Return an evaluator with the questions that it asks, the share of right answers and the tolerance."""
    asks = by_rule and not config.benchmarks
    quotes = (QUOTED_QUESTIONS if asks else 0) if config.quotes is None else config.quotes
    updates: dict[str, object] = {"quotes": quotes}
    if config.least_quoted is None and asks and quotes:
        updates["least_quoted"] = LEAST_QUOTED
    if config.tolerance is None and asks and on_starter:
        updates["tolerance"] = STARTER_TOLERANCE
    return config.model_copy(update=updates)


def complete_trainer(config: TrainerConfig, before: TrainerConfig | None, base_model: str) -> TrainerConfig:
    """Return a trainer after another takes over its base model, and its adapter's shape where it names none of its
    own.
    """
    if before is None:
        return resolve_trainer(config, base_model)
    method = config.method
    adapters = method.facts.adapter and before.method.facts.adapter
    if config.adapter == "continue" and adapters and method == method.type.settings():
        config = config.model_copy(update={"method": with_type(before.method, method.type)})
    return resolve_trainer(config, before.base_model or base_model)


def name_roles(ordered: Sequence[PortNode], configs: dict[str, Strict]) -> None:
    """A deployer without a role has that of the chain's data; an evaluator compares with the deployer's."""
    role = role_of_chain(configs.values())
    for node in ordered:
        config = configs[node.id]
        if isinstance(config, DeployerConfig) and config.role is None:
            configs[node.id] = config.model_copy(update={"role": role})
    roles = [config.role for config in configs.values() if isinstance(config, DeployerConfig)]
    for node in ordered:
        config = configs[node.id]
        if isinstance(config, EvaluatorConfig) and config.baseline != "base" and config.role is None:
            configs[node.id] = config.model_copy(update={"role": roles[0] if roles else role})


def name_holdouts(ordered: Sequence[PortNode], wiring: Wiring, configs: dict[str, Strict]) -> None:
    """A generator writes, on top of the rows to train on, what the validator behind it will hold out."""
    for node in ordered:
        config = configs[node.id]
        if not isinstance(config, ValidatorConfig):
            continue
        for port, sources in wiring.inputs[node.id].items():
            for source in sources if port in DATA_PORTS else ():
                before = configs[source.node_id]
                if isinstance(before, AiGeneratorConfig) and before.holdout is None:
                    configs[source.node_id] = before.model_copy(update={"holdout": config.holdout})


def limit_refusals(ordered: Sequence[PortNode], wiring: Wiring, configs: dict[str, Strict]) -> None:
    """A trainer may lose as many rows to its template as the strictest data source that its rows come from allows."""
    limits: dict[str, float] = {}
    for node in ordered:
        config = configs[node.id]
        if isinstance(config, DataSourceConfig):
            limits[node.id] = config.max_bad_fraction
            continue
        sources = (source.node_id for port in DATA_PORTS for source in wiring.inputs[node.id].get(port, ()))
        before = [limits[node_id] for node_id in sources if node_id in limits]
        if not before:
            continue
        limit = limits[node.id] = min(before)
        if isinstance(config, TrainerConfig) and config.max_bad_fraction is None:
            is_read = limit != BAD_FRACTION and config.stage.type is not Stage.CPT
            configs[node.id] = config.model_copy(update={"max_bad_fraction": limit}) if is_read else config


def fill_tokenizers(ordered: Sequence[PortNode], wiring: Wiring, configs: dict[str, Strict], base_model: str) -> None:
    """A validator counts tokens as the trainer behind it will: by default with the tokenizer of its base model."""
    reader_of: dict[str, str] = {}
    for node in reversed(ordered):
        config = configs[node.id]
        if isinstance(config, ValidatorConfig):
            name = config.tokenizer or reader_of.get(node.id, base_model)
            configs[node.id] = config.model_copy(update={"tokenizer": name})
        elif isinstance(config, TrainerConfig):
            name = str(config.base_model)
        else:
            continue
        for port, sources in wiring.inputs[node.id].items():
            if port in DATA_PORTS:
                reader_of |= dict.fromkeys((source.node_id for source in sources), name)
