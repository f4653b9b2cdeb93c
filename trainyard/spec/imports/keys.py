"""Converters of the keys of another tool's config: converters, from which each tool's table is made.

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

from trainyard.json_types import JsonMapping

Read = Callable[[Any], Any]
ABSENT: tuple[Any, ...] = (None, False, "", (), [], {})
"""Values by which configs say that a feature is off."""
INTEGER = re.compile(r"[-+]?\d[\d_]*\Z")
WORDS_OF_FLAGS = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}
"""Words that YAML 1.1, which the tools read, takes as booleans."""
SHOWN_CHARS = 60


class KeyStatus(StrEnum):
    """Status of a key."""

    MAPPED = "mapped"
    """The chain says the same, by a setting or by what Trainyard does anyway."""
    NOTED = "noted"
    """The chain does not need it, or says it with a difference; the reason is given."""
    DEFAULT = "default"
    """The config leaves it out; the chain has the tool's default."""
    REFUSED = "refused"
    """A chain that left it out would train something else."""


@dataclass(frozen=True)
class KeyAnswer:
    """Answer of a converter to one key."""

    status: KeyStatus
    settings: JsonMapping = field(default_factory=dict)
    because: str = ""
    do: str = ""
    code: str = "E-IMPORT-KEY"


@dataclass(frozen=True)
class Config:
    """A config of a tool: its value as read, and the settings that were given by `--set`."""

    value: JsonMapping
    overrides: JsonMapping = field(default_factory=dict)
    data_sets: JsonMapping | None = None
    """Name -> entry of the tool's own list of data sets; None where there is no such file."""
    family: str | None = None
    """`model_type` of the base, where its folder is here."""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value at a dotted key; the default where there is none or null."""
        value: Any = self.value
        for part in key.split("."):
            if not isinstance(value, Mapping) or part not in value:
                return default
            value = value[part]
        return default if value is None else value

    @property
    def processes(self) -> int:
        """Processes of the training, which no config says: its launcher is given them."""
        count = self.overrides.get("launch.processes", 1)
        return count if isinstance(count, int) else 1

    def listed(self, key: str) -> list[JsonMapping]:
        """Return the mappings in the list at a key."""
        entries = self.get(key, [])
        return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


@dataclass(frozen=True)
class KeyConverter:
    """Converter of a key; `setting` names the one that replaces it when it is given by `--set`."""

    setting: str
    convert: Callable[[Any, Config], KeyAnswer]


class WrongValue(ValueError):
    """A value is not of the kind that the key has in the tool."""


Table = Mapping[str, tuple[KeyConverter, Any]]


@dataclass(frozen=True)
class Occurrence:
    """A key as it is written: `datasets[0].path`, which the table has as `datasets[].path`."""

    written: str
    key: str
    value: Any


def occurrences(value: object, written: str = "", key: str = "") -> Iterator[Occurrence]:
    """Yield every leaf of a config. A list of mappings is entered, any other list is one value."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            dot = "." if written else ""
            yield from occurrences(inner, f"{written}{dot}{name}", f"{key}{dot}{name}")
    elif isinstance(value, list) and any(isinstance(value, Mapping) for value in value):
        for index, inner in enumerate(value):
            yield from occurrences(inner, f"{written}[{index}]", f"{key}[]")
    else:
        yield Occurrence(written, key, value)


# Readers of values


def number(value: Any) -> int | float:
    """Return a number; also one that YAML 1.1 reads as a text, such as '1e-4'."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value.replace("_", ""))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WrongValue("a number")
    return value


def integer(value: Any) -> int:
    if isinstance(value, str) and INTEGER.match(value):
        value = int(value.replace("_", ""))
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise WrongValue("a whole number")
    return value


def flag(value: Any) -> bool:
    word = WORDS_OF_FLAGS.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(word, bool):
        raise WrongValue("true or false")
    return word


def require_text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise WrongValue("a text")
    return value.strip()


def require_texts(value: Any) -> list[str]:
    """Return a list of texts, or one text with commas."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
        raise WrongValue("a list of texts")
    return [item.strip() for item in items if item.strip()]


def describe(value: Any) -> str:
    """Return a value, short enough for a line."""
    text = "null" if value is None else repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]}…"


# Answers


def assign(settings: JsonMapping | None = None, because: str = "") -> KeyAnswer:
    return KeyAnswer(KeyStatus.MAPPED, settings or {}, because)


def remark(because: str, settings: JsonMapping | None = None) -> KeyAnswer:
    return KeyAnswer(KeyStatus.NOTED, settings or {}, because)


def reject(because: str, do: str) -> KeyAnswer:
    return KeyAnswer(KeyStatus.REFUSED, because=because, do=do)


# Converters


def to(setting: str, read: Read, *, absent: Sequence[Any] = (None,)) -> KeyConverter:
    """Return the key's value as our setting; a value in `absent` is the tool's way to say nothing."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        if value in absent:
            return assign(because="Left out, here as there.")
        return assign({setting: read(value)})

    return KeyConverter(setting, convert)


def map_word(
    setting: str, settings_by_word: Mapping[Any, Any], *, notes: Mapping[Any, tuple[Any, str]] | None = None
) -> KeyConverter:
    """Return a word of theirs as ours; `notes` has words that come close, with the difference."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        plain = value.lower().strip() if isinstance(value, str) else value
        if plain is None or isinstance(plain, list | dict):
            if plain is None:
                return assign(because="Left out, here as there.")
            raise WrongValue("a word")
        if plain in settings_by_word:
            setting_value = settings_by_word[plain]
            return (
                assign({setting: setting_value})
                if setting_value is not None
                else assign(because="What a chain does anyway.")
            )
        if notes and plain in notes:
            ours_word, why = notes[plain]
            return remark(why, {setting: ours_word} if ours_word is not None else {})
        allowed = ", ".join(dict.fromkeys(str(value) for value in settings_by_word.values() if value is not None))
        return reject(
            f"There is no {describe(value)} here.", f"Give one of Trainyard's words: --set {setting}=…, of {allowed}."
        )

    return KeyConverter(setting, convert)


def switch(on: KeyAnswer, off: KeyAnswer | None = None, *, setting: str = "") -> KeyConverter:
    """Return a flag; null is off."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        return on if value is not None and flag(value) else off or assign(because="Off, as in a chain without it.")

    return KeyConverter(setting, convert)


def accept(because: str, *, setting: str = "") -> KeyConverter:
    """Return what a chain does anyway, whatever the value."""
    return KeyConverter(setting, lambda _value, _config: assign(because=because))


def carry_setting(setting: str, read: Read | None = None) -> KeyConverter:
    """Return a key that the tool's own functions for data and axes read."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        if value is not None and read is not None:
            read(value)
        return assign(because=f"In {setting}.")

    return KeyConverter(setting, convert)


def map_column(field_name: str, *usual: str) -> KeyConverter:
    """Return a column of the rows: under a usual name as it is, under another by `columns` of the data source."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        if value is None or require_text(value) in usual:
            return assign(because="A name of a field that is known.")
        return assign(because=f"In data_source.columns, as {field_name}.")

    return KeyConverter("data_source.columns", convert)


def note(because: str, *, unless: Sequence[Any] = (None,)) -> KeyConverter:
    """Return a key that a chain does not need; in `unless` are the values that agree with a chain without it."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        return assign(because="Off, as in a chain without it.") if is_among(value, unless) else remark(because)

    return KeyConverter("", convert)


def unless_off(switch_key: str, on: KeyConverter) -> KeyConverter:
    """Return a key of a feature that another key switches off there, so that it says nothing."""

    def convert(value: Any, config: Config) -> KeyAnswer:
        if config.get(switch_key) in ABSENT:
            return assign(because=f"Without {switch_key} it says nothing, here as there.")
        return on.convert(value, config)

    return KeyConverter(on.setting, convert)


def refuse(because: str, do: str, *, unless: Sequence[Any] = ABSENT, setting: str = "") -> KeyConverter:
    """Return a key without which something else would be trained; in `unless` are the values that switch it off."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        return assign(because="Off, as in a chain without it.") if is_among(value, unless) else reject(because, do)

    return KeyConverter(setting, convert)


def agrees(because: str, values: Sequence[object], otherwise: KeyAnswer, *, setting: str = "") -> KeyConverter:
    """Return a key of which some values are what a chain does anyway; another value has the other answer."""

    def convert(value: Any, _config: Config) -> KeyAnswer:
        return assign(because=because) if value is None or is_among(value, values) else otherwise

    return KeyConverter(setting, convert)


def is_among(value: Any, values: Sequence[object]) -> bool:
    """Return whether a value is one of some, where 0 is not False."""
    return any(value == candidate and isinstance(value, bool) == isinstance(candidate, bool) for candidate in values)


def steps_of_warmup() -> KeyConverter:
    """Steps of warmup; 0, or a value below 1, is a share, as transformers reads it."""
    setting = "hyperparameters.warmup_steps"

    def convert(value: Any, _: Config) -> KeyAnswer:
        if value is None:
            return assign(because="Left out, here as there.")
        count = number(value)
        return assign({"hyperparameters.warmup_ratio": count} if 0 < count < 1 else {setting: integer(value)})

    return KeyConverter(setting, convert)


def repeat(converter: KeyConverter, example: object, *keys: str) -> dict[str, tuple[KeyConverter, object]]:
    """Return one row for some keys."""
    return dict.fromkeys(keys, (converter, example))


def prefix_rows(table: Table, group: str) -> dict[str, tuple[KeyConverter, object]]:
    """Return the rows of a table for a tool that has its keys in a group: `training.learning_rate`."""
    return {f"{group}.{key}": row for key, row in table.items()}
