"""What a list says about a job besides its state: whose it is, its stage, method, backend and base model.

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
from trainyard.stores.live.job_ids import tenant_of

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
    given = next((one for one in (chain, job, publish) if isinstance(one, Mapping)), {})
    facts = trainer_facts(job) if isinstance(job, Mapping) else chain_facts(chain or {})
    return {"tenant": tenant_of(tags) or str(given.get("tenant") or DEFAULT_TENANT), **facts}


def trainer_facts(config: JsonMapping) -> dict[str, str]:
    """The four words of a trainer's settings, in any of their spellings; unset ones as their defaults."""
    try:
        words = spell_out(job_words(config))
    except (ValueError, TypeError):  # settings of another version: nobody can read them, and a list shows the job
        words = {}
    found = {name: word_of(words.get(name) or default) for name, default in DEFAULTS.items()}
    return found | {"base_model": str(words.get("base_model") or "")}


def word_of(given: object) -> str:
    """The word of a value on an axis: itself, or the `type` of its settings."""
    if isinstance(given, Mapping):
        return str(given.get("type", ""))
    return str(getattr(given, "type", given)) if isinstance(given, Strict) else str(getattr(given, "value", given))


def chain_facts(chain: JsonMapping) -> dict[str, str]:
    """The four words of a chain's last trainer; empty without one."""
    nodes = chain.get("nodes")
    found = [one for one in nodes if isinstance(one, Mapping) and one.get("type") == "trainer"] if nodes else []
    return trainer_facts(found[-1].get("config") or {}) if found else dict.fromkeys(WORDS, "")


def read_chain_facts(run_folder: Path) -> dict[str, str] | None:
    """The facts of a run by its resolved chain; None before its first start, or for a chain of another version."""
    try:
        chain = orjson.loads((run_folder / "chain.json").read_bytes())
        return {"tenant": str(chain["tenant"]), **chain_facts(chain)}
    except (OSError, ValueError, KeyError, TypeError):
        return None
