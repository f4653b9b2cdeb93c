from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydantic import TypeAdapter

from tools.docs.pages import names_text
from trainyard.app.adapters.registry import list_adapters, show_adapter
from trainyard.app.chains.run import run
from trainyard.app.context import Context
from trainyard.app.plan.check import check
from trainyard.app.stack.doctor import examine
from trainyard.app.stack.stack import down, env
from trainyard.errors import InvalidInput, Refused, Unavailable
from trainyard.loading import load_object
from trainyard.operations.adapters import AdapterName, AdaptersInput
from trainyard.operations.base import Nothing, Request
from trainyard.operations.chains import CheckInput, RunInput
from trainyard.operations.table import NAMES_FILE, OPERATIONS, Scope, group_lines
from trainyard.settings import Settings, load_settings, settings
from trainyard.stores.adapters import AdapterRegistry

CHAIN = "nodes: [{type: data_source, config: {path: docs}}]"


@pytest.fixture
def context(monkeypatch: pytest.MonkeyPatch) -> Context:
    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        monkeypatch.delenv(name, raising=False)
    return Context(settings(), say=lambda _text: None)


def adapter(folder: Path, here: Settings) -> None:
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(b"weights")
    registry = AdapterRegistry(here.adapters)
    registry.register("default", "assistant", folder, facts={"base_model": "starter", "evaluated": True})
    registry.promote("default/assistant/v1")


@pytest.mark.parametrize("verb", OPERATIONS)
def test_every_verb_explains_itself_in_one_line(verb: str) -> None:
    assert OPERATIONS[verb].summary.endswith(".")
    assert len(OPERATIONS[verb].summary) <= 120


@pytest.mark.parametrize("verb", OPERATIONS)
def test_every_row_can_be_loaded_and_says_what_its_implementation_says(verb: str) -> None:
    row = OPERATIONS[verb]
    request, implementation = row.request, load_object(f"trainyard.{row.run}")
    assert issubclass(request, Request)
    hints = get_type_hints(implementation)
    assert TypeAdapter(hints.pop("return")).json_schema(mode="serialization")
    assert list(hints.values()) == [request, Context]
    assert row.text.__annotations__["return"] == "str"
    assert not row.part_text or row.part_text.__annotations__["return"] == "str"
    assert isinstance(row.scope, Scope)


def test_every_first_word_of_two_is_explained() -> None:
    first_words = {verb.split()[0] for verb in OPERATIONS if " " in verb}
    assert first_words == set(group_lines()) | (first_words & set(OPERATIONS))
    assert not set(group_lines()) & set(OPERATIONS)


def test_requests_are_imported_without_what_carries_them_out() -> None:
    heavy = "{'numpy', 'pyarrow', 'torch', 'prefect', 'httpx', 'click', 'trainyard.settings', 'trainyard.app'}"
    table = "from trainyard.operations.table import OPERATIONS; len(OPERATIONS)"
    program = f"import sys; {table}; print(*{heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_check_gives_all_reasons_of_all_files(tmp_path: Path, context: Context) -> None:
    (tmp_path / "good.yaml").write_text(CHAIN)
    (tmp_path / "bad.yaml").write_text("nodes: [{type: trainr}, {type: trainer, config: {foo: 1}}]")
    files = (tmp_path / "good.yaml", tmp_path / "bad.yaml")
    report = check(CheckInput(files=files), context)
    assert [file.ok for file in report.files] == [True, False]
    assert [reason["code"] for reason in report.files[1].reasons][:2] == ["E-SPEC-TYPE", "E-SPEC-KEY"]
    assert report.exit_code == 5


def test_check_takes_a_file_that_is_no_yaml(tmp_path: Path, context: Context) -> None:
    (tmp_path / "bad.yaml").write_text("nodes: [")
    report = check(CheckInput(files=(tmp_path / "bad.yaml",)), context)
    assert report.files[0].reasons[0]["code"].startswith("E-SPEC")
    assert report.exit_code == 5


def test_a_refused_chain_never_reaches_a_server(tmp_path: Path, context: Context) -> None:
    (tmp_path / "bad.yaml").write_text("nodes: [{type: trainr}]")
    with pytest.raises(Refused, match="E-SPEC-TYPE"):
        run(RunInput(target=str(tmp_path / "bad.yaml")), context)


@pytest.mark.integration
def test_a_run_without_a_server_says_how_to_get_one(context: Context, tiny_model: Path) -> None:
    context = replace(context, settings=load_settings(default_base_model=str(tiny_model)))
    with pytest.raises(Unavailable, match="E-NO-SERVER"):
        run(RunInput(target="code-tuning", yes=True), context)


def test_env_without_a_server_says_how_to_get_one(context: Context) -> None:
    with pytest.raises(Unavailable, match=r"E-NO-SERVER: No Prefect server of the home .* is running\."):
        env(Nothing(), context)


def test_a_run_that_is_continued_takes_nothing_else(context: Context) -> None:
    run_id = "0aa885f8-eaaa-4f32-a852-144a17056dc2"
    with pytest.raises(InvalidInput, match="E-PARAMETER: A run that is continued takes no parameters"):
        run(RunInput(target=run_id, parameters={"count": 1}), context)


def test_down_where_nothing_runs(context: Context) -> None:
    assert down(Nothing(), context).stopped == ()


def test_adapters_are_listed_with_the_live_one_marked(tmp_path: Path, context: Context) -> None:
    adapter(tmp_path / "a", context.settings)
    (row,) = list_adapters(AdaptersInput(), context).rows
    assert row["name"] == "default/assistant/v1"
    assert row["live"] is True
    assert row["base"] == "starter"
    assert list_adapters(AdaptersInput(tenant="other"), context).rows == ()


def test_an_adapter_is_shown_with_its_files(tmp_path: Path, context: Context) -> None:
    adapter(tmp_path / "a", context.settings)
    record = show_adapter(AdapterName(name="default/assistant"), context).record
    assert "adapter_model.safetensors" in record["files"]
    assert Path(record["path"]).is_dir()


def test_the_doctor_finds_what_is_missing_and_what_to_do(context: Context) -> None:
    checks = {check.name: check for check in examine(Nothing(), context).checks}
    assert checks["python"].ok
    assert checks["prefect"].ok
    assert checks["fastapi"].ok
    assert not checks["prefect server"].ok
    assert checks["prefect server"].do.startswith("Run `trainyard up`")
    assert checks["base model"].ok
    assert "starter" in checks["base model"].detail
    assert checks["backend native"].ok
    assert checks["backend trl"].ok
    assert checks["backend unsloth"].note
    assert checks["code sandbox"].detail.startswith(("namespaces: ", "landlock+seccomp: "))
    assert "profile rules; the night starts and ends that server" in checks["night"].detail


def test_the_doctor_reads_the_config_of_the_night(context: Context) -> None:
    path = context.settings.home / "nightly.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("serving: {profile: mine}\n")
    assert "profile mine" in find_check(context, "night").detail
    path.write_text("serving: {profil: mine}\n")
    assert not find_check(context, "night").ok


def find_check(context: Context, name: str) -> Any:
    return next(check for check in examine(Nothing(), context).checks if check.name == name)


def test_a_doctor_with_problems_is_not_ok(context: Context) -> None:
    assert examine(Nothing(), context).exit_code == 1


def test_names_and_summaries_are_known_without_their_rows() -> None:
    assert NAMES_FILE.read_text(encoding="utf-8") == names_text(), "run `python -m tools.docs`"
