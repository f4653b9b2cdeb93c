"""Each setting has an effect: a field of a config that no code reads is a promise that nobody keeps."""

from __future__ import annotations

import ast
import gc
import importlib
from collections.abc import Iterator

import pytest
from mypy import build, nodes, types
from mypy.modulefinder import BuildSource
from mypy.options import Options
from pydantic import BaseModel

from tests.architecture.test_budgets import REPOSITORY, format_path, sources
from trainyard.app.run_records import find_license
from trainyard.data.quality.detectors import detectors
from trainyard.spec.axes.axis import Strict
from trainyard.spec.job import JobSpec, chain_of_job
from trainyard.spec.migrate import HYPERPARAMETERS
from trainyard.spec.nodes import DataSourceConfig, SensitiveRules
from trainyard.spec.programs import LocalTrainingConfig, LoraConfig, LrScheduler, TrainingHyperparams

CONFIGS = ("trainyard/spec/", "trainyard/settings.py", "trainyard/serve/inference_server/profiles.py")
"""Where what a user or an operator writes is declared."""
RESULTS = "trainyard/spec/estimate/"
"""Models of what is computed, which nobody writes."""
REFUSALS = "trainyard/spec/compat/"
"""A setting that only rows of refusals look at has no effect."""
COMMENTS = {("ChainSpec", "description")}
"""Fields for people."""
COPIED = {
    "DatasetSpec": "DataSourceConfig", "DataSourceConfig": "SourceSet", "TrainingForm": "Hyperparameters",
    "AlignmentForm": "Hyperparameters", "TargetForm": "Target",
    "TrainingHyperparams": "Hyperparameters", "LoraConfig": "LowRankSettings",
}  # fmt: skip
"""Models whose fields are copied, name by name, into another model, where they are read."""
STORED = {("SetFields", "license")}
"""Fields that are read from the JSON of a stored chain; a test below has the reader of each."""
WHOLE = {"SensitiveRules"}
"""Models that are read as a whole: each field is a row of a table that a test compares with it."""
TAG = "type"
"""Picks a variant of a model, so that pydantic reads it."""
UNKNOWN = "?"
"""Whoever reads an attribute of what has no type."""

Reads = set[tuple[str, str]]
"""(name of a class, attribute)"""


def configs() -> Iterator[type[BaseModel]]:
    """Every pydantic model that is declared in one of the files."""
    for path in sources("trainyard"):
        name = format_path(path)
        if name.startswith(CONFIGS) and not name.startswith((RESULTS, REFUSALS)):
            module = importlib.import_module(name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
            declared = (
                member for member in vars(module).values() if isinstance(member, type) and issubclass(member, BaseModel)
            )
            yield from (config for config in declared if config.__module__ == module.__name__)


def readers() -> list[str]:
    """The files whose reading of a setting is an effect of it."""
    return [name for path in sources() if not (name := format_path(path)).startswith(REFUSALS)]


def find_named_reads() -> Reads:
    """Every `x.name` and `x["name"]` in the sources, whatever x is."""
    reads: Reads = set()
    for name in readers():
        for node in ast.walk(ast.parse((REPOSITORY / name).read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                reads.add((UNKNOWN, node.attr))
            elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                reads.add((UNKNOWN, str(node.slice.value)))
    return reads


def find_typed_reads() -> Reads:
    """Every `x.name` in the sources with the class of x, as mypy infers it from our own annotations alone.

    Costs 12 CPU seconds on an idle machine, 30 on a busy one: other packages are not looked into.
    """
    options = Options()
    options.export_types = options.ignore_missing_imports = options.check_untyped_defs = True
    options.incremental, options.follow_imports = False, "skip"
    files = [
        BuildSource(str(REPOSITORY / name), name.removesuffix(".py").replace("/", ".").removesuffix(".__init__"), None)
        for name in readers()
    ]
    gc.disable()  # a tenth of the time: nothing of the trees is garbage
    try:
        inferred = build.build(files, options).types
    finally:
        gc.enable()
    members = [expression for expression in inferred if isinstance(expression, nodes.MemberExpr)]
    return {(owner, member.name) for member in members for owner in list_classes(inferred.get(member.expr))}


def list_classes(inferred: types.Type | None) -> Iterator[str]:
    kind = types.get_proper_type(inferred) if inferred is not None else None
    if isinstance(kind, types.Instance):
        yield kind.type.name
    elif isinstance(kind, types.UnionType):
        for item in kind.items:
            yield from list_classes(item)


def unread(models: list[type[BaseModel]], reads: Reads) -> list[str]:
    """The fields of the models that no class of their family has read."""
    named = {model.__name__: model for model in models}
    families = {
        name: {UNKNOWN, *(other.__name__ for other in models if issubclass(model, other) or issubclass(other, model))}
        for name, model in named.items()
    }

    def is_read(name: str, field: str) -> bool:
        if any((class_name, field) in reads for class_name in families[name]):
            return True
        other, word = COPIED.get(name), HYPERPARAMETERS.get(field, field)
        return other in named and word in named[other].model_fields and is_read(other, word)

    return [
        f"{name}.{field}"
        for name, model in named.items()
        for field in (model.__annotations__ if name not in WHOLE else ())
        if field in model.model_fields and field != TAG and (name, field) not in COMMENTS | STORED
        if not is_read(name, field)
    ]


def test_every_setting_is_read() -> None:
    """By its name: a setting that shares it with another one is found by the test below."""
    models = list(configs())
    assert {"TrainerConfig", "SourceSet", "Settings", "ServerProfile", "NightConfig"} <= {m.__name__ for m in models}
    assert not unread(models, find_named_reads())


@pytest.mark.timeout(900)
def test_every_setting_is_read_by_code_that_has_its_config() -> None:
    class Planted(BaseModel):
        """Its field has a name that others have, too."""

        epochs: float = 1.0

    assert unread([*configs(), Planted], find_typed_reads()) == ["Planted.epochs"]


def test_every_kind_of_sensitive_text_has_a_detector() -> None:
    assert set(SensitiveRules.model_fields) - {"phone_regions"} == set(detectors(()))


def test_a_setting_that_nothing_reads_is_found() -> None:
    class Planted(BaseModel):
        tenant_id_of_nobody: str = ""
        epochs: float = 1.0

    assert unread([Planted], find_named_reads()) == ["Planted.tenant_id_of_nobody"]


def test_the_files_are_where_they_are_looked_for() -> None:
    assert all((REPOSITORY / name).exists() for name in (*CONFIGS, RESULTS, REFUSALS))


PROGRAMS: list[tuple[str, Strict]] = [
    ("hyperparams", TrainingHyperparams(epochs=3.0)),
    ("hyperparams", TrainingHyperparams(learning_rate=0.5)),
    ("hyperparams", TrainingHyperparams(batch_size=3)),
    ("hyperparams", TrainingHyperparams(lr_scheduler=LrScheduler.ONE_CYCLE)),
    ("hyperparams", TrainingHyperparams(max_steps=3)),
    ("lora", LoraConfig(rank=3)),
    ("lora", LoraConfig(alpha=3.0)),
    ("lora", LoraConfig(dropout=0.5)),
    ("lora", LoraConfig(target_modules=("k_proj",))),
]
"""Each field of a program's configuration with another value than its default."""


def test_every_setting_of_a_program_is_in_the_chain_of_its_job() -> None:
    def build_chain(**settings: object) -> object:
        return chain_of_job(JobSpec.model_validate(LocalTrainingConfig(**settings).body("rows.jsonl"))).model_dump()

    assert {(type(model), *model.model_fields_set) for _, model in PROGRAMS} == {
        (model, field) for model in (TrainingHyperparams, LoraConfig) for field in model.model_fields
    }
    chains = [build_chain(), *(build_chain(**{group: model}) for group, model in PROGRAMS)]
    assert all(chain not in chains[:index] for index, chain in enumerate(chains))


def test_the_licence_of_a_set_is_read_from_the_stored_chain() -> None:
    config = DataSourceConfig.model_validate({"path": "rows.jsonl", "license": "cc0"})
    sets = DataSourceConfig.model_validate({"sets": {"sft": {"path": "rows.jsonl", "license": "cc-by-4.0"}}})
    assert find_license(config.model_dump(mode="json"), "sft") == "cc0"
    assert find_license(sets.model_dump(mode="json"), "sft") == "cc-by-4.0"
    assert {("SetFields", "license")} == STORED
