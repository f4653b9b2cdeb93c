"""A file, a text or a plain value to a `ChainSpec`. A file may contain a chain, a job, or a call of a template."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainyard.errors import NotFound, Reason, Refused
from trainyard.spec.chain import ChainSpec
from trainyard.spec.compat.other_tools import word_reasons
from trainyard.spec.job import JobSpec, chain_of_job
from trainyard.spec.load.parse import build_reasons, check_crowded, parse_chain, suggest, validate
from trainyard.spec.load.text import MAX_SPEC_BYTES, parse_text
from trainyard.spec.templates import TEMPLATES

FILE_SUFFIXES = (".yaml", ".yml", ".json")


def load_chain(source: Path | str | bytes) -> ChainSpec:
    """Return the chain in a file or a text.

    Raises `NotFound` (`E-SPEC-FILE`) if there is no such file, `Refused` with every reason if it is not a chain.
    """
    spec, reasons = read_chain(load_value(source))
    if spec is None:
        raise Refused(reasons)
    return spec


def load_value(source: Path | str | bytes) -> Any:
    """Return the plain value in a file (`Path`, or a text that names one) or in a text."""
    if isinstance(source, Path) or (isinstance(source, str) and names_file(source)):
        return parse_text(read_capped(Path(source)))
    return parse_text(source)


def names_file(text: str) -> bool:
    """Return a text of one line that ends like a spec file, or that an existing file has as its name."""
    line = text.strip()
    if not line or "\n" in line or "\0" in line or len(line) > 4096 or line[0] in "{[":
        return False
    return line.lower().endswith(FILE_SUFFIXES) or os.path.isfile(line)


def read_capped(path: Path) -> bytes:
    """Return the bytes of a file, one more than the cap at most. A device or a pipe that never ends is not read to its
    end.
    """
    try:
        with path.open("rb") as stream:
            return stream.read(MAX_SPEC_BYTES + 1)
    except IsADirectoryError as error:
        raise NotFound(
            f"{path} is a folder, not a file.", do="Name a YAML or JSON file.", code="E-SPEC-FILE"
        ) from error
    except OSError as error:
        raise NotFound(
            f"The file {path} cannot be read.", why=str(error.strerror), do="Check the path.", code="E-SPEC-FILE"
        ) from error


def read_chain(value: object) -> tuple[ChainSpec | None, list[Reason]]:
    """Return the chain that a plain value describes: a chain, a job body, or `{template, parameters}`."""
    if reasons := check_crowded(value):
        return None, reasons
    if isinstance(value, Mapping) and "template" in value and "nodes" not in value:
        return from_template(value)
    body = value if isinstance(value, Mapping) and "nodes" not in value else {}
    if "dataset" not in body and (reasons := word_reasons(body, None)):
        return None, reasons
    if "dataset" in body or "training_file" in body:
        try:
            return chain_of_job(validate(JobSpec, value)), []
        except ValidationError as error:
            return None, build_reasons(error, JobSpec)
    return parse_chain(value)


def from_template(value: Mapping[str, object]) -> tuple[ChainSpec | None, list[Reason]]:
    name, parameters = str(value["template"]), value.get("parameters") or {}
    extra = [key for key in value if key not in ("template", "parameters")]
    if extra:
        instead = suggest(str(extra[0]), ("template", "parameters"), "Put it under `parameters:`.")
        return None, [Reason("E-SPEC-KEY", None, str(extra[0]), f"There is no field {extra[0]!r} here.", instead)]
    if name not in TEMPLATES:
        instead = suggest(name, TEMPLATES, f"Use {', '.join(TEMPLATES)}.")
        return None, [Reason("E-SPEC-FILE", None, "template", f"There is no template {name!r}.", instead)]
    try:
        return validate(TEMPLATES[name].model, parameters).build(), []
    except ValidationError as error:
        reasons = build_reasons(error, TEMPLATES[name].model)
        return None, [replace(reason, field=f"parameters.{reason.field}".rstrip(".")) for reason in reasons]
