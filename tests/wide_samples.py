"""Wide sample answers of every operation, made from the types of their responses."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from trainyard.surfaces.invocation import load_implementation

PROSE = "The answer repeats a whole sentence of its document, although the question asks for the price. " * 2
COPIED = {
    "id": "0190c0de-1234-4321-8765-0123456789ab",
    "run_id": "0190c0de-1234-4321-8765-0123456789ab",
    "name": "support-desk-of-a-bike-sharing-firm-7f12c9b8",
    "path": "/srv/data/bike-sharing/handbook/2026/chats.jsonl",
}
"""What people copy, by the field that has it."""
WORDS = {
    "node": "trainer-of-the-second-stage", "type": "ai_generator", "job": "bike-desk-7f12c9b8", "version": "0.13.0",
    "role": "support-desk", "tenant": "city-bikes", "template": "alignment-pipeline", "metric": "eval_loss",
    "run": "bike-desk-7f12c9b8", "sha256": "9f86d081884c7d659a2feaa0c55ad015", "digest": "9f86d081884c7d65",
    "bucket": "engineering-review", "backend": "deepspeed", "key": "dataset.field_messages.content", "set": "unseen",
    "run_name": "bike-desk-nightly", "model": "starter", "renderer": "chatml", "primary": "loss/answers",
    "checkpoint": "step-0000000120", "stage": "distill", "method": "lora_plus", "file": "chains/desk.yaml",
    "author": "operator", "base_model": "models/starter-5m", "mode": "resume",
    "trainer": "trainer-2", "basis": "steps", "loss": "sigmoid_norm",
}  # fmt: skip
"""Words whose own rules keep them short."""


FIXED = {"best_chain": "", "body": {"nodes": []}}
"""Values that stand outside the tables, of which another text or a library would be made."""


class AnyKeys(dict[str, Any]):
    """A record that has every key: a type says nothing of the keys of a `dict[str, Any]`."""

    def __missing__(self, key: str) -> str:
        return WORDS.get(key, PROSE)


@dataclasses.dataclass(frozen=True)
class WideSamples:
    """Makes a wide value of a type: flags are all true or all false, what may be absent is all there or all absent."""

    flags: bool
    full: bool
    empty: frozenset[str] = frozenset()
    """Names of lists that are empty."""

    def answer(self, operation: str) -> Any:
        return self.value(get_type_hints(load_implementation(operation))["return"])

    def value(self, kind: Any, name: str = "") -> Any:
        """Return a value of a type; `name` is that of its field."""
        origin, parts = get_origin(kind), get_args(kind)
        if name in FIXED:
            return FIXED[name]
        if origin is Annotated or isinstance(kind, TypeVar):
            return self.value(parts[0] if parts else str, name)
        if origin in (Union, types.UnionType):
            return self.optional(parts, name)
        if origin is Literal:
            return max(parts, key=lambda part: len(str(part)))
        if origin is not None and issubclass(origin, Mapping):
            return self.mapping(parts, name)
        if origin is tuple and Ellipsis not in parts:
            return tuple(self.value(part, name) for part in parts)
        if origin is not None and issubclass(origin, Sequence):
            count = 0 if name in self.empty else 2
            return tuple(self.value(parts[0], name.removesuffix("s")) for _ in range(count))
        return self.leaf(kind, name)

    def optional(self, parts: Sequence[Any], name: str) -> Any:
        absent = type(None) in parts and not self.full
        return None if absent else self.value(next(part for part in parts if part is not type(None)), name)

    def mapping(self, parts: Sequence[Any], name: str) -> Any:
        if parts[1] is Any or parts[1] is str:
            return AnyKeys(first=PROSE, time="1795900000", tenant="city-bikes", role="support-desk", version="12")
        keys = [*parts[0]][:3] if isinstance(parts[0], type) and issubclass(parts[0], Enum) else ["first", "second"]
        return {key: self.value(parts[1], str(key)) for key in keys}

    def leaf(self, kind: Any, name: str) -> Any:
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            fields = kind.model_fields
            return kind.model_construct(**{key: self.value(field.annotation, key) for key, field in fields.items()})
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            hints = get_type_hints(kind)
            return kind(**{field.name: self.value(hints[field.name], field.name) for field in dataclasses.fields(kind)})
        if isinstance(kind, type) and issubclass(kind, Enum):
            return max(kind, key=lambda member: len(str(member.value)))
        if kind is Path:
            return Path(COPIED["path"])
        values: dict[Any, Any] = {
            Decimal: Decimal("1234567.891234"),
            int: 1_234_567,
            float: 1_234_567.891234,
            bool: self.flags,
            Any: 12.5,
        }
        return values[kind] if kind in values else COPIED.get(name) or WORDS.get(name) or PROSE


VARIANTS = (
    *(WideSamples(flags, full) for flags in (True, False) for full in (True, False)),
    WideSamples(flags=False, full=True, empty=frozenset({"sides", "rows"})),
)
