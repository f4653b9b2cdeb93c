"""A config of another tool as a chain: every key gets an answer, and the answers make the chain."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from trainyard.errors import InvalidInput, Reason, Refused
from trainyard.spec.axes.methods import METHOD_SETTINGS
from trainyard.spec.axes.stages import STAGE_SETTINGS, Stage
from trainyard.spec.chain import ChainSpec
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
from trainyard.spec.imports.places import DataPlace, assemble_source
from trainyard.spec.load.changes import flatten_settings
from trainyard.spec.load.files import read_chain

AXES = ("stage", "method")
DEPENDENT = ("stage.", "method.", "eval.", "engine.")
"""Settings that only some stages, methods or backends read."""


@dataclass(frozen=True)
class ConfigTool:
    """One tool whose configs are read."""

    title: str
    marks: tuple[str, ...]
    """Dotted keys that show that a config is this tool's; `*` at its end matches any key that begins so."""
    keys: Table
    """Key -> converter and a test value; `group.*` answers for all keys of a group."""
    axes: Callable[[Config], Mapping[str, Any]]
    """Stage, method and what else more than one key decides."""
    places: Callable[[Config], Sequence[DataPlace]]
    """The data sets."""
    purpose: Callable[[Config], str]
    """What a config is for that is not a training's; else empty."""
    defaults: Sequence[Absent] = ()
    """What the tool does where the config says nothing."""


@dataclass(frozen=True)
class KeyResult:
    """What became of one key."""

    key: str
    value: Any
    status: KeyStatus
    ours: str
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
    value: Mapping[str, Any]
    """The chain as it is written."""
    notes: tuple[str, ...]
    defaults: tuple[KeyResult, ...] = ()
    """Keys that the config leaves out, with what the tool does then."""

    @property
    def refusals(self) -> tuple[KeyResult, ...]:
        return tuple(one for one in (*self.keys, *self.defaults) if one.status is KeyStatus.REFUSED)

    def count(self, status: KeyStatus) -> int:
        return sum(one.status is status for one in (*self.keys, *self.defaults))


def import_config(
    value: Any,
    name: str,
    tool: tuple[str, ConfigTool],
    overrides: Mapping[str, Any],
    without: Sequence[str] = (),
    *,
    data_sets: Mapping[str, Any] | None = None,
    family: str | None = None,
) -> Imported:
    """Read a config as a chain called `name`; `data_sets` is the tool's own list of them, from the file next to it.

    `family` is the `model_type` of a base whose folder is here.

    Raises `InvalidInput` (`E-IMPORT-TOOL`) for a config of something else, (`E-IMPORT-KEY`) for a key in `without`
    that is not there.
    """
    word, known = tool
    given = flat_overrides(overrides)
    config = Config(leave_out(value, without), given, data_sets, family)
    if purpose := known.purpose(config):
        raise InvalidInput(
            f"This is {purpose} of {known.title}.", why="Trainings are imported.", do="Name the config of a training.",
            code="E-IMPORT-TOOL",
        )  # fmt: skip
    answers = [(one, *answer(one, known, config)) for one in occurrences(config.value)]
    settings, used = merge_settings(known, config, (found for _, _, found in answers))
    results = [result_of(*one, settings) for one in answers]
    defaults = [line for row, found in used if (line := default_result(row, found, known, settings))]
    chain_value, notes, extra = build_chain(known, config, settings, name)
    chain = None
    if not any(one.status is KeyStatus.REFUSED for one in (*results, *extra, *defaults)):
        chain, reasons = read_chain(chain_value)
        results = blame_keys(results, reasons, answers)
        extra += [reason_result(reason) for reason in reasons if not blamed(reason, answers)]
    failed = any(one.status is KeyStatus.REFUSED for one in (*results, *extra, *defaults))
    return Imported(word, (*results, *extra), None if failed else chain, chain_value, tuple(notes), tuple(defaults))


# Keys


def answer(found: Occurrence, tool: ConfigTool, config: Config) -> tuple[KeyConverter | None, KeyAnswer]:
    row = find_row(found.key, tool.keys)
    if row is None:
        near = difflib.get_close_matches(found.key, tool.keys, n=1, cutoff=0.75)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        because = f"It is not a key of {tool.title} that is known here.{hint}"
        do = f"Correct it, or leave it out by --without {found.written}."
        return None, KeyAnswer(KeyStatus.REFUSED, {}, because, do)
    try:
        given = row.convert(found.value, config)
    except WrongValue as error:
        because = f"{describe(found.value)} is not {error}."
        given = KeyAnswer(KeyStatus.REFUSED, {}, because, "Correct the value.", "E-IMPORT-VALUE")
    if given.status is KeyStatus.REFUSED and row.ours and overridden(row.ours, config.overrides):
        given = KeyAnswer(KeyStatus.MAPPED, {}, "Given by --set.")
    return row, given


def find_row(key: str, table: Table) -> KeyConverter | None:
    """The converter of a key, or else that of the nearest group."""
    if key in table:
        return table[key][0]
    parts = re.split(r"(?=\.|\[\])", key)
    for end in range(len(parts) - 1, 0, -1):
        if (group := f"{''.join(parts[:end])}.*") in table:
            return table[group][0]
    return None


def overridden(ours: str, overrides: Mapping[str, Any]) -> bool:
    """Whether a setting was given by `--set`: itself, one below it, or the whole axis."""
    return any(key == ours or key.startswith(f"{ours}.") for key in overrides)


def leave_out(value: Any, without: Sequence[str]) -> dict[str, Any]:
    """The config without some keys. Raises `InvalidInput` (`E-IMPORT-KEY`) for one that is not there."""
    if not isinstance(value, Mapping):
        raise InvalidInput(
            "The config is not a mapping.", do="Name a config of one of the tools.", code="E-IMPORT-TOOL"
        )
    found = dict(value)
    for key in without:
        left = drop_key(found, re.split(r"\.|\[|\]\.?", key.rstrip("]")))
        if left is None:
            raise InvalidInput(f"There is no key {key!r}.", do="--report lists the keys.", code="E-IMPORT-KEY")
        found = left
    return found


def drop_key(value: Any, parts: Sequence[str]) -> Any:
    """A copy without what is at a path; None where nothing is. An empty part is every item of a list."""
    first, *rest = parts
    if isinstance(value, list):
        chosen = [index for index in range(len(value)) if first in ("", str(index))]
        if not rest:
            return [one for index, one in enumerate(value) if index not in chosen] if chosen else None
        changed = {index: drop_key(value[index], rest) for index in chosen}
        if all(one is None for one in changed.values()):
            return None
        return [one if changed.get(index) is None else changed[index] for index, one in enumerate(value)]
    if not isinstance(value, Mapping) or first not in value:
        return None
    if not rest:
        return {key: one for key, one in value.items() if key != first}
    left = drop_key(value[first], rest)
    return None if left is None else {**value, first: left}


def result_of(found: Occurrence, row: KeyConverter | None, given: KeyAnswer, settings: Mapping[str, Any]) -> KeyResult:
    """The line of a key; one whose setting the stage or method does not have is noted."""
    ours = ", ".join(given.settings) or (row.ours if row and given.status is KeyStatus.MAPPED else "")
    lost = [one.split(".")[0] for one in given.settings if one not in settings and one.startswith(DEPENDENT)]
    if lost and given.status is KeyStatus.MAPPED:
        kind = settings.get(f"{lost[0]}.type")
        because = f"The {lost[0]} {kind} does not read it, here as there." if kind else "No rows are held out for it."
        because = f"The {settings.get('backend')} backend has no such setting." if lost[0] == "engine" else because
        return KeyResult(found.written, found.value, KeyStatus.NOTED, "", given.because or because)
    code = given.code if given.status is KeyStatus.REFUSED else ""
    return KeyResult(found.written, found.value, given.status, ours, given.because, given.do, code)


# Settings


def flat_overrides(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """`--set` as dotted settings; `stage=dpo` is `stage.type=dpo`."""
    flat = flatten_settings(overrides)
    return {f"{key}.type" if key in AXES else key.removeprefix("trainer."): value for key, value in flat.items()}


def default_result(row: Absent, found: Any, tool: ConfigTool, settings: Mapping[str, Any]) -> KeyResult | None:
    """The line of a key that is left out; None where the stage or method does not read it."""
    if isinstance(found, KeyAnswer):
        return KeyResult(
            row.key, None, KeyStatus.REFUSED, row.ours, f"Left out. {found.because}", found.do, "E-IMPORT-KEY"
        )
    if row.ours not in settings:
        return None
    because = row.because or f"{tool.title}'s own, which the file leaves out."
    return KeyResult(row.key, found, KeyStatus.DEFAULT, row.ours, because)


def merge_settings(
    tool: ConfigTool, config: Config, answers: Iterable[KeyAnswer]
) -> tuple[dict[str, Any], list[tuple[Absent, Any]]]:
    """Our settings, those of the keys over the tool's defaults and `--set` over both, and the defaults used."""
    found: dict[str, Any] = {}
    for one in answers:
        for key, value in one.settings.items():
            both = key == "engine.trackers" and key in found
            found[key] = [*dict.fromkeys([*found[key], *value])] if both else value
    settings = {**found, **tool.axes(config), **config.overrides}
    defaults, used = read_absent(tool.defaults, config, settings)
    settings = {**defaults, **settings}
    if "hyperparameters.max_steps" in settings and "hyperparameters.epochs" not in found:
        settings.pop("hyperparameters.epochs", None)
    if not settings.keys() & {"eval.share", "eval.set"}:  # no rows are held out, so nothing is evaluated
        settings = {key: value for key, value in settings.items() if not key.startswith("eval.")}
    return {key: value for key, value in settings.items() if is_read(key, settings)}, used


def is_read(key: str, settings: Mapping[str, Any]) -> bool:
    """Whether the stage or method that was chosen has a setting. One that is given by `--set` is judged later."""
    axis, _, name = key.partition(".")
    if axis == "engine":
        return bool(settings.get("backend", "native") == "native")
    axes: dict[str, Mapping[Any, type[BaseModel]]] = {"stage": STAGE_SETTINGS, "method": METHOD_SETTINGS}
    kind = settings.get(f"{axis}.type")
    model = next((model for value, model in axes.get(axis, {}).items() if value.value == kind), None)
    return model is None or name.split(".")[0] in model.model_fields


def build_chain(
    tool: ConfigTool, config: Config, settings: Mapping[str, Any], name: str
) -> tuple[dict[str, Any], list[str], list[KeyResult]]:
    """The chain as it is written, notes on its data, and what is missing."""
    places, stage = tool.places(config), settings["stage.type"]
    known = next((one for one in Stage if one.value == stage), Stage.SFT)
    notes, extra, source = [], [], {}
    try:
        source = assemble_source(places, known, settings)
    except ValueError:
        because = "The config names no data set that can be read here."
        do = "Give it: --set data_source.path=FILE."
        extra.append(KeyResult("(data)", None, KeyStatus.REFUSED, "", because, do, "E-IMPORT-KEY"))
    named = any(f"data_source.{place}" in config.overrides for place in ("path", "url", "repository", "hub"))
    if not named and not {"hub", "mix"} & source.keys():
        notes += [
            f"{one.name} is a data set of the Hub. Download it by `{one.hint}`, or name your file: "
            "--set data_source.path=FILE."
            for one in dict.fromkeys(places) if one.on_hub
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


def nest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted settings as groups, axes first; a stage or method without settings as its word."""
    found: dict[str, Any] = {"stage": {}, "method": {}, "base_model": None}
    for key, value in settings.items():
        *groups, last = key.split(".")
        place = found
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    for axis in AXES:
        kind = {"type": found[axis].pop("type", None), **found[axis]}
        found[axis] = kind if len(kind) > 1 else kind["type"]
    return {key: value for key, value in found.items() if value is not None}


# Reasons against the chain, at the keys that they are about


def setting_of(reason: Reason) -> str:
    field_name = reason.field.removeprefix("config.")
    return f"{field_name}.type" if field_name in AXES else field_name


def blamed(reason: Reason, answers: Iterable[tuple[Occurrence, KeyConverter | None, KeyAnswer]]) -> bool:
    return any(setting_of(reason) in one.settings for _, _, one in answers)


def blame_keys(
    results: Sequence[KeyResult], reasons: Sequence[Reason],
    answers: Sequence[tuple[Occurrence, KeyConverter | None, KeyAnswer]],
) -> list[KeyResult]:  # fmt: skip
    """The results with the reasons of the chain at the keys that gave the settings."""
    by_setting = {setting_of(reason): reason for reason in reasons}
    found = []
    for result, (_, _, given) in zip(results, answers, strict=True):
        reason = next((by_setting[one] for one in given.settings if one in by_setting), None)
        found.append(
            result if reason is None else replace(
                result, status=KeyStatus.REFUSED, code="E-IMPORT-VALUE", because=reason.because,
                do=f"{reason.instead} Or --set {setting_of(reason)}=…",
            )
        )  # fmt: skip
    return found


def reason_result(reason: Reason) -> KeyResult:
    return KeyResult(
        reason.field or "(chain)", None, KeyStatus.REFUSED, "", reason.because, reason.instead, reason.code
    )


def refuse_import(found: Imported) -> Refused:
    """The refusals of a config as one error."""
    return Refused([one.reason for one in found.refusals])
