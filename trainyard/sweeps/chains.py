"""From the chain of a sweep to that of a trial: values at their places, and the nodes that a trial needs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy

from trainyard.errors import InvalidInput, Refused
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.chain import ChainSpec, ResolvedChain
from trainyard.spec.load.files import read_chain
from trainyard.spec.load.parse import suggest
from trainyard.spec.training import Hyperparameters, TrainerConfig
from trainyard.sweeps.spec import Choice, Range, Scalar, corners

Resolve = Callable[[ChainSpec], ResolvedChain]
MAX_CORNERS = 256
"""Combinations of choices and ends of ranges that are checked before the first trial: about a second."""
VARIANTS = ("stage", "method")
"""Settings that are a word, or a mapping with the word as its `type`."""


def apply_values(chain: ChainSpec, ids: tuple[str, ...], values: Mapping[str, Scalar]) -> ChainSpec:
    """Return the chain with these values of its settings; `ids` are the ids of its nodes in the order of the file.

    Raises `InvalidInput` (`E-PARAMETER`) for a path without a node, `Refused` for a setting or a value.
    """
    if not values:
        return chain
    value = deepcopy(chain.model_dump(mode="json", exclude_unset=True))
    whole = chain.model_dump(mode="json")
    for path, setting in sorted(values.items(), key=lambda item: item[0].count(".")):
        node, keys = split_path(path, ids, whole)
        put(value["nodes"][node].setdefault("config", {}), whole["nodes"][node]["config"], keys, setting)
    spec, reasons = read_chain(value)
    if spec is None:
        raise Refused(reasons)
    return spec


def split_path(path: str, ids: tuple[str, ...], whole: JsonMapping) -> tuple[int, list[str]]:
    """(place of the node, keys below its config). A hyperparameter of a trainer needs no `hyperparameters`."""
    node, *keys = path.split(".")
    if node not in ids or not keys:
        instead = suggest(node, set(ids), f"Begin with one of {', '.join(ids)}.")
        raise InvalidInput(
            f"{path}: there is no setting of that name.",
            why=f"A path is the id of a node and a setting of it; the chain has {', '.join(ids)}.",
            do=instead,
            code="E-PARAMETER",
        )
    index = ids.index(node)
    is_trainer = whole["nodes"][index]["type"] == "trainer"
    if is_trainer and keys[0] not in TrainerConfig.model_fields and keys[0] in Hyperparameters.model_fields:
        keys = ["hyperparameters", *keys]
    return index, keys


def put(config: JsonObject, whole: JsonMapping, keys: list[str], value: Scalar) -> None:
    """Write a value at its place in what was written; `whole` is the same config with its defaults."""
    *groups, last = keys
    for name in groups:
        under = whole.get(name) if isinstance(whole, Mapping) else None
        if not isinstance(config.get(name), dict):
            kind = {"type": under["type"]} if isinstance(under, Mapping) and name in VARIANTS else {}
            config[name] = kind
        config, whole = config[name], under if isinstance(under, Mapping) else {}
    if last in VARIANTS and isinstance(config.get(last), dict):
        config[last]["type"] = value
    else:
        config[last] = value


def check_parameters(
    chain: ChainSpec, ids: tuple[str, ...], parameters: Mapping[str, Range | Choice], resolve: Resolve
) -> None:
    """Check every setting with each value that can be named: choices and the ends of ranges, one by one and together.

    Raises `InvalidInput` (`E-PARAMETER`) and `Refused` naming the path; of a combination all its paths.
    """
    first = {path: parameter.corners[0] for path, parameter in parameters.items()}
    ends = ({**first, path: value} for path, parameter in parameters.items() for value in parameter.corners)
    for values in itertools.chain(ends, corners(parameters, MAX_CORNERS)):
        refused = find_refusal(chain, ids, values, resolve)
        if refused is not None:
            alone = {path: value for path, value in values.items() if find_refusal(chain, ids, {path: value}, resolve)}
            combination = ", ".join(f"{path}={value}" for path, value in (alone or values).items())
            message = f"The sweep was refused: with {combination} a trial is not a valid chain."
            raise Refused(refused.reasons, message)


def find_refusal(
    chain: ChainSpec, ids: tuple[str, ...], values: Mapping[str, Scalar], resolve: Resolve
) -> Refused | None:
    """Why the chain with these values is refused; None if it is not."""
    try:
        resolve(apply_values(chain, ids, values))
    except Refused as refused:
        return refused
    return None


def list_needed_nodes(chain: ResolvedChain, trainer: str) -> tuple[str, ...]:
    """Return the trainer and the nodes before it, in order."""
    needed, waiting = set[str](), [trainer]
    while waiting:
        needed.add(node := waiting.pop())
        waiting += [need for need in list_ancestors(chain, node) if need not in needed]
    return tuple(node for node in chain.order if node in needed)


def list_ancestors(chain: ResolvedChain, node_id: str) -> Iterator[str]:
    node = chain.node(node_id)
    yield from node.needs
    yield from (source.node_id for sources in node.inputs.values() for source in sources)


def find_trainer(chain: ResolvedChain, name: str | None) -> str:
    """Return the id of the trainer that is compared: the only one that is not a control, if none is named.

    Raises `InvalidInput` (`E-PARAMETER`).
    """
    trainers = [node.id for node in chain.nodes if isinstance(node.config, TrainerConfig) and not node.config.control]
    matches = [trainer for trainer in trainers if name in (None, trainer)]
    if len(matches) == 1:
        return matches[0]
    has = f"The chain has {len(trainers)} trainers: {', '.join(trainers)}." if trainers else "The chain has no trainer."
    problem = f"There is no trainer {name!r}." if name else "Which trainer is compared is not clear."
    raise InvalidInput(problem, why=has, do="Name one of them by --trainer.", code="E-PARAMETER")
