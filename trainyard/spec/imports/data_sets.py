"""Data sets of a config: names of the Hub, files and folders, as one data source."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

from trainyard.json_types import JsonMapping, JsonObject
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
    """A data set of a config."""

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
        """Return the place with columns under names of its own, whose fields then say what the rows are."""
        row_format = self.format if self.format == "text" else "auto"
        return replace(self, format=row_format, columns=tuple(columns.items())) if columns else self

    @property
    def on_hub(self) -> bool:
        is_path = self.local or self.name.startswith((".", "/", "~")) or self.name.lower().endswith(ROW_FILES)
        return not is_path and HUB_NAME.match(self.name) is not None

    @property
    def path(self) -> str:
        return f"{FOLDER}/{self.name}" if self.on_hub else posixpath.normpath(self.name)

    @property
    def hub_set(self) -> dict[str, str] | None:
        """Return the data set as `hub` has it; None for a file of this machine, and where files of it are chosen."""
        match = SPLIT_FILES.match(self.files[0]) if len(self.files) == 1 else None
        if not self.on_hub or (self.files and match is None):
            return None
        config = {"config": self.subset} if self.subset else {}
        return {"name": self.name} | config | ({"split": match[1]} if match else {})

    @property
    def hint(self) -> str:
        """Return the command that puts a data set of the Hub where the chain reads it."""
        return f"hf download --repo-type dataset {self.name} --local-dir {self.path}"


def files_of_split(split: Any) -> tuple[str, ...]:
    """Globs of the files of a split other than `train`, which data sets of the Hub have in their names."""
    match = SPLIT.match(split) if isinstance(split, str) else None
    return () if match is None or match[1] == "train" else (f"*{match[1]}*",)


def first_rows(split: Any) -> int | None:
    """Return the number in `train[:100]`."""
    match = FIRST_ROWS.match(split) if isinstance(split, str) else None
    return int(match[1]) if match else None


def assemble_source(data_sets: Sequence[DataPlace], stage: Stage, settings: JsonMapping) -> JsonObject:
    """Return the config of a data source that reads the places; what `given` says of it wins.

    Raises `ValueError` where there is no place, or none that is above all of them.
    """
    overrides = {
        key.removeprefix("data_source."): value for key, value in settings.items() if key.startswith("data_source.")
    }
    columns = list(dict.fromkeys(data_set.columns for data_set in data_sets))
    mixes = len(columns) > 1 or any(data_set.hub_set or data_set.max_rows for data_set in data_sets)
    if len(data_sets) > 1 and mixes and not overrides.keys() - {"format"}:
        port = Port.SFT if Stage.SFT is stage else stage.facts.ports[0]
        data_sets = [replace(data_set, format=overrides.get("format", data_set.format)) for data_set in data_sets]
        return {"mix": {**build_mixture(data_sets), "port": port.value}}
    formats = {data_set.format for data_set in data_sets}
    source = (
        overrides
        if overrides.keys() & {"path", "url", "repository", "hub"}
        else {**place_fields(data_sets), **overrides}
    )
    source.setdefault("format", formats.pop() if len(formats) == 1 else "auto")
    rows = {data_set.max_rows for data_set in data_sets}
    if len(rows) == 1 and (most := rows.pop()):
        source.setdefault("max_rows", most)
    if len(columns) == 1 and columns[0] and not overrides.keys() & {"repository", "converter"}:
        source.setdefault("columns", dict(columns[0]))
    return fill_port(source, stage)


def build_mixture(data_sets: Sequence[DataPlace]) -> JsonObject:
    """Return all rows of all places, as a mixture: a data set of the Hub has no folder next to the others."""
    sets: JsonObject = {}
    for data_set in dict.fromkeys(data_sets):
        plain = NOT_IN_A_NAME.sub("-", data_set.name.lower().rpartition("/")[2]).strip("-")[:50] or "set"
        name = next(
            candidate for candidate in chain([plain], (f"{plain}-{n}" for n in count(2))) if candidate not in sets
        )
        fields = place_fields([data_set])
        fields |= {"format": data_set.format} if data_set.format != "auto" else {}
        fields |= {"columns": dict(data_set.columns)} if data_set.columns else {}
        sets[name] = fields | ({"max_rows": data_set.max_rows} if data_set.max_rows else {})
    return {"sets": sets, "exhausted": "continue"}


def fill_port(source: JsonObject, stage: Stage) -> JsonObject:
    """Return the source as it is if its format says what the rows are; otherwise as the set that the stage learns
    from.
    """
    ports = stage.facts.ports
    if stage.facts.draws_groups and source["format"] == "auto":
        return source  # its rows may be prompts, or have answers
    formats = [row_format for row_format in DataFormat if row_format.value == source["format"]]
    if not formats or (formats[0].facts.ports == ports[:1]):
        return source
    bad = {key: source.pop(key) for key in ("max_bad_fraction",) if key in source}
    port = Port.SFT if Stage.SFT is stage else ports[0]
    if port not in formats[0].facts.ports:
        source["format"] = "auto"
    return {"sets": {port.value: {key: value for key, value in source.items() if value != "auto"}}, **bad}


def place_fields(data_sets: Sequence[DataPlace]) -> JsonObject:
    if not data_sets:
        raise ValueError("no data set")
    if len(data_sets) == 1 and data_sets[0].name.startswith(("http://", "https://")):
        return {"url": data_sets[0].name}
    if len(data_sets) == 1 and (hub := data_sets[0].hub_set):
        return {"hub": hub}
    above = common_folder([data_set.path for data_set in data_sets])
    include = (
        [glob for data_set in data_sets for glob in list_globs(data_set, above)]
        if needs_globs(data_sets, above)
        else []
    )
    source: JsonObject = {"path": above}
    source |= {"include": include} if include else {}
    return source | (
        {"exclude": list(OTHER_SPLITS)} if any(pattern.on_hub and not pattern.files for pattern in data_sets) else {}
    )


def needs_globs(data_sets: Sequence[DataPlace], above: str) -> bool:
    return len(data_sets) > 1 or bool(data_sets[0].files) or data_sets[0].on_hub


def list_globs(data_set: DataPlace, above: str) -> list[str]:
    below = posixpath.relpath(data_set.path, above) if data_set.path != above else ""
    if below and not data_set.files and data_set.name.lower().endswith(ROW_FILES):
        return [below]
    files = data_set.files or (HUB_FILES if data_set.on_hub else ("*",))
    return [posixpath.join(below, pattern) for pattern in files]


def common_folder(paths: Sequence[str]) -> str:
    """Return the one path, or the folder that contains all."""
    if len(set(paths)) == 1:
        return paths[0]
    return posixpath.commonpath(paths) or "."
