"""From a plain value to a `ChainSpec`, or to one reason for each thing that is wrong with it.

A misspelt key or type is answered with the nearest word that exists. A node that cannot be read does not hide what is
wrong with the others: `parse_nodes` reads them one by one.
"""

from __future__ import annotations

import difflib
import json
import re
import typing
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from trainyard.errors import Reason
from trainyard.json_types import JsonMapping
from trainyard.spec.chain import ChainSpec
from trainyard.spec.compat.other_tools import word_reasons
from trainyard.spec.load.spellings import VALUES, list_tags, right_name
from trainyard.spec.load.text import MAX_KEYS, MAX_REASONS
from trainyard.spec.migrate import chain_words
from trainyard.spec.nodes import NODE_MODELS, NODE_TYPES, NodeBase

Model = TypeVar("Model", bound=BaseModel)
TYPED_NUMBERS: ContextVar[bool] = ContextVar("typed numbers", default=False)
NUMBER_TYPES = frozenset({"int_type", "float_type", "bool_type"})
TAGGED_LISTS = ("rewards",)
"""Fields that list variants of a setting, distinguished by their `type`."""
TAGGED = ("stage", "method")
"""Fields that are a variant."""
SHOWN_CHARS = 60
"""Characters of a wrong value that a message repeats."""
NAME_RULE = "Write lower-case letters, digits and hyphens, at most 63, starting with a letter or a digit."

INSTEAD = {
    **dict.fromkeys(("bool_parsing", "bool_type"), "Write true or false."),
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "Write a whole number."),
    **dict.fromkeys(("float_parsing", "float_type"), "Write a number."),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "Write a mapping of keys to values."),
    "finite_number": "Write a finite number.",
    "string_type": "Write a text; put quotes around it if it looks like a number.",
    "tuple_type": "Write a list.",
}
"""Kind of pydantic error -> what to write; bounds and choices are worded from the error's own context."""

BOUNDS = {
    "greater_than": ("gt", "Write a number above {}."),
    "greater_than_equal": ("ge", "Write a number of at least {}."),
    "less_than": ("lt", "Write a number below {}."),
    "less_than_equal": ("le", "Write a number of at most {}."),
    "string_too_short": ("min_length", "Write at least {} character(s)."),
    "string_too_long": ("max_length", "Write at most {} characters."),
    "too_short": ("min_length", "Give at least {}."),
    "too_long": ("max_length", "Give at most {}."),
}


@dataclass(frozen=True)
class ParsedNode:
    """A node as it was read; `node` is None if it could not be."""

    type: str
    id: str | None
    needs: tuple[str, ...] | None
    node: NodeBase | None


def parse_chain(value: object) -> tuple[ChainSpec | None, list[Reason]]:
    """Return the chain that a plain value describes, or the reasons why it describes none."""
    if not isinstance(value, Mapping):
        because = f"A chain is a mapping with `nodes`, not {describe_value(value)}."
        return None, [Reason("E-SPEC-TYPE", None, "", because, "Write `nodes:` with a list of `type` and `config`.")]
    try:
        return validate(ChainSpec, chain_words(value)), []
    except ValidationError as error:
        ids = number(parse_nodes(value, read=False))
        return None, build_reasons(error, ChainSpec, ids)


def validate(model: type[Model], value: Any) -> Model:
    """Validate a plain value. Inside of `require_typed_numbers`, only numbers are numbers, as in JSON."""
    if not TYPED_NUMBERS.get():
        return model.model_validate(value)
    try:
        text = json.dumps(value)
    except TypeError:  # it has parts that were validated already
        return model.model_validate(value)
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        if has_wrong_number(error):
            try:
                model.model_validate_json(json.dumps(shorten_numbers(value)), strict=True)
            except ValidationError as second:
                if has_wrong_number(second):
                    raise
    return model.model_validate(value)  # other types are read as in a file


def has_wrong_number(error: ValidationError) -> bool:
    return any(error_detail["type"] in NUMBER_TYPES for error_detail in error.errors(include_url=False))


def shorten_numbers(value: object) -> object:
    """Return the value with whole numbers as integers: `60.0` is one in JSON."""
    if isinstance(value, Mapping):
        return {key: shorten_numbers(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [shorten_numbers(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@contextmanager
def require_typed_numbers() -> Iterator[None]:
    """Take a number for a number alone: for callers whose values have types, other than those of a command line."""
    token = TYPED_NUMBERS.set(True)
    try:
        yield
    finally:
        TYPED_NUMBERS.reset(token)


def parse_nodes(value: object, read: bool = True) -> list[ParsedNode]:
    """Return the nodes of a chain that is not valid as a whole, each parsed separately."""
    listed = value.get("nodes") if isinstance(value, Mapping) else None
    return [parse_node(raw, read) for raw in listed] if isinstance(listed, list | tuple) else []


def parse_node(raw: object, read: bool) -> ParsedNode:
    if isinstance(raw, NodeBase):
        raw = raw.model_dump(exclude_unset=True)
    if not isinstance(raw, Mapping):
        return ParsedNode("node", None, None, None)
    kind, node_id, needs = raw.get("type"), raw.get("id"), raw.get("needs")
    node = None
    if read and isinstance(kind, str) and kind in NODE_MODELS:
        try:
            node = NODE_MODELS[kind].model_validate(raw)
        except ValidationError:
            node = None  # its reasons are in the chain's own error
    return ParsedNode(
        type=kind if isinstance(kind, str) and kind else "node",
        id=node_id if isinstance(node_id, str) and node_id else None,
        needs=tuple(map(str, needs)) if isinstance(needs, list | tuple) else None,
        node=node,
    )


def number(nodes: Sequence[ParsedNode]) -> list[str]:
    """Return the id of each node: its own, or its type, with a number from the second of that type on."""
    given_ids = {node.id for node in nodes if node.id is not None}
    counts: Counter[str] = Counter()
    ids = []
    for node in nodes:
        node_id = node.id
        while node_id is None:
            stem = node.type.replace("_", "-")
            counts[stem] += 1
            candidate = stem if counts[stem] == 1 else f"{stem}-{counts[stem]}"
            node_id = None if candidate in given_ids else candidate
        ids.append(node_id)
    return ids


# Reasons


def build_reasons(error: ValidationError, model: type[BaseModel], ids: Sequence[str] = ()) -> list[Reason]:
    """Return one reason for each of pydantic's errors, but for the one that a list of wrong items is also too short.

    Looking for the word that was meant takes a millisecond, so not more than `MAX_REASONS` are worded.
    """
    details = error.errors(include_url=False)
    lists = {detail["loc"][:end] for detail in details for end in range(len(detail["loc"]))}
    lists |= {("nodes",)} if ids else set()
    relevant = [detail for detail in details if not (detail["type"] == "too_short" and detail["loc"] in lists)]
    return cap_reasons([build_reason(detail, model, ids) for detail in relevant[:MAX_REASONS]], len(relevant))


def cap_reasons(reasons: list[Reason], count: int) -> list[Reason]:
    """Return at most `MAX_REASONS` of the reasons, and how many more there are."""
    because = f"And {count - MAX_REASONS:,} more are wrong."
    rest = [Reason("E-SPEC-MORE", None, "", because, "Correct these first.")] if count > MAX_REASONS else []
    return [*reasons[:MAX_REASONS], *rest]


def check_crowded(value: object) -> list[Reason]:
    """Return the reason why a value is not looked at more closely: a mapping of it has more than `MAX_KEYS` keys."""
    waiting: list[tuple[tuple[object, ...], object]] = [((), value)]
    while waiting:
        where, model = waiting.pop()
        if isinstance(model, Mapping):
            if len(model) > MAX_KEYS:
                because = f"There are {len(model):,} keys here, and a mapping has at most {MAX_KEYS:,}."
                field = ".".join(map(str, where))
                return [Reason("E-SPEC-SYNTAX", None, field, because, "Write the settings that you mean.")]
            waiting += [((*where, key), below) for key, below in model.items() if isinstance(below, Mapping | list)]
        elif isinstance(model, list):
            waiting += [((*where, at), below) for at, below in enumerate(model) if isinstance(below, Mapping | list)]
    return []


def build_reason(detail: JsonMapping, model: type[BaseModel], ids: Sequence[str]) -> Reason:
    loc = tuple(detail["loc"])
    node, path = None, loc
    if len(loc) > 1 and loc[0] == "nodes" and isinstance(loc[1], int):
        node = ids[loc[1]] if loc[1] < len(ids) else f"nodes.{loc[1]}"
        path = loc[3:] if len(loc) > 2 and loc[2] in NODE_TYPES else loc[2:]
    field = ".".join(map(str, strip_tags(path)))
    kind, value = detail["type"], detail.get("input")
    if reasons := word_reasons({str(loc[-1]): value} if loc else {}, node, field):
        return reasons[0]
    if kind == "extra_forbidden":
        return misspelt(node, field, str(loc[-1]), value, find_model(model, loc[:-1]))
    if kind == "missing":
        return Reason("E-SPEC-MISSING", node, field, f"The field {loc[-1]!r} is needed here.", f"Add `{loc[-1]}:`.")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return unknown_type(node, field, detail)
    because = f"{describe_value(value)} does not fit: {sentence(detail['msg'])}"
    if kind == "value_error" or "instead" in detail.get("ctx", {}):
        because = sentence(detail["msg"])
    code = detail.get("ctx", {}).get("code") or ("E-SPEC-SYNTAX" if kind == "too_long" else "E-SPEC-VALUE")
    return Reason(code, node, field, because, suggest_value(detail))


def misspelt(node: str | None, field: str, key: str, value: Any, parent: type[BaseModel] | None) -> Reason:
    names = [info.alias or name for name, info in parent.model_fields.items()] if parent else []
    instead = right_name(key, value, parent) if parent else None
    instead = instead or suggest(key, names, f"Write one of: {', '.join(names)}.")
    return Reason("E-SPEC-KEY", node, field, f"There is no field {key!r} here.", instead)


def strip_tags(path: Sequence[object]) -> list[object]:
    """Return a location of pydantic's error without the names of variants, which are not in the file:
    `rewards.0.pattern`.
    """
    listed = {at for at in range(2, len(path)) if path[at - 2] in TAGGED_LISTS}
    single = {at for at in range(1, len(path)) if path[at - 1] in TAGGED}
    return [part for at, part in enumerate(path) if at not in listed | single]


def unknown_type(node: str | None, field: str, detail: JsonMapping) -> Reason:
    """Return a node or a variant of a setting that is not there; without a type pydantic does not say which variants
    are.
    """
    value, allowed = detail.get("input"), NODE_TYPES
    kind = value.get("type") if isinstance(value, Mapping) else None
    if field:
        allowed = tuple(re.findall(r"'([^']+)'", (detail.get("ctx") or {}).get("expected_tags", "")))
        because = f"There is no type {describe_value(kind)} here." if kind is not None else "This has no `type`."
    else:
        because = f"There is no node type {describe_value(kind)}." if kind is not None else "The node has no `type`."
    instead = suggest(kind, allowed, f"Use {', '.join(allowed)}." if allowed else "Add `type:`.")
    return Reason("E-SPEC-TYPE", node, f"{field}.type".lstrip("."), because, instead)


def suggest_value(detail: JsonMapping) -> str:
    """Return what to write, from the kind of error and its bounds."""
    kind, context, value = detail["type"], detail.get("ctx") or {}, detail.get("input")
    if "instead" in context:
        return str(context["instead"])
    if kind in BOUNDS:
        name, text = BOUNDS[kind]
        bound = context[name]
        return text.format(f"{bound:,}" if isinstance(bound, int) else f"{bound:g}")
    if kind in ("enum", "literal_error"):
        choices = [part.strip(" '") for part in str(context["expected"]).replace(" or ", ", ").split(",")]
        allowed_value = VALUES.get(value.lower()) if isinstance(value, str) else None
        return suggest(
            allowed_value if allowed_value in choices else value, choices, f"Write one of: {', '.join(choices)}."
        )
    if kind == "string_pattern_mismatch":
        return NAME_RULE if "a-z0-9-" in str(context["pattern"]) else f"Write a text like {context['pattern']}."
    return INSTEAD.get(kind, "Correct the value; docs/chains.md lists what each field takes.")


def find_model(model: type[BaseModel], loc: Iterable[object]) -> type[BaseModel] | None:
    """Return the model of the mapping at a location of pydantic's error, to name the keys that it takes."""
    current: type[BaseModel] | None = model
    variants: object = None
    for part in loc:
        if isinstance(part, int):
            continue
        if part in NODE_MODELS and (current is None or part not in current.model_fields):
            current = NODE_MODELS[part]
        elif current is not None:
            by_key = {info.alias or name: info for name, info in current.model_fields.items()}
            if part in by_key:
                variants = by_key[part].annotation
                current = next(find_models(variants), None)
            else:
                current = next((model for model in find_models(variants) if part in list_tags(model)), current)
    return current


def find_models(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the models inside an annotation such as `tuple[Target, ...]` or `dict[Port, SourceSet]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from find_models(part)


def find_closest(name: str, allowed: Iterable[str]) -> str | None:
    """Return the allowed word that is most like the given one, if any is like it."""
    plain = name.lower().replace("-", "_")
    by_plain = {word.lower().replace("-", "_"): word for word in allowed}
    near = difflib.get_close_matches(plain, by_plain, n=1, cutoff=0.6)
    return by_plain[near[0]] if near else None


def suggest(value: Any, allowed: Iterable[str], otherwise: str) -> str:
    """Return what to write instead of a wrong word: the most similar one, or else another sentence."""
    near = find_closest(value, allowed) if isinstance(value, str) else None
    return f"Did you mean {near!r}?" if near else otherwise


def describe_value(value: Any) -> str:
    """Return a wrong value, short enough for one line."""
    if value is None:
        return "null"
    text = repr(value) if isinstance(value, str | int | float | bool) else f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


def sentence(message: str) -> str:
    """Pydantic's wording as a sentence."""
    text = message.removeprefix("Value error, ").strip()
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."
