"""What the processes of this product are started with, read where the kernel keeps it: /proc/PID/environ."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from trainyard.app.services import exclusive, service_environment, spawn, stop
from trainyard.backends.job import TrainingJob
from trainyard.backends.programs import environment
from trainyard.compute.supervise import Status, supervise
from trainyard.data.prompts import PromptChild
from trainyard.inherited import UMASK, child_environment, close_to_others, installer_environment, server_environment
from trainyard.serve.prompt_fields import check_chat_template
from trainyard.settings import Settings, load_settings, settings
from trainyard.spec.training import TrainerConfig
from trainyard.stores.graph.remote import open_graph

pytestmark = pytest.mark.integration

SOURCE = Path(__file__).parents[2] / "trainyard"
SECRET = "hunter2-hunter2"
PLANTED = (
    "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING",
    "HF_TOKEN", "WANDB_API_KEY", "TRAINYARD_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "ANYTHING_ELSE",
)  # fmt: skip
NEEDED = {"OMP_NUM_THREADS": "3", "HF_HUB_OFFLINE": "1", "NCCL_DEBUG": "INFO", "https_proxy": "http://198.51.100.1:1"}


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A shell with secrets, in which the product's process keeps its files private."""
    for name in PLANTED:
        monkeypatch.setenv(name, SECRET)
    for name, value in NEEDED.items():
        monkeypatch.setenv(name, value)
    before = os.umask(UMASK)
    yield
    os.umask(before)


@pytest.mark.parametrize("field", Settings.model_fields)
def test_every_setting_reaches_services_and_children(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, known_settings = (
        f"TRAINYARD_{field.upper()}",
        settings(),
    )  # read before the variable has a value that may not fit
    monkeypatch.setenv(name, "1")
    services = [
        service_environment(known_settings, "http://127.0.0.1:1", service) for service in ("api", "worker", "watchdog")
    ]
    for variables in (child_environment(), server_environment(speaks_with_prefect=True), *services):
        assert name in variables


def read_environ(process: psutil.Process) -> dict[str, str]:
    return dict(
        entry.split("=", 1) for entry in Path(f"/proc/{process.pid}/environ").read_text().split("\0") if "=" in entry
    )


def judge(variables: dict[str, str]) -> None:
    """Nothing that was planted is there, under no name; what a child needs is."""
    assert [name for name, value in variables.items() if SECRET in value] == []
    assert NEEDED.items() <= variables.items()


@contextmanager
def watch_child() -> Iterator[list[psutil.Process]]:
    """The one process that the block starts, by what is in the list when it is left."""
    before = set(psutil.Process().children())
    children: list[psutil.Process] = []
    yield children
    children += set(psutil.Process().children()) - before
    assert len(children) == 1


def test_a_supervised_child(tmp_path: Path) -> None:
    """As trainers, evaluations and vLLM servers are started."""
    program = "import pathlib; pathlib.Path('environ').write_bytes(pathlib.Path('/proc/self/environ').read_bytes())"
    argv = [sys.executable, "-c", f"import os; os.chdir({str(tmp_path)!r}); {program}"]
    assert supervise(argv, tmp_path, env={"RANK": "0"}).status is Status.DONE
    variables = dict(entry.split("=", 1) for entry in (tmp_path / "environ").read_text().split("\0") if "=" in entry)
    judge(variables)
    assert variables["RANK"] == "0"
    assert (tmp_path / "environ").stat().st_mode & 0o777 == 0o600


def test_the_child_that_renders_a_prompt() -> None:
    child = PromptChild("Say {{ document }}.")
    with watch_child() as children:
        child.open_prompt()
    try:
        judge(read_environ(children[0]))
    finally:
        child.stop()


def test_the_writer_of_the_graph(home: Path) -> None:
    with open_graph("", load_settings(home=home)) as graph:
        with watch_child() as children:
            graph.stats()
        judge(read_environ(children[0]))
    assert (home / "graph").stat().st_mode & 0o077 == 0


def test_the_child_that_tries_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends by itself, so what it was given is seen where it is given."""
    seen = []
    popen = subprocess.Popen

    def note(*arguments: object, **options: object) -> object:
        seen.append(options["env"])
        return popen(*arguments, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "Popen", note)
    check_chat_template("{{ messages[0]['content'] }}")
    judge(seen[0])


def test_a_service_gets_prefects_variables_and_no_others(home: Path) -> None:
    service_settings = load_settings(home=home)
    variables = service_environment(service_settings, "http://127.0.0.1:4200/api")
    secrets = {name for name, value in variables.items() if value == SECRET}
    assert secrets <= {"PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"}
    service = spawn(service_settings, "sleeper", [sys.executable, "-c", "import time; time.sleep(60)"], variables, "")
    try:
        assert read_environ(psutil.Process(service.pid)) == variables
        assert Path(service.log).stat().st_mode & 0o777 == 0o600
    finally:
        stop(service_settings, "sleeper")


def test_the_worker_gets_the_keys_of_the_endpoints_and_what_the_operator_lists(home: Path) -> None:
    endpoints = {"gpt": {"base_url": "http://198.51.100.7/v1", "api_key_env": "OPENAI_API_KEY"}}
    service_settings = load_settings(home=home, endpoints=endpoints, worker_variables=["ANYTHING_ELSE"])
    worker = service_environment(service_settings, "http://127.0.0.1:4200/api", "worker")
    assert worker["OPENAI_API_KEY"] == worker["ANYTHING_ELSE"] == worker["TRAINYARD_TOKEN"] == SECRET
    assert "AWS_SECRET_ACCESS_KEY" not in worker
    server = service_environment(service_settings, "http://127.0.0.1:4200/api")
    assert not {"OPENAI_API_KEY", "ANYTHING_ELSE", "TRAINYARD_TOKEN"} & set(server)


def test_the_operator_can_pass_more_to_the_children(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINYARD_CHILD_VARIABLES", '["HF_TOKEN"]')
    assert child_environment()["HF_TOKEN"] == SECRET
    assert "WANDB_API_KEY" not in child_environment()


@pytest.mark.parametrize(
    ("mirror", "expected"),
    [
        ("gs://ours/checkpoints/one", True), ("gs://ours/checkpoints", True), ("gs://ours/checkpoints-2", False),
        ("gs://somebody-elses/checkpoints", False), ("", False),
    ],
)  # fmt: skip
def test_only_a_training_that_writes_to_a_listed_bucket_gets_what_opens_it(
    mirror: str, expected: bool, monkeypatch: pytest.MonkeyPatch, home: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRAINYARD_MIRROR_STORES", '["gs://ours/checkpoints/"]')
    config = TrainerConfig.model_validate({"base_model": "m", "engine": {"mirror": mirror or None}})
    job = TrainingJob(config=config, base=str(tmp_path), data={}, locks=str(tmp_path))
    assert ("GOOGLE_APPLICATION_CREDENTIALS" in environment(job)) == expected


def test_an_installation_finds_its_packages_and_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://198.51.100.7/simple")
    variables = installer_environment()
    judge(variables)
    assert variables["PIP_INDEX_URL"] == "https://198.51.100.7/simple"
    assert "PIP_INDEX_URL" not in child_environment()


FORGOTTEN = {
    "compute/shim.py", "prefect_api/draining_worker.py", "backends/axolotl/program.py", "backends/external/runner.py",
    "backends/llamacpp/program.py", "testing/vllm_program.py", "prefect_api/reviving.py",
}  # fmt: skip
"""They run in a child that was given its environment by this table, or hand on what they were given."""


def test_every_process_is_started_with_an_environment_of_its_own() -> None:
    """A call without `env`, or with all of `os.environ`, hands every secret of the shell on."""
    findings: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        text = path.read_text(encoding="utf-8")
        if "**os.environ" in text:
            findings.append(name)
        if "subprocess" not in text:
            continue
        for call in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)):
            called = ast.unparse(call.func)
            if called not in ("subprocess.Popen", "subprocess.run", "subprocess.check_output", "Popen"):
                continue
            keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
            if "env" not in keywords or "os.environ" in keywords["env"]:
                findings.append(f"{name}:{call.lineno}")
    assert {where.partition(":")[0] for where in findings} <= FORGOTTEN, findings


def test_a_home_that_others_could_read_is_closed(home: Path) -> None:
    (home / "runs").mkdir(parents=True, mode=0o755)
    (home / "runs" / "rows.jsonl").write_text("{}")
    (home / "runs" / "program").write_text("#!/bin/sh")
    (home / "runs" / "program").chmod(0o755)
    outside = home.parent / "shared.txt"
    outside.write_text("not ours")
    outside.chmod(0o644)
    (home / "runs" / "link").symlink_to(outside)
    (home / "runs" / "rows.jsonl").chmod(0o644)
    home.chmod(0o755)
    messages: list[str] = []
    with exclusive(load_settings(home=home), messages.append):
        modes = {path.name: path.lstat().st_mode & 0o777 for path in home.rglob("*") if not path.is_symlink()}
    assert modes["runs"] == modes["program"] == modes["services"] == 0o700
    assert modes["rows.jsonl"] == 0o600
    assert home.stat().st_mode & 0o777 == 0o700
    assert outside.stat().st_mode & 0o777 == 0o644, "what a link leads to is somebody else's"
    assert len(messages) == 1
    assert "closed" in messages[0]
    assert close_to_others(home) == 0
