"""The facts of an adapter version that a card shows and a publication carries, checked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import BaseModel, ValidationError, model_validator

from trainyard.errors import Corrupt
from trainyard.json_types import JsonObject
from trainyard.serve.trial import read_object
from trainyard.stores.adapters import AdapterVersion
from trainyard.stores.models import HUB_NAME


class Improvement(BaseModel):
    """The mean of an improvement, with its interval where one was computed."""

    mean: float
    low: float | None = None
    high: float | None = None

    @model_validator(mode="after")
    def has_both_ends(self) -> Improvement:
        if (self.low is None) != (self.high is None):
            raise ValueError("an interval has low and high")
        return self


class BenchmarkLine(BaseModel):
    """Benchmark result that stays with a version."""

    rows: int
    baseline: float
    candidate: float
    improvement: Improvement


class VersionReport(BaseModel):
    """The report on a version: a card shows it, so a pull takes none that cannot be shown."""

    baseline: str | None = None
    confidence: float | None = None
    benchmarks: dict[str, BenchmarkLine] = {}

    @model_validator(mode="after")
    def has_confidence(self) -> VersionReport:
        if self.benchmarks and self.confidence is None:
            raise ValueError("benchmarks have a confidence")
        return self


class VersionFacts(BaseModel):
    """The facts of a version that a card reads, as `TRAVELLING_FACTS` names them."""

    base_model: str | None = None
    base_sha256: str | None = None
    chat_template_sha256: str | None = None
    evaluated: bool = False
    gate: JsonObject = {}
    data: list[JsonObject] = []
    rows: JsonObject = {}
    report: VersionReport | None = None


def check_facts(facts: Mapping[str, object], name: str) -> VersionFacts:
    """The facts of a version, as a card needs them. Raises `Corrupt` (`E-CORRUPT`) naming the first that is wrong."""
    try:
        # Of a night's version, `data` has the counts of the training.
        overrides: dict[str, object] = {"data": []} if isinstance(facts.get("data"), Mapping) else {}
        return VersionFacts.model_validate({**facts, **overrides, "report": facts.get("report") or None})
    except ValidationError as error:
        raise Corrupt(
            f"The facts of {name} are not those of an adapter version.",
            why="; ".join(f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()[:3]),
            do="Publish the version again with `trainyard adapters push`, and pull that.",
            code="E-CORRUPT",
        ) from error


def base_facts(folder: Path) -> dict[str, str]:
    """Return what the files themselves say about the base."""
    training, config = read_object(folder / "training.json"), read_object(folder / "adapter_config.json")
    return {
        "base_model": str(training.get("base_model") or config.get("base_model_name_or_path") or ""),
        "base_sha256": str(training.get("base_sha256") or ""),
        "chat_template_sha256": str(training.get("chat_template_sha256") or ""),
    }


def public_base(version: AdapterVersion) -> str:
    """Return the name of a version's base, without the folders of this machine."""
    name = str(version.facts.get("base_model") or "")
    return name if hub_base(version) else Path(name).name


def hub_base(version: AdapterVersion) -> str | None:
    """Return the Hub's name of a version's base; None for a base that the Hub does not have under this name."""
    name = str(version.facts.get("base_model") or "")
    return name if HUB_NAME.fullmatch(name) and not Path(name).is_dir() else None
