"""Trainyard from Python: every operation as a method, and chains built of objects."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

import trainyard
from tools.docs.sdk import sdk_types
from trainyard import (
    AiGenerator,
    Chain,
    DataSource,
    Deployer,
    Evaluator,
    Trainer,
    TrainyardError,
    Validator,
    adapters,
    check,
    here,
    jobs,
    plan,
    run,
)
from trainyard.errors import InvalidInput, NotFound, Refused, Unavailable
from trainyard.operations.table import OPERATIONS
from trainyard.settings import settings
from trainyard.spec.templates import TEMPLATES
from trainyard.surfaces.sdk import asynchronous, surface
from trainyard.surfaces.sdk.surface import Surface, attribute_name

pytestmark = pytest.mark.integration

ROWS = '{"messages": [{"role": "user", "content": "a?"}, {"role": "assistant", "content": "b"}]}\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows.jsonl").write_text(ROWS * 8)
    monkeypatch.chdir(tmp_path)
    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)


def names_bound_by(tree: ast.Module) -> set[str]:
    names = set[str]()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.AnnAssign):
            names.add(ast.unparse(node.target))
        elif isinstance(node, ast.Assign):
            names |= {ast.unparse(target) for target in node.targets}
    return names


def find_method(operation: str) -> Surface:
    method = here
    for word in operation.split():
        method = getattr(method, attribute_name(word))
    return method


def test_every_operation_is_a_method_with_the_fields_of_its_request() -> None:
    for name, row in OPERATIONS.items():
        method = find_method(name)
        fields = row.request.model_fields
        assert list(inspect.signature(method).parameters) == list(fields), name
        assert method.__doc__ == row.summary


def test_the_types_for_editors_are_those_of_the_table() -> None:
    """Every method, with the fields of its request; every name of a type exists."""
    check_types(sdk_types())


def check_types(text: str) -> None:
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(str(node.module))
            assert not [alias.name for alias in node.names if not hasattr(module, alias.name)], node.module
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    methods = [node for node in functions if node.returns and node.args.args and node.args.args[0].arg == "self"]
    fields = Counter(tuple(field.arg for field in method.args.kwonlyargs) for method in methods)
    assert not Counter(tuple(row.request.model_fields) for row in OPERATIONS.values()) - fields


def test_an_editable_install_has_the_types() -> None:
    """`make setup` installs the checkout, whose build writes them next to the modules."""
    for module in (surface, asynchronous):
        assert Path(str(module.__file__)).with_suffix(".pyi").is_file(), "run `python -m tools.docs types`"


def test_importing_trainyard_imports_nothing_heavy() -> None:
    heavy = "{'numpy', 'pyarrow', 'torch', 'prefect', 'httpx', 'pydantic', 'yaml'}"
    program = f"import sys, trainyard; print(*{heavy} & set(sys.modules)); trainyard.Chain; print(*trainyard.EXPORTS)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, names = done.stdout.split("\n")[:2]
    assert first == ""
    assert set(names.split()) <= set(dir(trainyard))
    assert all(getattr(trainyard, name) for name in names.split())
    with pytest.raises(AttributeError, match="no attribute 'Chian'"):
        _ = trainyard.Chian


def test_the_public_names_are_these() -> None:
    assert trainyard.__all__ == [
        "AdapterMethod", "AiGenerator", "AlignmentMethod", "Chain", "CloudFineTuneConfig", "ComputeDevice",
        "DataSource", "Deployer", "Evaluator", "FineTuneProviderFactory", "InstructDataset", "LocalTrainingConfig",
        "LoraConfig", "LrScheduler", "PreferenceDataset", "Trainer", "TrainingHyperparams", "TrainingJobStatus",
        "TrainingManager", "TrainyardError", "Validator", "adapters", "aio", "check",
        "connect", "connect_async", "here", "jobs", "plan",
        "run",
    ]  # fmt: skip
    typed = names_bound_by(ast.parse(Path(str(trainyard.__file__)).with_suffix(".pyi").read_text(encoding="utf-8")))
    assert typed == {*trainyard.__all__, "__version__", "JobState"}  # the last is what TrainingJobStatus names


def test_check_plan_run_jobs_and_adapters_are_those_of_here(tmp_path: Path) -> None:
    chain = {"name": "c", "nodes": [{"type": "data_source", "config": {"path": "rows.jsonl"}}, {"type": "trainer"}]}
    (tmp_path / "chain.yaml").write_text(yaml.safe_dump(chain))
    file = check(files=(tmp_path / "chain.yaml",)).files[0]
    assert file.ok, file.reasons
    assert plan(target="chain.yaml").digest == file.digest == here.plan(target="chain.yaml").digest
    assert adapters.list() == here.adapters.list()
    for refused in (lambda: run(target="chain.yaml"), jobs.list):
        with pytest.raises(Unavailable, match="E-NO-SERVER"):
            refused()
    for name in ("check", "plan", "run", "jobs list", "adapters list"):
        method: Any = trainyard
        for word in name.split():
            method = getattr(method, word)
        assert inspect.signature(method) == inspect.signature(find_method(name)), name


def test_an_operation_answers_what_the_command_prints() -> None:
    assert here.adapters.list().rows == ()
    assert [row.name for row in here.templates().templates] == list(TEMPLATES)


def test_what_is_not_there_or_not_taken_is_said() -> None:
    with pytest.raises(AttributeError, match=r"There is no operation 'adapters publish'. Here are: list, show"):
        _ = here.adapters.publish  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="adapters is a group of operations: list, show"):
        here.adapters()  # type: ignore[operator]
    with pytest.raises(InvalidInput, match=r"E-PARAMETER: jobs list does not take this value of 'limit'"):
        here.jobs.list(limit=0)
    with pytest.raises(InvalidInput, match=r"E-PARAMETER: jobs list has no field 'limt'.*Do: Did you mean 'limit'\?"):
        here.jobs.list(limt=3)
    with pytest.raises(InvalidInput, match=r"E-PARAMETER: templates has no field 'verbosity'.*Do: Leave it out\."):
        here.templates(verbosity=3)


def line_of_all() -> Chain:
    return Chain(
        [
            DataSource(path="rows.jsonl"), AiGenerator(), Validator(), Trainer(stage="sft", method="lora"), Evaluator(),
            Deployer(role="helper"),
        ],
        name="all",
    )  # fmt: skip


def test_a_chain_has_the_digest_of_its_file(tmp_path: Path) -> None:
    chain = Chain(nodes=[DataSource(path="rows.jsonl"), Trainer(stage="sft", hyperparameters={"max_steps": 3})])
    (tmp_path / "chain.yaml").write_text(chain.to_yaml())
    checked, of_file = chain.check(), here.check(files=(tmp_path / "chain.yaml",)).files[0]
    assert checked.ok, checked.reasons
    assert (checked.file, checked.nodes, checked.digest) == ("chain", 2, of_file.digest)
    assert chain.plan().digest == checked.digest
    assert Chain.of(tmp_path / "chain.yaml").check().digest == checked.digest
    assert yaml.safe_load(line_of_all().to_yaml())["nodes"][-1] == {"type": "deployer", "config": {"role": "helper"}}


def test_a_template_becomes_a_chain() -> None:
    chain = Chain.of("code-tuning", count=7)
    assert [node.type for node in chain.spec.nodes][-1] == "deployer"
    assert "count: 7" in chain.to_yaml()
    with pytest.raises(NotFound, match="E-PARAMETER"):
        Chain.of("code-tunning")


def test_reasons_are_those_of_a_file() -> None:
    chain = Chain([DataSource(path="rows.jsonl"), Trainer(stage="sfft")])
    checked = chain.check()
    assert (checked.ok, checked.reasons[0]["code"]) == (False, "E-SPEC-VALUE")
    with pytest.raises(Refused, match="Did you mean 'sft'"):
        _ = chain.spec
    with pytest.raises(TrainyardError, match="E-SPEC"):
        chain.plan()


def test_nodes_are_needed_by_object_or_id() -> None:
    rows = DataSource(path="rows.jsonl", id="rows")
    chain = Chain([rows, Trainer(id="one", needs=[rows]), Trainer(id="two", needs=["rows"])])
    assert [node.needs for node in chain.spec.nodes] == [None, ("rows",), ("rows",)]
    assert repr(chain) == "Chain(rows → one → two)"
    assert chain._repr_markdown_().splitlines()[2:] == [
        "  rows[rows]", "  one[one]", "  two[two]", "  rows --> one", "  rows --> two", "```",
    ]  # fmt: skip
    with pytest.raises(InvalidInput, match=r"DataSource\(path='rows.jsonl'\) is needed by another node and has no id"):
        Chain([Trainer(needs=[DataSource(path="rows.jsonl")])])


def test_a_run_without_a_server_is_refused_as_on_the_command_line(tiny_model: Path) -> None:
    chain = Chain([DataSource(path="rows.jsonl"), Trainer(stage="sft", base_model=str(tiny_model))])
    with pytest.raises(Unavailable, match="E-NO-SERVER"):
        chain.run()
    assert not settings().runs.exists()


def test_the_page_about_python_runs_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(trainyard.__file__).parents[1]
    monkeypatch.chdir(root)
    text = (root / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 3
    names: dict[str, object] = {}
    for block in blocks[:2]:
        exec(block, names)
    assert isinstance(names["both"], Chain)
    assert names["chain"].check().ok  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match="E-NO-SERVER"):  # it asks for jobs, and there is no stack
        exec(blocks[2], names)
