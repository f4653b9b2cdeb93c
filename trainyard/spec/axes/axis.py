"""A value of an axis that carries its row: every torch-free fact of the value, in the line that names it.

To add a value: a row in the module of its axis, a function in the code table of the room that carries it out, a test.
Where values have settings of their own, a row names the model of them, and the axis is written as one of its variants:
`method: {type: lora, rank: 16}`, or the bare word for the defaults.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypeVar, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model
from pydantic_core import PydanticKnownError

MainInt = Annotated[int, Field(json_schema_extra={"main": True})]
MainFloat = Annotated[float, Field(json_schema_extra={"main": True})]
"""A field that a form shows at once, while it folds the others of its group away."""


class Strict(BaseModel):
    """A misspelt key is an error here, never a silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


@dataclass(frozen=True)
class Facts:
    """A row: the name of a value, and its facts."""

    word: str


class AxisValue(StrEnum):
    """The word that users write, with `facts`. A module declares the type of its facts in its subclass."""

    facts: Any

    def __new__(cls, facts: Any) -> Self:
        """Build a member of `NAME = facts`; the call `Axis(word)` looks a member up."""
        member = str.__new__(cls, facts.word)
        member._value_ = facts.word
        member.facts = facts
        return member


def omit_default(default: Any, **settings: Any) -> Any:
    """Return a field that is not written while it has its default, so that a spec that does not use it keeps its
    digest.
    """
    return Field(default, exclude_if=lambda value: value == default, **settings)


class Variant(Strict):
    """The settings of one value of an axis, which `type` names. In a text it is the word of that value."""

    type: AxisValue

    def __str__(self) -> str:
        return self.type.value


Value = TypeVar("Value", bound=AxisValue)


def build_variants(axis: Iterable[Value], noun: str) -> dict[Value, Any]:
    """Value -> the model of its settings: that of its row, whose `type` is one of the values with this row's model."""
    values: dict[type[Variant], list[Value]] = {}
    for value in axis:
        values.setdefault(value.facts.settings, []).append(value)
    models: dict[Value, Any] = {}
    for settings, names in values.items():
        name = settings.__name__.replace("Settings", noun)
        types: Any = Literal[tuple(names)]
        model = create_model(name, __base__=settings, __doc__=settings.__doc__, type=(types, ...))
        models |= dict.fromkeys(names, model)
    return models


def build_union(variants: Mapping[Any, type[Variant]], usual: AxisValue) -> object:
    """Return the annotation of a setting that is one of the variants, distinguished by `type`.

    A bare word means its defaults. Settings without a `type` are those of the usual value.
    """
    names = [value.value for value in variants]

    def spell_out(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {"type": usual, **value}
        if not isinstance(value, str):
            return value
        if value not in names:
            *first, last = map(repr, names)
            raise PydanticKnownError("enum", {"expected": f"{', '.join(first)} or {last}"})
        return {"type": value}

    tagged: object = Annotated[Union[tuple(dict.fromkeys(variants.values()))], Field(discriminator="type")]  # noqa: UP007
    return Annotated[tagged, BeforeValidator(spell_out, json_schema_input_type=type(usual) | tagged)]
