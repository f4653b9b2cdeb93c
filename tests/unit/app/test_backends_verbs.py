"""`trainyard backends`, its lines in the doctor, and `trainyard eject`."""

from __future__ import annotations

import json
import venv
from pathlib import Path

import pytest

from trainyard.app.backends import backend_table, show_backends
from trainyard.app.chains.eject import eject
from trainyard.app.context import Context
from trainyard.app.plan.keys import trainer_identity
from trainyard.app.stack.doctor import look_at_backends
from trainyard.backends import environments
from trainyard.backends.script.templates import TEMPLATES_FOLDER
from trainyard.errors import InvalidInput, NotFound, Refused
from trainyard.operations.backends import BackendsInput
from trainyard.operations.chains import EjectInput
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.training import TrainerConfig
from trainyard.surfaces.cli.command import render

JOB = """
dataset: {{path: rows.jsonl}}
base_model: {base}
{more}
"""


@pytest.fixture
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    turns = [("user", "What is {}?"), ("assistant", "It is {}.")]
    rows = [{"messages": [{"role": role, "content": text.format(n)} for role, text in turns]} for n in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_settings(home=home)


def job(tmp_path: Path, base: Path, more: str = "") -> str:
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(base=base, more=more))
    return str(path)


def test_every_backend_says_what_it_is_or_what_mends_it(here: Settings) -> None:
    rows = {row.name: row for row in backend_table(here, imports=True).rows}
    assert set(rows) == set(BackendName)
    assert (rows[BackendName.NATIVE].imports, rows[BackendName.NATIVE].fits) == ("with trainyard", True)
    for name in environments.ENVIRONMENTS:
        assert (rows[name].available, rows[name].imports) == (False, "-")
        assert rows[name].fix == f"Run `trainyard backends install {name.value}`."
    assert "allow_scripts" in rows[BackendName.SCRIPT].fix
    assert rows[BackendName.NATIVE].options.settings["adapter"] == ("continue", "stack", "merge")
    for name, row in rows.items():  # what `check` refuses is not among the options
        assert (row.options.stages, row.options.methods) == (name.facts.stages, name.facts.methods)
    text = render("backends", backend_table(here, imports=False))
    assert text.splitlines()[0].split() == ["backend", "state", "version", "imports", "computes", "on"]
    assert "deepspeed: deepspeed is not installed" in text


def test_an_environment_that_does_not_import_is_shown_as_broken(here: Settings) -> None:
    envs_folder = here.home / "envs" / "deepspeed"
    venv.create(envs_folder, with_pip=False)
    (site,) = environments.site_packages(envs_folder)
    (site / f"deepspeed-{environments.pins(BackendName.DEEPSPEED)['deepspeed']}.dist-info").mkdir()
    row = {row.name: row for row in backend_table(here, imports=False).rows}[BackendName.DEEPSPEED]
    assert (row.available, row.imports) == (True, "not tested")
    row = {row.name: row for row in backend_table(here, imports=True).rows}[BackendName.DEEPSPEED]
    assert (row.available, row.imports) == (False, "broken")
    assert "No module named 'torch'" in row.why
    (check,) = [check for check in look_at_backends(here) if check.name == "backend deepspeed"]
    assert (check.ok, check.note) == (False, True)
    assert check.detail.endswith("Run `trainyard backends install deepspeed`.")


def identity(config: TrainerConfig, here: Settings) -> dict[str, str]:
    return {dependency.name: dependency.digest() for dependency in trainer_identity(config, here)}


def test_another_environment_and_another_script_make_other_results(here: Settings) -> None:
    config = TrainerConfig(backend=BackendName.DEEPSPEED)
    assert identity(config, here) == {}
    envs_folder = here.home / "envs" / "deepspeed"
    venv.create(envs_folder, with_pip=False)
    (site,) = environments.site_packages(envs_folder)
    (site / "deepspeed-1.0.dist-info").mkdir()
    first = identity(config, here)
    (site / "other-1.0.dist-info").mkdir()
    assert first != identity(config, here)
    assert identity(TrainerConfig(), here) == {}
    folder = here.home / TEMPLATES_FOLDER
    folder.mkdir()
    (folder / "mine.py").write_text("1")
    script_config = TrainerConfig.model_validate({"backend": "script", "launch": {"script": "mine"}})
    before = identity(script_config, here)
    (folder / "mine.py").write_text("2")
    assert before != identity(script_config, here)


def test_a_job_file_becomes_a_folder_to_run_by_hand(here: Settings, tmp_path: Path, tiny_model: Path) -> None:
    ejected = eject(EjectInput(target=job(tmp_path, tiny_model, "method: dora")), Context(here))
    assert ejected.folder == tmp_path / "trainer-script"
    assert {path.name for path in ejected.folder.iterdir()} == {"train.py", "spec.json", "rows.jsonl"}
    assert ejected.rows == 12
    spec = json.loads((ejected.folder / "spec.json").read_text())
    assert (spec["method"], spec["base"], spec["hyperparameters"]["epochs"]) == ("dora", str(tiny_model), 3.0)
    assert "train.py spec.json" in render("eject", ejected)
    with pytest.raises(InvalidInput, match="E-FILE-EXISTS"):
        eject(EjectInput(target=job(tmp_path, tiny_model)), Context(here))


def test_eject_from_another_folder_names_the_command_that_finds_the_rows(
    here: Settings, tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Paths of a job start in the working folder, for `run` and for `eject` alike."""
    file = job(tmp_path, tiny_model)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(NotFound, match=rf"E-DATA-NOT-FOUND.*`cd {tmp_path} && trainyard eject job\.yaml`"):
        eject(EjectInput(target=file), Context(load_settings(home=here.home)))
    assert not (tmp_path / "elsewhere" / "trainer-script").exists()


def test_what_the_built_in_script_lacks_is_not_ejected(here: Settings, tmp_path: Path, tiny_model: Path) -> None:
    more = "hyperparameters: {optimizer: muon}"
    with pytest.raises(Refused, match=r"R-BACKEND-SETTING .*does not support optimizer muon"):
        eject(EjectInput(target=job(tmp_path, tiny_model, more)), Context(here))
    assert not (tmp_path / "trainer-script").exists()


def test_a_chain_that_has_not_run_yet_has_no_rows_to_eject(here: Settings, tmp_path: Path, tiny_model: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n\nA node reads.\n")
    path = tmp_path / "chain.yaml"
    path.write_text(
        f"nodes: [{{type: data_source, config: {{path: docs}}}}, {{type: ai_generator}}, "
        f"{{type: trainer, config: {{base_model: {tiny_model}}}}}]"
    )
    with pytest.raises(NotFound, match=r"E-DATA-NOT-FOUND: What ai-generator makes is not there yet"):
        eject(EjectInput(target=str(path)), Context(here))
    with pytest.raises(NotFound, match=r"E-NODE: The chain has no single trainer 'other'.* are: trainer\."):
        eject(EjectInput(target=str(path), node="other"), Context(here))


def test_the_table_is_not_slow(here: Settings) -> None:
    assert BackendsInput().imports
    table = show_backends(BackendsInput(imports=False), Context(here))
    assert {row.name for row in table.rows if row.fits} >= {BackendName.NATIVE}
