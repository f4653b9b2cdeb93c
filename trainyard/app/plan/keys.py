"""Names of results before they exist: what a node's result depends on, in one digest.

The same resolved config, inputs, outside facts (files that are read, the base model, the live adapter) and code give
the same key, so a finished result is found again by any later run. What cannot be pinned (an address on the network,
the act of deploying) is named by the run, so that only a retry or a resume of that run reuses it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import trainyard
from trainyard.backends import environments
from trainyard.backends.choices import MachineChoices, choices_digest, decide_choices, decide_evaluation
from trainyard.backends.machine import code_digest
from trainyard.backends.script.templates import template_digest
from trainyard.data.functions import ENVIRONMENT, converter_digest
from trainyard.data.paths import data_roots, resolve_inside
from trainyard.data.remote.fetching import read_pin
from trainyard.data.remote.kinds import find_place
from trainyard.settings import Settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import GeneratorKind, Port
from trainyard.spec.graph import ResolvedNode
from trainyard.spec.nodes import AiGeneratorConfig, DataSourceConfig, EvaluatorConfig, SourceSet, ValidatorConfig
from trainyard.spec.training import TrainerConfig
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.artifacts import Reference, node_key
from trainyard.stores.live.job_ids import DEFAULT_TENANT
from trainyard.stores.models import resolve_model

ROOMS: dict[str, tuple[str, ...]] = {
    "data_source": ("data",),
    "ai_generator": ("data", "serve", "evals/selection.py", "evals/selection_program.py"),
    "validator": ("data",),
    "trainer": ("train", "backends", "data/renderers"),
    "evaluator": ("evals",),
    "deployer": ("serve",),
}
"""Node type -> folders and modules of the library whose code makes its result."""

PACKAGES: dict[str, tuple[str, ...]] = {
    "trainer": (
        "torch",
        "transformers",
        "peft",
        "trl",
        "bitsandbytes",
        "schedulefree",
        "pytorch_optimizer",
        "torchao",
        "flash_attn",
        "flash_attn_3",
        "liger_kernel",
    ),
    "validator": ("phonenumberslite",),
    "evaluator": ("torch", "transformers", "peft"),
}
"""Node type -> packages whose version changes its result."""


def content_key(node: ResolvedNode, inputs: Mapping[Port, Sequence[Reference]], settings: Settings, run_id: str) -> str:
    """Return the key of a node's result. Raises what a missing file or model raises, before any work."""
    digests = {f"{port.value}/{n}": r.sha256 for port, references in inputs.items() for n, r in enumerate(references)}
    config = node.config.model_dump(mode="json")
    digests |= {dependency.name: dependency.digest() for dependency in dependencies(node, settings, run_id)}
    if isinstance(node.config, EvaluatorConfig) and node.config.baseline != "base":
        candidates = {reference.sha256 for port in (Port.ADAPTER, Port.MODEL) for reference in inputs.get(port, ())}
        digests["live"] = live_digest(node.config.role, settings, candidates)
    if isinstance(node.config, TrainerConfig):
        digests["choices"] = choices_digest(choices_of(node.config, inputs, settings))
    if isinstance(node.config, EvaluatorConfig):
        digests["choices"] = choices_digest(decide_evaluation(settings))
    if settings.tenant != DEFAULT_TENANT:  # results of tenants are apart; that of the default tenant keeps its key
        digests["tenant"] = settings.tenant
    return node_key(node.type, config, digests, versions(node.type))


def choices_of(config: TrainerConfig, inputs: Mapping[Port, Sequence[Reference]], settings: Settings) -> MachineChoices:
    """Return what this machine decides for a trainer, by the base that the trainer gets."""
    models = inputs.get(Port.MODEL, ())
    is_elsewhere = config.backend.facts.provider is not None
    base = None if is_elsewhere else resolve_model(config.base_model or settings.default_base_model, settings).path
    return decide_choices(config, models[0].path if models else base, settings)


class Dependency(NamedTuple):
    """Something outside the chain that a result depends on."""

    name: str
    field: str
    """Of the node, such as `config.path`; empty where no field names it."""
    digest: Callable[[], str]
    """Raises what a missing or refused file or model raises."""


def dependencies(node: ResolvedNode, settings: Settings, run_id: str) -> Iterator[Dependency]:
    """Yield what a node reads in addition to its inputs; `trainyard check` asks the same digests before anything
    starts.
    """
    config = node.config
    if isinstance(config, DataSourceConfig):
        for n, (prefix, _, source_set) in enumerate(config.named_sets()):
            field = f"config.{prefix}{'repository' if source_set.repository else 'path'}"
            yield Dependency(f"source/{n}", field, partial(source_digest, source_set, settings, run_id))
            if source_set.converter is not None:
                digest = partial(converter_digest, source_set.converter, settings)
                yield Dependency(f"converter/{n}", f"config.{prefix}converter", digest)
    if isinstance(config, ValidatorConfig):
        for n, path in enumerate(config.evaluation_sets):
            field = f"config.evaluation_sets.{n}"
            yield Dependency(f"evaluation/{n}", field, partial(path_digest, path, settings))
        if config.tokenizer:
            yield Dependency("tokenizer", "config.tokenizer", partial(model_digest, config.tokenizer, settings))
    if isinstance(config, TrainerConfig):
        if config.backend.facts.provider is None:  # which has its bases itself
            base = config.base_model or settings.default_base_model
            yield Dependency("base", "config.base_model", partial(model_digest, base, settings))
        if config.stage.teacher_model:
            teacher = config.stage.teacher_model
            yield Dependency("teacher", "config.stage.teacher", partial(model_digest, teacher, settings))
        if config.stage.teacher_server or config.stage.judges:  # what a server answers cannot be pinned
            yield Dependency("teacher_server", "", lambda: run_id)
        if (name := config.stage.environment_function) is not None:
            digest = partial(ENVIRONMENT.digest, name, settings.environments)
            yield Dependency("step", "config.stage.environment.name", digest)
        yield from trainer_identity(config, settings)
        if not config.reuse:
            yield Dependency("run", "", lambda: run_id)
    if isinstance(config, EvaluatorConfig):
        for n, line in enumerate(config.benchmarks):
            if line.path:
                yield Dependency(f"task/{n}", f"config.benchmarks.{n}.path", partial(path_digest, line.path, settings))
        if config.judge is not None:  # what a server answers cannot be pinned
            yield Dependency("judge", "", lambda: run_id)
    if node.type == "deployer":
        yield Dependency("run", "", lambda: run_id)


def list_needed_models(node: ResolvedNode, settings: Settings) -> list[str]:
    """Return the models that a node loads, as folders or Hub names."""
    config, default = node.config, settings.default_base_model
    match config:
        case TrainerConfig():
            own = [] if config.backend.facts.provider else [config.base_model or default]
            return [*own, *filter(None, [config.stage.teacher_model])]
        case ValidatorConfig():
            return [config.tokenizer or default]
        case AiGeneratorConfig() if config.engine in (GeneratorKind.LOCAL, GeneratorKind.VLLM):
            return [config.model or default]
        case _:
            return []


def trainer_identity(config: TrainerConfig, settings: Settings) -> Iterator[Dependency]:
    """Yield what a trainer outside this package is: the versions in its environment, or the text of a person's
    script.
    """
    if config.backend is BackendName.SCRIPT:
        yield Dependency("script", "config.launch.script", partial(template_digest, config.launch.script, settings))
        return
    external = config.backend in environments.ENVIRONMENTS
    if external and (installed := environments.list_installed(config.backend, settings)):
        text = "\n".join(f"{name}=={version}" for name, version in sorted(installed.items()))
        yield Dependency("environment", "", lambda: hashlib.sha256(text.encode()).hexdigest())


def source_digest(source_set: SourceSet, settings: Settings, run_id: str) -> str:
    """Local files by name, size and time of change; what is pinned by its pin; a URL or a repository by the run."""
    if (remote := find_place(source_set, settings)) is not None:
        pin = read_pin(remote, settings)
        return f"run/{run_id}/unlisted" if pin is None else pin.digest
    if source_set.sql is not None and source_set.sql.files:
        digests = [path_digest(path, settings) for path in source_set.sql.files.values()]
        return hashlib.sha256("|".join(digests).encode()).hexdigest()
    if source_set.repository:
        resolve_inside(source_set.repository, data_roots(settings))
    return f"run/{run_id}" if source_set.path is None else path_digest(source_set.path, settings)


def path_digest(path: str, settings: Settings) -> str:
    """Digest of the names, sizes and times of change of a file, or of every file below a folder.

    Raises `Refused` (`R-PATH-ROOT`) or `NotFound` (`E-DATA-NOT-FOUND`).
    """
    root = resolve_inside(path, data_roots(settings))
    files = sorted(root.rglob("*")) if root.is_dir() else [root]
    hasher = hashlib.sha256(str(root).encode())
    for file in files:
        try:
            status = file.stat() if file.is_file() else None
        except FileNotFoundError:  # gone since it was listed: git, an editor
            continue
        if status is None:
            continue
        hasher.update(f"{file.relative_to(root)}|{status.st_size}|{status.st_mtime_ns}\n".encode())
    return hasher.hexdigest()


def model_digest(name: str, settings: Settings) -> str:
    return resolve_model(name, settings).sha256


def live_digest(role: str | None, settings: Settings, candidates: Collection[str] = ()) -> str:
    """Return the digest of the version that is live on a role: a comparison with it is repeated when it changes.

    Empty where nothing is live, and where that is a candidate itself: an adapter is not compared with itself, so its
    evaluation before it went live counts.
    """
    registry = AdapterRegistry(settings.adapters)
    if role is None or registry.live(settings.tenant, role).version is None:
        return ""
    version = registry.show(f"{settings.tenant}/{role}")
    return "" if version.sha256 in candidates else version.sha256


@cache
def versions(node_type: str) -> dict[str, str]:
    """Return the version, the code of the packages that do the work, and the libraries that decide the numbers."""
    digests = {"trainyard": trainyard.__version__, "code": code_digest(ROOMS[node_type])}
    return digests | {name: package_version(name) for name in PACKAGES.get(node_type, ())}


def package_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
