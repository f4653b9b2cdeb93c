"""Configs of other tools: imported as chains, one file or a folder, and exported from the trainer of a chain."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from trainyard.app.chains.eject import trainer_of
from trainyard.app.chains.launch_files import LAUNCHERS
from trainyard.app.context import Context
from trainyard.app.plan.parse import parse_request
from trainyard.app.plan.resolve import resolve_chain
from trainyard.app.responses import Response
from trainyard.errors import Conflict, InvalidInput, NotFound, Refused, TrainyardError
from trainyard.json_types import JsonObject
from trainyard.operations.chains import ExportConfigInput, ImportInput
from trainyard.spec.chain import ChainSpec, ResolvedChain, ResolvedNode
from trainyard.spec.exporters import EXPORTERS, export_trainer
from trainyard.spec.imports.conversion import ConfigTool, Imported, KeyResult, import_config, refuse_import
from trainyard.spec.imports.keys import Config, KeyStatus, describe
from trainyard.spec.imports.llamafactory import INFO_FILE, ROW_KEYS
from trainyard.spec.imports.tools import TOOLS, find_tool
from trainyard.spec.load.files import FILE_SUFFIXES, load_value
from trainyard.spec.nodes import DataSourceConfig
from trainyard.spec.training import TrainerConfig

FIRST_CHARS = 1 << 20
NOT_IN_A_NAME = re.compile(r"[^a-z0-9]+")


class KeyRow(Response):
    """What became of one key."""

    key: str
    value: str
    status: KeyStatus
    ours: str
    because: str
    do: str = ""
    code: str = ""


class ImportedFile(Response):
    """One config: its keys, and the chain unless a key was refused."""

    file: Path
    tool: str = ""
    chain: str = ""
    out: Path | None = None
    keys: tuple[KeyRow, ...] = ()
    counts: dict[KeyStatus, int] = Field(default_factory=dict)
    problem: str = ""
    """Why there is no chain, in a line."""
    skipped: bool = False
    """Whether the file, found in a folder, is not the config of a training."""


class ImportOutput(Response):
    files: tuple[ImportedFile, ...]
    report: bool
    folder: bool

    @property
    def exit_code(self) -> int:
        return 0 if all(file.chain or file.skipped for file in self.files) else Refused.exit_code


def import_configs(request: ImportInput, context: Context) -> ImportOutput:
    """Read a config, or each one in a folder, as a chain; write the chains where `out` says.

    Raises `NotFound` (`E-SPEC-FILE`) for a file that is not there or a folder without configs, `InvalidInput`
    (`E-IMPORT-TOOL`) for a config of no known tool, `Refused` (`E-IMPORT-KEY`, `E-IMPORT-VALUE`) for a config
    with keys that a chain cannot carry out, unless a report is wanted, `Conflict` (`E-FILE-EXISTS`).
    """
    if request.source.is_dir():
        paths = list(find_configs(request.source))
        files = tuple(import_file(path, request, context) for path in paths)
        return ImportOutput(files=files, report=request.report, folder=True)
    config = read_config(request.source, request)
    if not request.report and config.refusals:
        raise refuse_import(config)
    for note in () if request.report else notes_of(config):
        context.say(note)
    file = file_of(request.source, config, request.out)
    return ImportOutput(files=(file,), report=request.report, folder=False)


def find_configs(folder: Path) -> Iterator[Path]:
    """Yield the configs below a folder. Raises `NotFound` (`E-SPEC-FILE`) if there is none."""
    paths = sorted(path for path in folder.rglob("*") if path.suffix in FILE_SUFFIXES and path.is_file())
    if not paths:
        raise NotFound(
            f"{folder} contains no config.", why=f"Files that end in {', '.join(FILE_SUFFIXES)} are read.",
            do="Name a config, or the folder that has them.", code="E-SPEC-FILE",
        )  # fmt: skip
    yield from paths


def import_file(path: Path, request: ImportInput, context: Context) -> ImportedFile:
    """Return one config of a folder, with its problem in place of an exception."""
    try:
        config = read_config(path, request)
        out = request.out / path.relative_to(request.source).with_suffix(".yaml") if request.out else None
        return file_of(path, config, out)
    except InvalidInput as error:
        skipped = error.code == "E-IMPORT-TOOL"
        return ImportedFile(file=path, problem=f"{error.code}: {error.what} {error.why}".strip(), skipped=skipped)
    except TrainyardError as error:
        context.say(f"{path}: {error.code}")
        return ImportedFile(file=path, problem=f"{error.code}: {error.what}")


def read_config(path: Path, request: ImportInput) -> Imported:
    if path.suffix == ".toml":
        raise InvalidInput(
            f"{path.name} is not a config of a tool that is known.",
            why="It is TOML, in which prime-rl and others have their configs; "
            f"{', '.join(tool.title for tool in TOOLS.values())} have YAML or JSON.",
            do="Write the chain by hand: `trainyard templates` has starting points.", code="E-IMPORT-TOOL",
        )  # fmt: skip
    value = load_value(path)
    tool = find_tool(value, request.tool)
    listed = read_listed_data_sets(value, path.parent)
    family = family_of_base(tool[1], value, request.settings, path.parent)
    return import_config(
        value, chain_name(path), tool, request.settings, request.without, data_sets=listed, family=family
    )


def family_of_base(tool: ConfigTool, value: object, overrides: Mapping[str, object], folder: Path) -> str | None:
    """Return the `model_type` in the config.json of the base's folder; None where the base is not a folder of this
    machine.
    """
    named = overrides.get("base_model")
    for key, (converter, _) in tool.keys.items():
        if named is None and converter.setting == "base_model":
            named = Config(value).get(key) if isinstance(value, Mapping) else None
    if not isinstance(named, str):
        return None
    for above in (Path(), folder):
        if (path := above / named / "config.json").is_file():
            content = load_value(path)
            family = content.get("model_type") if isinstance(content, Mapping) else None
            return family if isinstance(family, str) else None
    return None


def read_listed_data_sets(value: Any, folder: Path) -> Mapping[str, object] | None:
    """Return the data sets of LLaMA-Factory's `dataset_info.json`, in `dataset_dir` below the config or the working
    folder.

    None where there is none. Raises `InvalidInput` (`E-SPEC-FILE`) for one that cannot be read.
    """
    data_folder = value.get("dataset_dir", "data") if isinstance(value, Mapping) else None
    if not isinstance(data_folder, str) or not ({"dataset", "train_dataset"} & value.keys()):
        return None
    for above in (folder, Path()):
        if (path := above / data_folder / INFO_FILE).is_file():
            content = load_value(path)
            return add_row_keys(content, path.parent) if isinstance(content, Mapping) else None
    return None


def add_row_keys(listed: Mapping[str, object], folder: Path) -> dict[str, object]:
    """Return the list of data sets with the keys of the first row of each file that is here."""
    return {
        name: {**entry, ROW_KEYS: first_keys(folder / str(entry["file_name"]))}
        if isinstance(entry, Mapping) and "file_name" in entry
        else entry
        for name, entry in listed.items()
    }


def first_keys(path: Path) -> list[str]:
    """Return the keys of the first row of a JSON or JSON Lines file; none where that is not an object."""
    if path.suffix not in (".json", ".jsonl") or not path.is_file():
        return []
    with path.open(encoding="utf-8-sig", errors="replace") as stream:
        head = stream.read(FIRST_CHARS).lstrip().removeprefix("[").lstrip()
    try:
        row, _ = json.JSONDecoder().raw_decode(head)
    except ValueError:  # a row that is longer, or a broken file, of which its reader speaks
        return []
    return list(row) if isinstance(row, dict) else []


def chain_name(path: Path) -> str:
    """Return the file's name as a name of a chain."""
    plain = NOT_IN_A_NAME.sub("-", path.stem.lower()).strip("-")[:63].strip("-")
    return plain or "chain"


def notes_of(config: Imported) -> list[str]:
    """Return a line for each note, the keys with the same one together."""
    keys: dict[str, list[str]] = {}
    for result in config.keys:
        if result.status is KeyStatus.NOTED:
            keys.setdefault(result.because, []).append(result.key)
    lines = [f"{', '.join(names)}: {because}" for because, names in keys.items()]
    defaults = [f"{default.setting} {describe(default.value)} ({default.key})" for default in config.defaults]
    if defaults:
        lines.append(f"Left out, so {TOOLS[config.tool].title}'s own defaults: {', '.join(defaults)}.")
    return [*lines, *config.notes]


def file_of(path: Path, config: Imported, out: Path | None) -> ImportedFile:
    chain = chain_text(path, config) if config.chain is not None else ""
    if out is not None and chain:
        write_new(out, chain)
    counts = {status: config.count(status) for status in KeyStatus}
    refusals = config.refusals
    problem = f"{len(refusals)} refused: {', '.join(refusal.key for refusal in refusals[:8])}" if refusals else ""
    return ImportedFile(
        file=path, tool=config.tool, chain=chain, out=out if chain else None,
        keys=rows_of((*config.keys, *config.defaults)), counts=counts, problem=problem,
    )  # fmt: skip


def write_new(path: Path, text: str) -> None:
    """Write a file that is not there yet. Raises `Conflict` (`E-FILE-EXISTS`)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise Conflict(
            f"{path} is there already.", do="Name another file with --out, or remove it.", code="E-FILE-EXISTS"
        ) from None


def chain_text(path: Path, config: Imported) -> str:
    """Return the chain as YAML, below its notes."""
    head = [f"Imported from {path.name}, a config of {TOOLS[config.tool].title}.", *notes_of(config)]
    comments = "".join(f"# {' '.join(line.split())}\n" for line in head)
    body: dict[str, object] = dict(config.value)
    return comments + yaml.safe_dump(body, sort_keys=False, allow_unicode=True, width=110)


def format_value(result: KeyResult) -> str:
    return "left out" if result.status is KeyStatus.DEFAULT else describe(result.value)


def format_setting(result: KeyResult) -> str:
    """Return the setting here, with its value where no key of the config gives it."""
    return f"{result.setting}: {describe(result.value)}" if result.status is KeyStatus.DEFAULT else result.setting


def rows_of(keys: Sequence[KeyResult]) -> tuple[KeyRow, ...]:
    return tuple(
        KeyRow(
            key=result.key, value=format_value(result), status=result.status, ours=format_setting(result),
            because=result.because, do=result.do, code=result.code,
        )
        for result in keys
    )  # fmt: skip


class ExportOutput(Response):
    text: str
    out: Path | None = None
    notes: tuple[str, ...] = ()


def export_chain(request: ExportConfigInput, context: Context) -> ExportOutput:
    """Write a trainer as a config of another tool, or a chain as a job of another launcher.

    Raises `NotFound` (`E-NODE`), `Refused` (`E-EXPORT`) for a stage or method that the tool does not have, `Conflict`
    (`E-FILE-EXISTS`).
    """
    spec = parse_request(request.target).spec
    chain = resolve_chain(spec, context.settings)
    if request.to in LAUNCHERS:
        return export_launch(request, spec, chain, context)
    if request.gpu:
        raise InvalidInput(
            f"A config of {EXPORTERS[request.to].title} names no GPU.", do="Remove --gpu.", code="E-PARAMETER"
        )
    node = trainer_of(chain, request.node)
    config = node.config
    if not isinstance(config, TrainerConfig):
        raise InvalidInput(f"{node.id} is not a trainer.", code="E-NODE")
    export = export_trainer(config, source_of(node, chain), request.to)
    for note in export.notes:
        context.say(note)
    title = f"A config of {EXPORTERS[request.to].title}, from {node.id} of the chain {chain.name}."
    return write_export(request, title, export.value, export.notes)


def export_launch(request: ExportConfigInput, spec: ChainSpec, chain: ResolvedChain, context: Context) -> ExportOutput:
    """Write a whole chain for another launcher. Raises `Refused` (`E-EXPORT`), `InvalidInput` (`E-PARAMETER`)."""
    title, export = LAUNCHERS[request.to]
    if request.node is not None:
        raise InvalidInput(f"{title} runs whole chains.", do="Remove --node.", code="E-PARAMETER")
    value, notes = export(spec, chain, request.gpu)
    for note in notes:
        context.say(note)
    return write_export(request, f"The chain {chain.name} for {title}.", value, notes)


def write_export(request: ExportConfigInput, title: str, value: JsonObject, notes: tuple[str, ...]) -> ExportOutput:
    """Return the file, below its notes; write it where `out` says. Raises `Conflict` (`E-FILE-EXISTS`)."""
    comments = "".join(f"# {' '.join(line.split())}\n" for line in (title, *notes))
    text = comments + yaml.dump(value, Dumper=BlockDumper, sort_keys=False, allow_unicode=True, width=1000)
    if request.out is not None:
        write_new(request.out, text)
    return ExportOutput(text=text, out=request.out, notes=notes)


class BlockDumper(yaml.SafeDumper):
    """Writes texts of several lines, such as scripts, as blocks."""


def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


BlockDumper.add_representer(str, represent_text)


def source_of(node: ResolvedNode, chain: ResolvedChain) -> DataSourceConfig | None:
    """Return the data source that a trainer reads directly; None where other nodes make its rows."""
    sources = [chain.node(source.node_id) for port_sources in node.inputs.values() for source in port_sources]
    configs = [source.config for source in sources if isinstance(source.config, DataSourceConfig)]
    return configs[0] if configs else None
