from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from trainyard.api.operations import OPERATIONS
from trainyard.cli import app, parsed
from trainyard.errors import InvalidInput

REPOSITORY = Path(__file__).parents[2]
GOOD = "nodes: [{type: data_source, config: {path: docs}}]"


def trainyard(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a user starts it, without any Prefect variable of the caller."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    return subprocess.run(
        [sys.executable, "-m", "trainyard.cli", *arguments],
        capture_output=True, text=True, timeout=60, check=False, env={**kept, **environment},
    )  # fmt: skip


def test_the_commands_are_the_promised_ones() -> None:
    root = click.Context(app)
    found = {name: app.get_command(root, name) for name in app.list_commands(root)}
    commands = {name for name, command in found.items() if not isinstance(command, click.Group)}
    assert commands == {"up", "down", "env", "doctor", "check", "plan", "run", "demo", "prove-resume", "eject", "serve"}
    groups = {name: set(one.list_commands(root)) for name, one in found.items() if isinstance(one, click.Group)}
    jobs = {"create", "list", "show", "logs", "metrics", "pause", "resume", "cancel"}
    assert groups == {
        "adapters": {"list", "show", "convert"},
        "backends": {"install"},
        "corpus": {"engineering", "apprenticeship", "status"},
        "graph": {"query", "stats", "export"},
        "jobs": jobs,
        "nightly": {"run", "simulate", "worker", "status"},
        "renderers": {"verify"},
        "starter": {"build"},
    }


def test_the_commands_are_the_table() -> None:
    assert {name for name, _ in commands_of(app)} == set(OPERATIONS)
    assert all(command.help and command.get_params(click.Context(command)) for _, command in commands_of(app))


def commands_of(group: click.Group, word: str = "") -> Iterator[tuple[str, click.Command]]:
    """Everything that can be carried out: the commands, and the groups that are commands themselves."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{word} {name}".strip(), command
        if isinstance(command, click.Group):
            yield from commands_of(command, name)


def test_check_prints_one_line_per_reason_and_exits_5(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "nodes: [{type: data_source, config: {path: docs}}, {type: trainr}, {type: deployer, config: {x: 1}}]"
    )
    found = trainyard("check", str(path))
    assert found.returncode == 5
    assert found.stderr == ""
    lines = found.stdout.splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert [line.split()[1] for line in lines] == ["E-SPEC-TYPE", "E-SPEC-KEY"]


def test_check_of_a_good_chain_is_ok(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    found = trainyard("check", str(tmp_path / "good.yaml"), "--json")
    assert found.returncode == 0
    (one,) = json.loads(found.stdout)["files"]
    assert one["ok"] is True
    assert len(one["digest"]) == 64


def test_a_file_that_is_not_there_exits_3() -> None:
    found = trainyard("check", "nothing.yaml")
    assert found.returncode == 3
    assert found.stdout == ""
    assert found.stderr.startswith("E-TARGET: There is neither a template nor a file 'nothing.yaml'.")


def test_a_usage_error_exits_2() -> None:
    assert trainyard("check").returncode == 2
    assert trainyard("fly").returncode == 2
    assert trainyard("check", "--unknown", "a.yaml").returncode == 2


def test_an_error_with_json_is_a_document_on_stdout() -> None:
    found = trainyard("run", "nothing", "--json")
    assert found.returncode == 3
    assert json.loads(found.stdout)["error"]["code"] == "E-TARGET"


def test_no_server_exits_7_without_importing_prefect(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("nodes: [{type: data_source, config: {path: docs}}]")
    found = trainyard("run", str(tmp_path / "good.yaml"))
    assert found.returncode == 7
    assert "Run `trainyard up`" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_broken_setting_is_one_sentence() -> None:
    found = trainyard("adapters", "list", TRAINYARD_PREFECT_PORT="many")
    assert found.returncode == 5
    assert "E-SETTINGS" in found.stderr
    assert "Traceback" not in found.stderr


def test_check_and_plan_import_neither_prefect_nor_torch() -> None:
    code = (
        "import sys, trainyard.cli; heavy = {'prefect', 'torch', 'transformers', 'fastapi'} & set(sys.modules); "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m trainyard.cli doctor --json | head -c 1"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert found.stdout == "{"
    assert "Traceback" not in found.stderr
    assert "BrokenPipe" not in found.stderr


def test_the_version() -> None:
    found = trainyard("--version")
    assert found.returncode == 0
    assert found.stdout.count(".") == 2


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([], {}),
        (["count=5"], {"count": 5}),
        (["documents=docs"], {"documents": "docs"}),
        (["documents=a=b"], {"documents": "a=b"}),
        (["training.epochs=2", "training.rank=4"], {"training": {"epochs": 2, "rank": 4}}),
        (['publish={"role": "x"}', "publish.tenant=y"], {"publish": {"role": "x", "tenant": "y"}}),
        (["steps.deploy=false", "model=null"], {"steps": {"deploy": False}, "model": None}),
        (["documents="], {"documents": ""}),
    ],
)
def test_parameters(pairs: list[str], expected: dict[str, object]) -> None:
    assert parsed(pairs) == expected


@pytest.mark.parametrize("pairs", [["count"], ["=5"], ["a..b=1"], ["a=1", "a.b=2"]])
def test_wrong_parameters(pairs: list[str]) -> None:
    with pytest.raises(InvalidInput, match="E-PARAMETER"):
        parsed(pairs)
