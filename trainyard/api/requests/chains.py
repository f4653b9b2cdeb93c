"""Requests about a chain, a job or a run as a whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from trainyard.api.requests.base import Parameters, Request
from trainyard.api.requests.fields import Argument, Option

ChainText = dict[str, Any]
"""A chain or a job as a mapping, as its file has it: what a program gives in place of a file."""
GROUP_NAME = r"^([a-z0-9][a-z0-9._-]{0,62})?$"
Group = Annotated[str, Field(pattern=GROUP_NAME, description="Group of runs, to list and compare them.")]
PARAMETERS = "A parameter; dots reach inside."
PRESET_NAME = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$"
CHAIN_CHARS = 100
"""Longest name or id of a stored chain."""
PRESET = "Parameters from deployments/presets; -p wins over them."


class CheckInput(Request):
    files: Annotated[tuple[Path | ChainText, ...], Argument("FILE")] = Field(min_length=1)


class PlanInput(Request):
    target: Annotated[str | ChainText, Argument("TEMPLATE|FILE", is_file=True, completes="template")] = Field(
        description="A template's name, or a chain or job file."
    )
    parameters: Parameters = Field({}, description=PARAMETERS)
    preset: Annotated[str | None, Option(completes="preset")] = Field(None, pattern=PRESET_NAME, description=PRESET)
    measure: Annotated[bool, Option(local=True)] = Field(
        False, description="Train ten steps of each trainer first, to know its time."
    )


class RunInput(Request):
    target: Annotated[str | ChainText, Argument("TEMPLATE|FILE|RUN", is_file=True, completes="template or run")] = (
        Field(description="A template, a chain or job file, or an ended run.")
    )
    parameters: Parameters = Field({}, description=PARAMETERS)
    preset: Annotated[str | None, Option(completes="preset")] = Field(None, pattern=PRESET_NAME, description=PRESET)
    watch: Annotated[bool, Option("-w", "--watch", local=True)] = Field(False, description="Follow the run to its end.")
    refresh: Annotated[bool, Option("--refresh/--no-refresh")] = Field(
        False, description="Make every result again, also those that are finished."
    )
    refresh_from: Annotated[str | None, Option("--refresh-from")] = Field(
        None, max_length=100, description="Make the results of this node and of all after it again."
    )
    yes: Annotated[bool, Option("-y", "--yes")] = Field(
        False, description="Train also on fewer rows than were asked for, or than a verdict needs."
    )
    tags: Annotated[tuple[str, ...], Option("--tag")] = Field((), description="A tag for the run; may be repeated.")
    group: Group = ""


class EjectInput(Request):
    target: Annotated[str, Argument("JOB", is_file=True, completes="template or run")] = Field(
        description="A job's name or id, a chain or job file, or a template."
    )
    node: str | None = Field(None, description="Which trainer, if there are several.")
    into: Path | None = Field(None, description="Folder to write; default: <trainer>-script here.")


class TemplatesInput(Request):
    name: Annotated[str | None, Argument("NAME", completes="template")] = Field(
        None, description="Only this one, with its parameters."
    )


class SchemaInput(Request):
    name: Annotated[str | None, Argument("NAME", completes="schema")] = Field(
        None, description="chain, a node's type, a template, job, night, sweep or settings; default: list the names."
    )


# Configs of other tools

ToolName = Literal["axolotl", "llamafactory", "trl", "unsloth", "oumi", "torchtune"]


class ImportInput(Request):
    source: Annotated[Path, Argument("FILE|DIR")] = Field(description="A config, or a folder of configs.")
    tool: Annotated[ToolName | None, Option("--from")] = Field(None, description="Whose it is; default: by its keys.")
    settings: Annotated[dict[str, Any], Option("--set")] = Field(
        {}, description="A trainer's setting, or data_source.path; dots reach inside."
    )
    without: Annotated[tuple[str, ...], Option("--without")] = Field(
        (), description="A key that is left out; may be repeated."
    )
    out: Annotated[Path | None, Option("-o", "--out")] = Field(
        None, description="File to write, or folder for a folder; default: print."
    )
    report: Annotated[bool, Option("--report")] = Field(False, description="Print what became of every key.")


class ExportConfigInput(Request):
    target: Annotated[str, Argument("CHAIN", is_file=True)] = Field(description="A chain or job file, or a template.")
    to: Literal["axolotl", "llamafactory"] = Field(description="The tool.")
    node: str | None = Field(None, description="Which trainer, if there are several.")
    out: Annotated[Path | None, Option("-o", "--out")] = Field(None, description="File to write; default: print.")


# Stored chains


class StoredName(Request):
    chain: Annotated[str, Argument("CHAIN", completes="chain")] = Field(
        min_length=1, max_length=CHAIN_CHARS, description="Id of a stored chain, or its name where only one has it."
    )


class StoredChainsInput(Request):
    name: str | None = Field(None, max_length=100, description="Only chains whose name contains this.")
    limit: int = Field(50, ge=1, le=1000, description="At most so many.")
    offset: int = Field(0, ge=0, le=10**9, description="Leave out so many, the newest first.")


Body = Annotated[ChainText, Option("--set")]
BODY = "Keys that are laid over the file's, or a whole chain."


class StoreChainInput(Request):
    file: Annotated[Path | None, Argument("FILE", local=True)] = Field(
        None, description="A chain, a job, or the call of a template, as YAML or JSON."
    )
    spec: Body = Field({}, description=BODY)


class UpdateChainInput(StoredName):
    file: Annotated[Path | None, Argument("FILE", local=True)] = Field(None, description="The chain as it shall be.")
    spec: Body = Field({}, description=BODY)
    if_match: str = Field("", max_length=200, description="ETag of the revision that was edited; refused without it.")


class ShowChainInput(StoredName):
    revision: int | None = Field(None, ge=1, le=10**9, description="Default: the newest.")


class RunChainInput(StoredName):
    revision: int | None = Field(None, ge=1, le=10**9, description="Default: the newest.")
    parameters: Parameters = Field({}, description="Of the call of a template that is stored; dots reach inside.")
    watch: Annotated[bool, Option("-w", "--watch", local=True)] = Field(False, description="Follow the run to its end.")
    refresh: Annotated[bool, Option("--refresh/--no-refresh")] = Field(
        False, description="Make every result again, also those that are finished."
    )
    refresh_from: Annotated[str | None, Option("--refresh-from")] = Field(
        None, max_length=100, description="Make the results of this node and of all after it again."
    )
    yes: Annotated[bool, Option("-y", "--yes")] = Field(
        False, description="Train also on fewer rows than were asked for, or than a verdict needs."
    )
    tags: Annotated[tuple[str, ...], Option("--tag")] = Field((), description="A tag for the run; may be repeated.")
    group: Group = ""


class ChainRunsInput(StoredName):
    limit: int = Field(50, ge=1, le=1000, description="At most so many.")
    offset: int = Field(0, ge=0, le=10**9, description="Leave out so many, the newest first.")
