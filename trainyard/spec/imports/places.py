"""Where the rows of a config are: names of the Hub, files and folders, as one data source."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from trainyard.spec.axes.data import DataFormat, Port
from trainyard.spec.axes.stages import Stage

FOLDER = "data"
"""Folder into which data sets of the Hub are to be downloaded where `hub` cannot name them."""
ROW_FILES = (".jsonl", ".json", ".parquet", ".csv", ".tsv", ".arrow", ".txt", ".gz", ".zst")
HUB_FILES = ("*.parquet", "*.jsonl", "*.json", "*.csv", "*.arrow")
OTHER_SPLITS = ("*test-*", "*test.*", "*validation-*", "*validation.*", "*dataset_info*.json")
FIRST_ROWS = re.compile(r"[\w.-]*\[:(\d+)\]\Z")
SPLIT = re.compile(r"([\w.-]+)(?:\[:\d+\])?\Z")
SPLIT_FILES = re.compile(r"\*([\w.-]+)\*\Z")
"""What `files_of_split` makes of the name of a split."""
NOT_IN_A_NAME = re.compile(r"[^a-z0-9]+")
HUB_NAME = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?\Z")


@dataclass(frozen=True)
class DataPlace:
    """One data set of a config."""

    name: str
    format: str = "auto"
    files: tuple[str, ...] = ()
    """Globs below it; empty: all."""
    max_rows: int | None = None
    local: bool = False
    """Whether it is known to be a file or a folder."""
    subset: str | None = None
    """Of a data set of the Hub: its config."""
    columns: tuple[tuple[str, str], ...] = ()
    """(field of a row here, column of the set) of each column that is read; empty: by their usual names."""

    def with_columns(self, columns: Mapping[str, str]) -> DataPlace:
        """The place with columns under names of its own, whose fields then say what the rows are."""
        kept = self.format if self.format == "text" else "auto"
        return replace(self, format=kept, columns=tuple(columns.items())) if columns else self

    @property
    def on_hub(self) -> bool:
        is_path = self.local or self.name.startswith((".", "/", "~")) or self.name.lower().endswith(ROW_FILES)
        return not is_path and HUB_NAME.match(self.name) is not None

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.name}" if self.on_hub else posixpath.normpath(self.name)

    @property
    def hub_set(self) -> dict[str, str] | None:
        """The data set as `hub` has it; None for a file of this machine, and where files of it are chosen."""
        found = SPLIT_FILES.match(self.files[0]) if len(self.files) == 1 else None
        if not self.on_hub or (self.files and found is None):
            return None
        config = {"config": self.subset} if self.subset else {}
        return {"name": self.name} | config | ({"split": found[1]} if found else {})

    @property
    def hint(self) -> str:
        """The command that puts a data set of the Hub where the chain reads it."""
        return f"hf download --repo-type dataset {self.name} --local-dir {self.path}"


def files_of_split(split: Any) -> tuple[str, ...]:
    """Globs of the files of a split other than `train`, which data sets of the Hub have in their names."""
    found = SPLIT.match(split) if isinstance(split, str) else None
    return () if found is None or found[1] == "train" else (f"*{found[1]}*",)


def first_rows(split: Any) -> int | None:
    """The number in `train[:100]`."""
    found = FIRST_ROWS.match(split) if isinstance(split, str) else None
    return int(found[1]) if found else None


def assemble_source(places: Sequence[DataPlace], stage: Stage, given: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a data source that reads the places; what `given` says of it wins.

    Raises `ValueError` where there is no place, or none that is above all of them.
    """
    own = {key.removeprefix("data_source."): value for key, value in given.items() if key.startswith("data_source.")}
    columns = list(dict.fromkeys(one.columns for one in places))
    mixes = len(columns) > 1 or any(one.hub_set or one.max_rows for one in places)
    if len(places) > 1 and mixes and not own.keys() - {"format"}:
        port = Port.SFT if Stage.SFT is stage else stage.facts.ports[0]
        places = [replace(one, format=own.get("format", one.format)) for one in places]
        return {"mix": {**mixed(places), "port": port.value}}
    formats = {one.format for one in places}
    source = own if own.keys() & {"path", "url", "repository", "hub"} else {**place_fields(places), **own}
    source.setdefault("format", formats.pop() if len(formats) == 1 else "auto")
    rows = {one.max_rows for one in places}
    if len(rows) == 1 and (most := rows.pop()):
        source.setdefault("max_rows", most)
    if len(columns) == 1 and columns[0] and not own.keys() & {"repository", "converter"}:
        source.setdefault("columns", dict(columns[0]))
    return fill_port(source, stage)


def mixed(places: Sequence[DataPlace]) -> dict[str, Any]:
    """All rows of all places, as a mixture: a data set of the Hub has no folder next to the others."""
    sets: dict[str, Any] = {}
    for one in dict.fromkeys(places):
        plain = NOT_IN_A_NAME.sub("-", one.name.lower().rpartition("/")[2]).strip("-")[:50] or "set"
        name = next(known for known in chain([plain], (f"{plain}-{n}" for n in count(2))) if known not in sets)
        fields = place_fields([one])
        fields |= {"format": one.format} if one.format != "auto" else {}
        fields |= {"columns": dict(one.columns)} if one.columns else {}
        sets[name] = fields | ({"max_rows": one.max_rows} if one.max_rows else {})
    return {"sets": sets, "exhausted": "continue"}


def fill_port(source: dict[str, Any], stage: Stage) -> dict[str, Any]:
    """The source as it is if its format says what the rows are; otherwise as the set that the stage learns from."""
    ports = stage.facts.ports
    if stage.facts.draws_groups and source["format"] == "auto":
        return source  # its rows may be prompts, or have answers
    known = [one for one in DataFormat if one.value == source["format"]]
    if not known or (known[0].facts.ports == ports[:1]):
        return source
    bad = {key: source.pop(key) for key in ("max_bad_fraction",) if key in source}
    port = Port.SFT if Stage.SFT is stage else ports[0]
    if port not in known[0].facts.ports:
        source["format"] = "auto"
    return {"sets": {port.value: {key: value for key, value in source.items() if value != "auto"}}, **bad}


def place_fields(places: Sequence[DataPlace]) -> dict[str, Any]:
    if not places:
        raise ValueError("no data set")
    if len(places) == 1 and places[0].name.startswith(("http://", "https://")):
        return {"url": places[0].name}
    if len(places) == 1 and (hub := places[0].hub_set):
        return {"hub": hub}
    above = common_folder([one.path for one in places])
    include = [glob for one in places for glob in globs_of(one, above)] if needs_globs(places, above) else []
    found: dict[str, Any] = {"path": above}
    found |= {"include": include} if include else {}
    return found | ({"exclude": list(OTHER_SPLITS)} if any(one.on_hub and not one.files for one in places) else {})


def needs_globs(places: Sequence[DataPlace], above: str) -> bool:
    return len(places) > 1 or bool(places[0].files) or places[0].on_hub


def globs_of(place: DataPlace, above: str) -> list[str]:
    below = posixpath.relpath(place.path, above) if place.path != above else ""
    if below and not place.files and place.name.lower().endswith(ROW_FILES):
        return [below]
    files = place.files or (HUB_FILES if place.on_hub else ("*",))
    return [posixpath.join(below, one) for one in files]


def common_folder(paths: Sequence[str]) -> str:
    """The one path, or the folder that contains all."""
    if len(set(paths)) == 1:
        return paths[0]
    return posixpath.commonpath(paths) or "."
