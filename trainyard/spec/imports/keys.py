"""What a key of another tool's config means for a chain: converters, from which each tool's table is made.

A row of a table is `key: (converter, test value)`. A converter takes the key's value and the whole config, and answers
with our settings, with a note, or with a refusal; no key goes without an answer. Our settings are dotted:
`hyperparameters.learning_rate` is below a trainer's config, `data_source.path` below that of its data source.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

Read = Callable[[Any], Any]
ABSENT: tuple[Any, ...] = (None, False, "", (), [], {})
"""Values by which configs say that a feature is off."""
INTEGER = re.compile(r"[-+]?\d[\d_]*\Z")
WORDS_OF_FLAGS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}
"""Words that YAML 1.1, which the tools read, takes as booleans."""
SHOWN_CHARS = 60


class KeyStatus(StrEnum):
    """What became of a key."""

    MAPPED = "mapped"
    """The chain says the same, by a setting or by what Trainyard does anyway."""
    NOTED = "noted"
    """The chain does not need it, or says it with a difference; the reason is given."""
    DEFAULT = "default"
    """The config leaves it out; the chain has what the tool does then."""
    REFUSED = "refused"
    """A chain that left it out would train something else."""


@dataclass(frozen=True)
class KeyAnswer:
    """What a chain makes of one key."""

    status: KeyStatus
    settings: Mapping[str, Any] = field(default_factory=dict)
    because: str = ""
    do: str = ""
    code: str = "E-IMPORT-KEY"


@dataclass(frozen=True)
class Config:
    """A config of a tool: its value as read, and the settings that were given by `--set`."""

    value: Mapping[str, Any]
    overrides: Mapping[str, Any] = field(default_factory=dict)
    data_sets: Mapping[str, Any] | None = None
    """Name -> entry of the tool's own list of data sets; None where there is no such file."""
    family: str | None = None
    """`model_type` of the base, where its folder is here."""

    def get(self, key: str, default: Any = None) -> Any:
        """The value at a dotted key; the default where there is none or null."""
        found: Any = self.value
        for part in key.split("."):
            if not isinstance(found, Mapping) or part not in found:
                return default
            found = found[part]
        return default if found is None else found

    @property
    def processes(self) -> int:
        """Processes of the training, which no config says: its launcher is given them."""
        found = self.overrides.get("launch.processes", 1)
        return found if isinstance(found, int) else 1

    def listed(self, key: str) -> list[Mapping[str, Any]]:
        """The mappings in the list at a key."""
        found = self.get(key, [])
        return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


@dataclass(frozen=True)
class KeyConverter:
    """One key's meaning; `ours` names the setting that replaces it when it is given by `--set`."""

    ours: str
    convert: Callable[[Any, Config], KeyAnswer]


class WrongValue(ValueError):
    """A value is not of the kind that the key has in the tool."""


Table = Mapping[str, tuple[KeyConverter, Any]]


@dataclass(frozen=True)
class Occurrence:
    """One key as it is written: `datasets[0].path`, which the table has as `datasets[].path`."""

    written: str
    key: str
    value: Any


def occurrences(value: Any, written: str = "", key: str = "") -> Iterator[Occurrence]:
    """Every leaf of a config. A list of mappings is entered, any other list is one value."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            dot = "." if written else ""
            yield from occurrences(inner, f"{written}{dot}{name}", f"{key}{dot}{name}")
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        for index, inner in enumerate(value):
            yield from occurrences(inner, f"{written}[{index}]", f"{key}[]")
    else:
        yield Occurrence(written, key, value)


# Readers of values


def number(given: Any) -> int | float:
    """A number; also one that YAML 1.1 reads as a text, such as '1e-4'."""
    if isinstance(given, str):
        with contextlib.suppress(ValueError):
            given = float(given.replace("_", ""))
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise WrongValue("a number")
    return given


def integer(given: Any) -> int:
    if isinstance(given, str) and INTEGER.match(given):
        given = int(given.replace("_", ""))
    if isinstance(given, float) and given.is_integer():
        given = int(given)
    if isinstance(given, bool) or not isinstance(given, int):
        raise WrongValue("a whole number")
    return given


def flag(given: Any) -> bool:
    word = WORDS_OF_FLAGS.get(given.lower()) if isinstance(given, str) else given
    if not isinstance(word, bool):
        raise WrongValue("true or false")
    return word


def text(given: Any) -> str:
    if not isinstance(given, str) or not given.strip():
        raise WrongValue("a text")
    return given.strip()


def texts(given: Any) -> list[str]:
    """A list of texts, or one text with commas."""
    found = given.split(",") if isinstance(given, str) else given
    if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
        raise WrongValue("a list of texts")
    return [one.strip() for one in found if one.strip()]


def describe(given: Any) -> str:
    """A value, short enough for a line."""
    shown = "null" if given is None else repr(given) if not isinstance(given, bool) else str(given).lower()
    return shown if len(shown) <= SHOWN_CHARS else f"{shown[:SHOWN_CHARS]}…"


# Answers


def mapped(settings: Mapping[str, Any] | None = None, because: str = "") -> KeyAnswer:
    return KeyAnswer(KeyStatus.MAPPED, settings or {}, because)


def noted(because: str, settings: Mapping[str, Any] | None = None) -> KeyAnswer:
    return KeyAnswer(KeyStatus.NOTED, settings or {}, because)


def refused(because: str, do: str) -> KeyAnswer:
    return KeyAnswer(KeyStatus.REFUSED, because=because, do=do)


# Converters


def to(ours: str, read: Read, *, absent: Sequence[Any] = (None,)) -> KeyConverter:
    """The key's value as our setting; a value in `absent` is the tool's way to say nothing."""

    def convert(given: Any, _config: Config) -> KeyAnswer:
        if given in absent:
            return mapped(because="Left out, here as there.")
        return mapped({ours: read(given)})

    return KeyConverter(ours, convert)


def word(ours: str, words: Mapping[Any, Any], *, notes: Mapping[Any, tuple[Any, str]] | None = None) -> KeyConverter:
    """A word of theirs as ours; `notes` has words that come close, with the difference."""

    def convert(given: Any, _config: Config) -> KeyAnswer:
        plain = given.lower().strip() if isinstance(given, str) else given
        if plain is None or isinstance(plain, list | dict):
            if plain is None:
                return mapped(because="Left out, here as there.")
            raise WrongValue("a word")
        if plain in words:
            found = words[plain]
            return mapped({ours: found}) if found is not None else mapped(because="What a chain does anyway.")
        if notes and plain in notes:
            ours_word, why = notes[plain]
            return noted(why, {ours: ours_word} if ours_word is not None else {})
        allowed = ", ".join(dict.fromkeys(str(one) for one in words.values() if one is not None))
        return refused(
            f"There is no {describe(given)} here.", f"Give one of Trainyard's words: --set {ours}=…, of {allowed}."
        )

    return KeyConverter(ours, convert)


def switch(on: KeyAnswer, off: KeyAnswer | None = None, *, ours: str = "") -> KeyConverter:
    """A flag; null is off."""

    def convert(given: Any, _config: Config) -> KeyAnswer:
        return on if given is not None and flag(given) else off or mapped(because="Off, as in a chain without it.")

    return KeyConverter(ours, convert)


def always(because: str, *, ours: str = "") -> KeyConverter:
    """What a chain does anyway, whatever the value."""
    return KeyConverter(ours, lambda _given, _config: mapped(because=because))


def carried(ours: str, read: Read | None = None) -> KeyConverter:
    """A key that the tool's own functions for data and axes read."""

    def convert(given: Any, _config: Config) -> KeyAnswer:
        if given is not None and read is not None:
            read(given)
        return mapped(because=f"In {ours}.")

    return KeyConverter(ours, convert)


def column_of(field_name: str, *usual: str) -> KeyConverter:
    """A column of the rows: under a usual name as it is, under another by `columns` of the data source."""

    def convert(given: Any, _config: Config) -> KeyAnswer:
        if given is None or text(given) in usual:
            return mapped(because="A name of a field that is known.")
        return mapped(because=f"In data_source.columns, as {field_name}.")

    return KeyConverter("data_source.columns", convert)


def note(because: str, *, unless: Sequence[Any] = (None,)) -> KeyConverter:
    """A key that a chain does not need; in `unless` are the values that agree with a chain without it."""

    def convert(given: Any, _config: Config) -> KeyAnswer:
        return mapped(because="Off, as in a chain without it.") if among(given, unless) else noted(because)

    return KeyConverter("", convert)


def off_with(switch_key: str, on: KeyConverter) -> KeyConverter:
    """A key of a feature that another key switches off there, so that it says nothing."""

    def convert(given: Any, config: Config) -> KeyAnswer:
        if config.get(switch_key) in ABSENT:
            return mapped(because=f"Without {switch_key} it says nothing, here as there.")
        return on.convert(given, config)

    return KeyConverter(on.ours, convert)


def refuse(because: str, do: str, *, unless: Sequence[Any] = ABSENT, ours: str = "") -> KeyConverter:
    """A key without which something else would be trained; in `unless` are the values that switch it off."""

    def convert(given: Any, _config: Config) -> KeyAnswer:
        return mapped(because="Off, as in a chain without it.") if among(given, unless) else refused(because, do)

    return KeyConverter(ours, convert)


def agrees(because: str, values: Sequence[Any], otherwise: KeyAnswer, *, ours: str = "") -> KeyConverter:
    """A key of which some values are what a chain does anyway; another value has the other answer."""

    def convert(given: Any, _config: Config) -> KeyAnswer:
        return mapped(because=because) if given is None or among(given, values) else otherwise

    return KeyConverter(ours, convert)


def among(given: Any, values: Sequence[Any]) -> bool:
    """Whether a value is one of some, where 0 is not False."""
    return any(given == one and isinstance(given, bool) == isinstance(one, bool) for one in values)


def steps_of_warmup() -> KeyConverter:
    """Steps of warmup; 0, or a value below 1, is a share, as transformers reads it."""
    ours = "hyperparameters.warmup_steps"

    def convert(given: Any, _: Config) -> KeyAnswer:
        if given is None:
            return mapped(because="Left out, here as there.")
        count = number(given)
        return mapped({"hyperparameters.warmup_ratio": count} if 0 < count < 1 else {ours: integer(given)})

    return KeyConverter(ours, convert)


def each(converter: KeyConverter, example: Any, *keys: str) -> dict[str, tuple[KeyConverter, Any]]:
    """One row for some keys."""
    return dict.fromkeys(keys, (converter, example))


def rows_below(table: Table, group: str) -> dict[str, tuple[KeyConverter, Any]]:
    """The rows of a table for a tool that has its keys in a group: `training.learning_rate`."""
    return {f"{group}.{key}": row for key, row in table.items()}
