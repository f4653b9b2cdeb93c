"""Facts about a job in a list: its tenant, its stage, method, backend and base model.

They come from what its run was started with; once the run has begun, from the resolved chain in its folder, which has
every default. The trainer that counts is the last one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import orjson

from trainyard.json_types import JsonMapping
from trainyard.spec.axes.axis import Strict
from trainyard.spec.migrate import job_words, spell_out
from trainyard.spec.training import TrainingSettings
from trainyard.stores.live.job_ids import find_tenant

DEFAULT_TENANT = "default"
"""That of a chain which names none."""
AXES = ("stage", "method")
WORDS = (*AXES, "backend", "base_model")
DEFAULTS = {name: TrainingSettings.model_fields[name].default for name in (*AXES, "backend")}


def read_facts(tags: Iterable[str], parameters: JsonMapping) -> dict[str, str]:
    """{tenant, stage, method, backend, base_model} by a run's tags and parameters; empty where they do not say."""
    chain = parameters.get("spec")
    chain = chain.get("chain", chain) if isinstance(chain, Mapping) else None
    job, publish = parameters.get("job"), parameters.get("publish")
    source = next((value for value in (chain, job, publish) if isinstance(value, Mapping)), {})
    facts = trainer_facts(job) if isinstance(job, Mapping) else chain_facts(chain or {})
    return {"tenant": find_tenant(tags) or str(source.get("tenant") or DEFAULT_TENANT), **facts}


def trainer_facts(config: JsonMapping) -> dict[str, str]:
    """Return the four words of a trainer's settings, in any of their spellings; unset ones as their defaults."""
    try:
        settings = spell_out(job_words(config))
    except (ValueError, TypeError):  # settings of another version: nobody can read them, and a list shows the job
        settings = {}
    facts = {name: read_word(settings.get(name) or default) for name, default in DEFAULTS.items()}
    return facts | {"base_model": str(settings.get("base_model") or "")}


def read_word(value: object) -> str:
    """Return the word of a value on an axis: itself, or the `type` of its settings."""
    if isinstance(value, Mapping):
        return str(value.get("type", ""))
    return str(getattr(value, "type", value)) if isinstance(value, Strict) else str(getattr(value, "value", value))


def chain_facts(chain: JsonMapping) -> dict[str, str]:
    """Return the four words of a chain's last trainer; empty without one."""
    nodes = chain.get("nodes")
    trainers = [node for node in nodes if isinstance(node, Mapping) and node.get("type") == "trainer"] if nodes else []
    return trainer_facts(trainers[-1].get("config") or {}) if trainers else dict.fromkeys(WORDS, "")


def read_chain_facts(run_folder: Path) -> dict[str, str] | None:
    """The facts of a run by its resolved chain; None before its first start, or for a chain of another version."""
    try:
        chain = orjson.loads((run_folder / "chain.json").read_bytes())
        return {"tenant": str(chain["tenant"]), **chain_facts(chain)}
    except (OSError, ValueError, KeyError, TypeError):
        return None
