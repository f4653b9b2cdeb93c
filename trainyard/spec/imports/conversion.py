"""A config of another tool as a chain: every key gets an answer, and the answers make the chain."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from trainyard.errors import InvalidInput, Reason, Refused
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.methods import METHOD_SETTINGS
from trainyard.spec.axes.stages import STAGE_SETTINGS, Stage
from trainyard.spec.chain import ChainSpec
from trainyard.spec.imports.data_sets import DataPlace, assemble_source
from trainyard.spec.imports.defaults import Absent, read_absent
from trainyard.spec.imports.keys import (
    Config,
    KeyAnswer,
    KeyConverter,
    KeyStatus,
    Occurrence,
    Table,
    WrongValue,
    describe,
    occurrences,
)
from trainyard.spec.load.files import read_chain
from trainyard.spec.model_schema import flatten_settings

AXES = ("stage", "method")
DEPENDENT = ("stage.", "method.", "eval.", "engine.")
"""Settings that only some stages, methods or backends read."""


@dataclass(frozen=True)
class ConfigTool:
    """A tool whose configs are read."""

    title: str
    marks: tuple[str, ...]
    """Dotted keys that show that a config is this tool's; `*` at its end matches any key that begins so."""
    keys: Table
    """Key -> converter and a test value; `group.*` answers for all keys of a group."""
    axes: Callable[[Config], Mapping[str, object]]
    """Stage, method and what else more than one key decides."""
    data_sets: Callable[[Config], Sequence[DataPlace]]
    """The data sets."""
    purpose: Callable[[Config], str]
    """What a config is for that is not a training's; else empty."""
    defaults: Sequence[Absent] = ()
    """Default of the tool for a missing key."""


@dataclass(frozen=True)
class KeyResult:
    """Outcome of one key."""

    key: str
    value: Any
    status: KeyStatus
    setting: str
    because: str
    do: str = ""
    code: str = ""

    @property
    def reason(self) -> Reason:
        return Reason(self.code, None, self.key, self.because, self.do)


@dataclass(frozen=True)
class Imported:
    """A config that was read: what became of its keys, and the chain where none was refused."""

    tool: str
    keys: tuple[KeyResult, ...]
    chain: ChainSpec | None
    value: JsonMapping
    """The chain as it is written."""
    notes: tuple[str, ...]
    defaults: tuple[KeyResult, ...] = ()
    """Missing keys of the config, with the tool's default."""

    @property
    def refusals(self) -> tuple[KeyResult, ...]:
        return tuple(result for result in (*self.keys, *self.defaults) if result.status is KeyStatus.REFUSED)

    def count(self, status: KeyStatus) -> int:
        return sum(result.status is status for result in (*self.keys, *self.defaults))


def import_config(
    value: object,
    name: str,
    tool: tuple[str, ConfigTool],
    overrides: Mapping[str, object],
    without: Sequence[str] = (),
    *,
    data_sets: Mapping[str, object] | None = None,
    family: str | None = None,
) -> Imported:
    """Read a config as a chain called `name`; `data_sets` is the tool's own list of them, from the file next to it.

    `family` is the `model_type` of a base whose folder is here.

    Raises `InvalidInput` (`E-IMPORT-TOOL`) for a config of something else, (`E-IMPORT-KEY`) for a key in `without`
    that is not there.
    """
    word, config_tool = tool
    override_settings = flat_overrides(overrides)
    config = Config(drop_keys(value, without), override_settings, data_sets, family)
    if purpose := config_tool.purpose(config):
        raise InvalidInput(
            f"This is {purpose} of {config_tool.title}.",
            why="Trainings are imported.",
            do="Name the config of a training.",
            code="E-IMPORT-TOOL",
        )
    answers = [(occurrence, *answer(occurrence, config_tool, config)) for occurrence in occurrences(config.value)]
    settings, used = merge_settings(config_tool, config, (key_answer for _, _, key_answer in answers))
    results = [build_result(*parts, settings) for parts in answers]
    defaults = [line for row, value_used in used if (line := default_result(row, value_used, config_tool, settings))]
    chain_value, notes, extra = build_chain(config_tool, config, settings, name)
    chain = None
    if not any(result.status is KeyStatus.REFUSED for result in (*results, *extra, *defaults)):
        chain, reasons = read_chain(chain_value)
        results = blame_keys(results, reasons, answers)
        extra += [reason_result(reason) for reason in reasons if not is_blamed(reason, answers)]
    failed = any(result.status is KeyStatus.REFUSED for result in (*results, *extra, *defaults))
    return Imported(word, (*results, *extra), None if failed else chain, chain_value, tuple(notes), tuple(defaults))


# Keys


def answer(occurrence: Occurrence, tool: ConfigTool, config: Config) -> tuple[KeyConverter | None, KeyAnswer]:
    row = find_row(occurrence.key, tool.keys)
    if row is None:
        near = difflib.get_close_matches(occurrence.key, tool.keys, n=1, cutoff=0.75)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        because = f"It is not a key of {tool.title} that is known here.{hint}"
        do = f"Correct it, or leave it out by --without {occurrence.written}."
        return None, KeyAnswer(KeyStatus.REFUSED, {}, because, do)
    try:
        key_answer = row.convert(occurrence.value, config)
    except WrongValue as error:
        because = f"{describe(occurrence.value)} is not {error}."
        key_answer = KeyAnswer(KeyStatus.REFUSED, {}, because, "Correct the value.", "E-IMPORT-VALUE")
    if key_answer.status is KeyStatus.REFUSED and row.setting and overridden(row.setting, config.overrides):
        key_answer = KeyAnswer(KeyStatus.MAPPED, {}, "Given by --set.")
    return row, key_answer


def find_row(key: str, table: Table) -> KeyConverter | None:
    """Return the converter of a key, or else that of the nearest group."""
    if key in table:
        return table[key][0]
    parts = re.split(r"(?=\.|\[\])", key)
    for end in range(len(parts) - 1, 0, -1):
        if (group := f"{''.join(parts[:end])}.*") in table:
            return table[group][0]
    return None


def overridden(setting: str, overrides: Mapping[str, object]) -> bool:
    """Return whether a setting was given by `--set`: itself, one below it, or the whole axis."""
    return any(key == setting or key.startswith(f"{setting}.") for key in overrides)


def drop_keys(value: Any, without: Sequence[str]) -> JsonObject:
    """Return the config without some keys. Raises `InvalidInput` (`E-IMPORT-KEY`) for one that is not there."""
    if not isinstance(value, Mapping):
        raise InvalidInput(
            "The config is not a mapping.", do="Name a config of one of the tools.", code="E-IMPORT-TOOL"
        )
    config = dict(value)
    for key in without:
        left = drop_key(config, re.split(r"\.|\[|\]\.?", key.rstrip("]")))
        if left is None:
            raise InvalidInput(f"There is no key {key!r}.", do="--report lists the keys.", code="E-IMPORT-KEY")
        config = left
    return config


def drop_key(value: Any, parts: Sequence[str]) -> Any:
    """Return a copy without the value at a path; None where there is none. An empty part is every item of a list."""
    first, *rest = parts
    if isinstance(value, list):
        indexes = [index for index in range(len(value)) if first in ("", str(index))]
        if not rest:
            return [item for index, item in enumerate(value) if index not in indexes] if indexes else None
        changed = {index: drop_key(value[index], rest) for index in indexes}
        if all(item is None for item in changed.values()):
            return None
        return [item if changed.get(index) is None else changed[index] for index, item in enumerate(value)]
    if not isinstance(value, Mapping) or first not in value:
        return None
    if not rest:
        return {key: item for key, item in value.items() if key != first}
    left = drop_key(value[first], rest)
    return None if left is None else {**value, first: left}


def build_result(
    occurrence: Occurrence, row: KeyConverter | None, key_answer: KeyAnswer, settings: Mapping[str, object]
) -> KeyResult:
    """Return the line of a key; one whose setting the stage or method does not have is noted."""
    setting = ", ".join(key_answer.settings) or (row.setting if row and key_answer.status is KeyStatus.MAPPED else "")
    lost = [key.split(".")[0] for key in key_answer.settings if key not in settings and key.startswith(DEPENDENT)]
    if lost and key_answer.status is KeyStatus.MAPPED:
        kind = settings.get(f"{lost[0]}.type")
        because = f"The {lost[0]} {kind} does not read it, here as there." if kind else "No rows are held out for it."
        because = f"The {settings.get('backend')} backend has no such setting." if lost[0] == "engine" else because
        return KeyResult(occurrence.written, occurrence.value, KeyStatus.NOTED, "", key_answer.because or because)
    code = key_answer.code if key_answer.status is KeyStatus.REFUSED else ""
    return KeyResult(
        occurrence.written, occurrence.value, key_answer.status, setting, key_answer.because, key_answer.do, code
    )


# Settings


def flat_overrides(overrides: Mapping[str, object]) -> dict[str, object]:
    """`--set` as dotted settings; `stage=dpo` is `stage.type=dpo`."""
    flat = flatten_settings(overrides)
    return {f"{key}.type" if key in AXES else key.removeprefix("trainer."): value for key, value in flat.items()}


def default_result(row: Absent, value: Any, tool: ConfigTool, settings: Mapping[str, object]) -> KeyResult | None:
    """Return the line of a key that is left out; None where the stage or method does not read it."""
    if isinstance(value, KeyAnswer):
        return KeyResult(
            row.key, None, KeyStatus.REFUSED, row.setting, f"Left out. {value.because}", value.do, "E-IMPORT-KEY"
        )
    if row.setting not in settings:
        return None
    because = row.because or f"{tool.title}'s own, which the file leaves out."
    return KeyResult(row.key, value, KeyStatus.DEFAULT, row.setting, because)


def merge_settings(
    tool: ConfigTool, config: Config, answers: Iterable[KeyAnswer]
) -> tuple[dict[str, object], list[tuple[Absent, object]]]:
    """Return our settings, those of the keys over the tool's defaults and `--set` over both, and the defaults used."""
    merged: JsonObject = {}
    for key_answer in answers:
        for key, value in key_answer.settings.items():
            both = key == "engine.trackers" and key in merged
            merged[key] = [*dict.fromkeys([*merged[key], *value])] if both else value
    settings = {**merged, **tool.axes(config), **config.overrides}
    defaults, used = read_absent(tool.defaults, config, settings)
    settings = {**defaults, **settings}
    if "hyperparameters.max_steps" in settings and "hyperparameters.epochs" not in merged:
        settings.pop("hyperparameters.epochs", None)
    if not settings.keys() & {"eval.share", "eval.set"}:  # no rows are held out, so nothing is evaluated
        settings = {key: value for key, value in settings.items() if not key.startswith("eval.")}
    return {key: value for key, value in settings.items() if is_read(key, settings)}, used


def is_read(key: str, settings: Mapping[str, object]) -> bool:
    """Return whether the stage or method that was chosen has a setting. One that is given by `--set` is judged
    later.
    """
    axis, _, name = key.partition(".")
    if axis == "engine":
        return bool(settings.get("backend", "native") == "native")
    axes: dict[str, Mapping[Any, type[BaseModel]]] = {"stage": STAGE_SETTINGS, "method": METHOD_SETTINGS}
    kind = settings.get(f"{axis}.type")
    model = next((model for value, model in axes.get(axis, {}).items() if value.value == kind), None)
    return model is None or name.split(".")[0] in model.model_fields


def build_chain(
    tool: ConfigTool, config: Config, settings: Mapping[str, object], name: str
) -> tuple[JsonObject, list[str], list[KeyResult]]:
    """Return the chain as it is written, notes on its data, and the missing values."""
    data_sets, stage = tool.data_sets(config), settings["stage.type"]
    stage_value = next((candidate for candidate in Stage if candidate.value == stage), Stage.SFT)
    notes, extra, source = [], [], {}
    try:
        source = assemble_source(data_sets, stage_value, settings)
    except ValueError:
        because = "The config names no data set that can be read here."
        do = "Give it: --set data_source.path=FILE."
        extra.append(KeyResult("(data)", None, KeyStatus.REFUSED, "", because, do, "E-IMPORT-KEY"))
    named = any(f"data_source.{key}" in config.overrides for key in ("path", "url", "repository", "hub"))
    if not named and not {"hub", "mix"} & source.keys():
        notes += [
            f"{data_set.name} is a data set of the Hub. Download it by `{data_set.hint}`, or name your file: "
            "--set data_source.path=FILE."
            for data_set in dict.fromkeys(data_sets) if data_set.on_hub
        ]  # fmt: skip
    if "base_model" not in settings:
        notes.append(
            "The config names no base model that is known here: --set base_model=NAME, or the default is used."
        )
    trainer = nest({key: value for key, value in settings.items() if not key.startswith("data_source.")})
    value = {
        "name": name,
        "description": f"Imported from a config of {tool.title}.",
        "nodes": [{"type": "data_source", "config": source}, {"type": "trainer", "config": trainer}],
    }
    return value, notes, extra


def nest(settings: Mapping[str, object]) -> dict[str, object]:
    """Dotted settings as groups, axes first; a stage or method without settings as its word."""
    nested: JsonObject = {"stage": {}, "method": {}, "base_model": None}
    for key, value in settings.items():
        *groups, last = key.split(".")
        target = nested
        for group in groups:
            target = target.setdefault(group, {})
        target[last] = value
    for axis in AXES:
        kind = {"type": nested[axis].pop("type", None), **nested[axis]}
        nested[axis] = kind if len(kind) > 1 else kind["type"]
    return {key: value for key, value in nested.items() if value is not None}


# Reasons against the chain, at the keys that they are about


def find_setting(reason: Reason) -> str:
    field_name = reason.field.removeprefix("config.")
    return f"{field_name}.type" if field_name in AXES else field_name


def is_blamed(reason: Reason, answers: Iterable[tuple[Occurrence, KeyConverter | None, KeyAnswer]]) -> bool:
    return any(find_setting(reason) in key_answer.settings for _, _, key_answer in answers)


def blame_keys(
    results: Sequence[KeyResult], reasons: Sequence[Reason],
    answers: Sequence[tuple[Occurrence, KeyConverter | None, KeyAnswer]],
) -> list[KeyResult]:  # fmt: skip
    """Return the results with the reasons of the chain at the keys that gave the settings."""
    by_setting = {find_setting(reason): reason for reason in reasons}
    blamed_results = []
    for result, (_, _, key_answer) in zip(results, answers, strict=True):
        reason = next((by_setting[key] for key in key_answer.settings if key in by_setting), None)
        blamed_results.append(
            result if reason is None else replace(
                result, status=KeyStatus.REFUSED, code="E-IMPORT-VALUE", because=reason.because,
                do=f"{reason.instead} Or --set {find_setting(reason)}=…",
            )
        )  # fmt: skip
    return blamed_results


def reason_result(reason: Reason) -> KeyResult:
    return KeyResult(
        reason.field or "(chain)", None, KeyStatus.REFUSED, "", reason.because, reason.instead, reason.code
    )


def refuse_import(imported: Imported) -> Refused:
    """Return the refusals of a config as one error."""
    return Refused([result.reason for result in imported.refusals])
