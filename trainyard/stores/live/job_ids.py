"""Ids of jobs: `job-` and 12 hex digits, a tag of the run that carries the job out.

The tag is set when a run is created. A run that Prefect's own UI or a schedule created gets it when its flow begins,
derived from the run's id, so that every start of the run derives the same; so are those of runs without the tag.

What a list says about a job besides its state: whose it is, its stage, method, backend and base model.

They come from what its run was started with; once the run has begun, from the resolved chain in its folder, which has
every default. The trainer that counts is the last one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeVar

import orjson

from trainyard.json_types import JsonMapping
from trainyard.spec.axes.axis import Strict
from trainyard.spec.migrate import job_words, spell_out
from trainyard.spec.training import TrainingSettings

Run = TypeVar("Run")

JOB_TAG = "job"
"""Runs with a trainer have this tag: they are the jobs of `trainyard jobs`."""
TENANT_TAG, TRACE_TAG = "tenant:", "trace:"
"""Prefixes of the tags that say whose a run is, and which request started it."""
CONTINUES_TAG = "continues:"
"""Prefix of the tag of a retried job: the run whose checkpoints, log and curve it continues."""
THEME_TAG, LABEL_TAG, SENDER_TAG = "theme:", "tag:", "sender:"
"""Prefixes of the tags with the theme and the labels of a run's chain, and with who has started it."""
GROUP_TAG, SWEEP_TAG = "group:", "sweep:"
"""Prefixes of the tags that say which runs belong together: a group that a user named, or a sweep."""
ID_BYTES = 6
DIGEST_LENGTH = 8
"""Hex digits of a chain's digest in the name of its runs."""
RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
JOB_ID = re.compile(rf"job-[0-9a-f]{{{2 * ID_BYTES}}}")
SESSION_ID = re.compile(rf"session-[0-9a-f]{{{2 * ID_BYTES}}}")
"""Of a step session; a tag of its runs, too."""
CHAIN_ID = re.compile(rf"chain-[0-9a-f]{{{2 * ID_BYTES}}}")
REVISION_TAG = re.compile(r"revision-([1-9][0-9]{0,8})")
"""A run of a stored chain has the chain's id as a tag, and one with its revision."""


def draw_job_id() -> str:
    """Return a new id; two are the same once in 2^48 pairs."""
    return f"job-{secrets.token_hex(ID_BYTES)}"


def derive_job_id(run_id: str) -> str:
    """Return the id of a run that was created without one: the end of its own."""
    return f"job-{run_id.replace('-', '').lower()[-2 * ID_BYTES :]}"


def find_job_id(run_id: str, tags: Iterable[str]) -> str:
    """Return the id of a job by its run's tags; derived where they have none."""
    return next((tag for tag in sorted(tags) if JOB_ID.fullmatch(tag)), "") or derive_job_id(run_id)


def name_run(run_id: str, tags: Iterable[str]) -> str:
    """Return what a user types to name a run: the job's id, or the run's own where no trainer is part of it."""
    tags = set(tags)
    return find_job_id(run_id, tags) if JOB_TAG in tags else run_id


def job_tags(run_id: str, tags: Iterable[str]) -> set[str]:
    """Return the tags of a run that was found to have a trainer: what it has, and those of a job."""
    tags = set(tags)
    return tags | {JOB_TAG, find_job_id(run_id, tags)}


def find_continued_run(tags: Iterable[str]) -> str:
    """Return the run whose work a retried job continues; empty for any other."""
    return next((tag.removeprefix(CONTINUES_TAG) for tag in sorted(tags) if tag.startswith(CONTINUES_TAG)), "")


def find_tenant(tags: Iterable[str]) -> str:
    """Whose a run is by its tags; empty if they do not say."""
    return next((tag.removeprefix(TENANT_TAG) for tag in sorted(tags) if tag.startswith(TENANT_TAG)), "")


def find_group(tags: Iterable[str]) -> str:
    """Return the group of a run by its tags: the one that a user named, else its sweep; empty for a run of none."""
    tags = sorted(tags)
    named = (tag.removeprefix(prefix) for prefix in (GROUP_TAG, SWEEP_TAG) for tag in tags if tag.startswith(prefix))
    return next(named, "")


def name_patterns(word: str) -> tuple[str, str, str]:
    """Return the run names that a word matches, as patterns of SQLite's GLOB and of `fnmatch`.

    A run is named for its chain or job with the start of a digest: `guide` names `guide-1f2e3d4c`, and its repetitions
    `guide-1f2e3d4c-2`.
    """
    literal = re.sub(r"([*?[])", r"[\1]", word)
    suffixed = f"{literal}-{'[0-9a-f]' * DIGEST_LENGTH}"
    return literal, suffixed, f"{suffixed}-[1-9]*"


def find_given_name(name: str) -> str:
    """Return the name that a run's job or chain was given: `guide` of `guide-1f2e3d4c-2`."""
    return re.sub(rf"-[0-9a-f]{{{DIGEST_LENGTH}}}(-[1-9][0-9]*)?$", "", name) or name


def is_named(word: str, name: str) -> bool:
    """Return whether a run of that name is meant by a word: its name, or the name that its job or chain was given."""
    return bool(word) and any(fnmatchcase(name, pattern) for pattern in name_patterns(word))


def is_meant(word: str, run_id: str, name: str, tags: Iterable[str]) -> bool:
    """Return whether a word names a run: by the beginning of one of its ids, or by its name."""
    ids = (run_id, find_job_id(run_id, tags))
    return is_named(word, name) or (bool(word) and any(full_id.startswith(word.lower()) for full_id in ids))


def select_meant(word: str, runs: Sequence[Run], facts: Callable[[Run], tuple[str, str, Iterable[str]]]) -> list[Run]:
    """Return the runs that a word names, else those whose name begins with it. `facts` gives id, name and tags."""
    meant = [run for run in runs if is_meant(word, *facts(run))]
    return meant or [run for run in runs if facts(run)[1].startswith(word)]


def is_reserved(tag: str) -> bool:
    """Whether a tag says what Trainyard itself decides: whether a run is a job, a session or of a chain, and whose."""
    named = any(pattern.fullmatch(tag) for pattern in (JOB_ID, SESSION_ID, CHAIN_ID, REVISION_TAG))
    return tag == JOB_TAG or tag.startswith((TENANT_TAG, TRACE_TAG, CONTINUES_TAG, SENDER_TAG)) or named


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
    except (ValueError, TypeError):  # settings of another version are not readable; a list shows the job
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
