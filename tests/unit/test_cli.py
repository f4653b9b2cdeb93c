from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from trainyard.app.completion import install
from trainyard.errors import InvalidInput
from trainyard.operations.table import OPERATIONS
from trainyard.operations.words import WORDS
from trainyard.surfaces.cli.main import app, completion_script, parse_pairs

REPOSITORY = Path(__file__).parents[2]
COMMANDS = REPOSITORY / "tests" / "golden" / "commands.txt"
GOOD = "nodes: [{type: data_source, config: {path: docs}}]"


def trainyard(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a user starts it, without any Prefect variable of the caller."""
    variables = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    return subprocess.run(
        [sys.executable, "-m", "trainyard", *arguments],
        capture_output=True, text=True, timeout=240, check=False, env={**variables, **environment},
    )  # fmt: skip


def test_the_commands_are_the_promised_ones() -> None:
    """`GOLDEN=write` writes the file again, for a person to read."""
    root, lines = click.Context(app), []
    for name in sorted(app.list_commands(root)):
        command = app.get_command(root, name)
        is_group = isinstance(command, click.Group)
        lines += [f"{name} {each}" for each in sorted(command.list_commands(root))] if is_group else [name]
    text = "\n".join(lines) + "\n"
    if os.environ.get("GOLDEN") == "write":
        COMMANDS.write_text(text, encoding="utf-8")
    assert text == COMMANDS.read_text(encoding="utf-8")


def test_the_commands_are_the_table() -> None:
    assert {name for name, _ in list_commands(app)} == {*OPERATIONS, "help", "completion"}
    assert all(command.help and command.get_params(click.Context(command)) for _, command in list_commands(app))


def list_commands(group: click.Group, word: str = "") -> Iterator[tuple[str, click.Command]]:
    """Everything that can be carried out: the commands, and the groups that are commands themselves."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{word} {name}".strip(), command
        if isinstance(command, click.Group):
            yield from list_commands(command, name)


def test_check_prints_one_line_per_reason_and_exits_5(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(
        "nodes: [{type: data_source, config: {path: docs}}, {type: trainr}, {type: deployer, config: {x: 1}}]"
    )
    done = trainyard("check", str(path))
    assert done.returncode == 5
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    assert [line.split()[1] for line in lines] == ["E-SPEC-TYPE", "E-SPEC-KEY"]


def test_check_of_a_good_chain_is_ok(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text(GOOD)
    done = trainyard("check", str(tmp_path / "good.yaml"), "--json")
    assert done.returncode == 0
    (file_report,) = json.loads(done.stdout)["files"]
    assert file_report["ok"] is True
    assert len(file_report["digest"]) == 64


def test_a_file_that_is_not_there_exits_3() -> None:
    done = trainyard("check", "nothing.yaml")
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith("E-PARAMETER: There is neither a template nor a file 'nothing.yaml'.")


def test_a_usage_error_exits_2() -> None:
    assert trainyard("check").returncode == 2
    assert trainyard("fly").returncode == 2
    assert trainyard("check", "--unknown", "a.yaml").returncode == 2


def test_an_error_with_json_is_a_document_on_stdout() -> None:
    done = trainyard("run", "nothing", "--json")
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["code"] == "E-PARAMETER"


def test_no_server_exits_7_without_importing_prefect(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("nodes: [{type: data_source, config: {path: docs}}]")
    done = trainyard("run", str(tmp_path / "good.yaml"))
    assert done.returncode == 7
    assert "Run `trainyard up`" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_setting_is_one_sentence() -> None:
    done = trainyard("adapters", "list", TRAINYARD_PREFECT_PORT="many")
    assert done.returncode == 5
    assert "E-SETTINGS" in done.stderr
    assert "Traceback" not in done.stderr


LIGHT = {
    "--version": {"pydantic", "httpx", "rich", "trainyard.settings", "trainyard.operations.chains"},
    "--help": {"pydantic", "httpx", "rich", "trainyard.settings", "trainyard.operations.chains"},
    "jobs --help": {"pydantic", "trainyard.operations.jobs"},
    "check --help": {"httpx", "rich", "trainyard.settings", "trainyard.operations.jobs"},
    "check good.yaml": {"trainyard.operations.jobs", "trainyard.operations.nights", "trainyard.app.stack.demo"},
    "check good.yaml bad.yaml --json": {"trainyard.surfaces.cli.progress"},
    "plan good.yaml": {"trainyard.operations.jobs", "trainyard.operations.nights", "trainyard.app.stack.demo"},
}
"""Command -> modules that it does without from its start to its end, next to those of `HEAVY`."""
HEAVY = {"torch", "numpy", "pyarrow", "prefect", "transformers", "fastapi", "typer"}


@pytest.mark.parametrize("command", LIGHT)
def test_a_command_imports_only_what_it_needs(command: str, tmp_path: Path) -> None:
    # Local data is read: a chain without any needs no reader of tables.
    nodes = "{type: validator}, {type: trainer}, {type: evaluator}, {type: deployer}"
    source = "{type: data_source, config: {url: 'https://example.com/rows.jsonl', format: openai}}"
    (tmp_path / "good.yaml").write_text(f"nodes: [{source}, {nodes}]")
    (tmp_path / "bad.yaml").write_text("nodes: [{type: trainr}]")
    program = (
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
        f"sys.argv[1:] = {command.split()}; from trainyard.surfaces.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == (5 if "bad" in command else 0), done.stdout
    assert not {*done.stderr.split()} & {*HEAVY, *LIGHT[command]}


def test_importing_the_command_line_imports_next_to_nothing() -> None:
    program = "import sys, trainyard.__main__; print(*(name for name in sys.modules if name.startswith('trainyard.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    rooms = {".".join(name.split(".")[:2]) for name in done.stdout.split()}
    assert rooms == {
        f"trainyard.{room}"
        for room in ("__main__", "surfaces", "operations", "errors", "json_types", "loading", "proxies")
    }


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("jobs list --limit 0", "Invalid value for '--limit': Input should be greater than or equal to 1"),
        ("jobs list --limit many", "Invalid value for '--limit': Input should be a valid integer"),
        ("jobs list --state gone", "Invalid value for '--state': 'gone' is not one of 'pending', 'running'"),
        ("serve --role flow", "Invalid value for '--role': 'flow' is not one of 'training', 'graph', 'model'"),
        ("corpus apprenticeship remove", "'remove' is not 'add'"),
        ("backends remove", "No such command 'remove'"),
        ("plan", "Missing argument 'TEMPLATE|FILE'"),
        ("corpus engineering", "Missing option '--repo'"),
    ],
)
def test_a_value_that_a_request_does_not_take_is_a_usage_error(command: str, message: str) -> None:
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code == 2
    assert message in result.stderr


def test_the_help_of_a_command_is_its_row_and_its_fields() -> None:
    output = " ".join(CliRunner().invoke(app, ["run", "--help"]).output.split())
    for text in (
        "trainyard run [OPTIONS] TEMPLATE|FILE|RUN",
        "TEMPLATE|FILE|RUN A template, a chain or job file, or an ended run. [required]",
        "-p, --param KEY=VALUE A parameter; dots reach inside.",
        "-w, --watch Follow the run to its end.",
        "--refresh / --no-refresh Make every result again, also those that are finished. [default: no-refresh]",
        "--tag <str> A tag for the run; may be repeated.",
        "--json Print one JSON document on stdout.",
    ):
        assert text.removeprefix("trainyard ") in output


def test_every_command_is_in_a_group_of_the_help_with_a_whole_line() -> None:
    assert {*WORDS} == {name.split()[0] for name in OPERATIONS}
    lines = CliRunner().invoke(app, ["--help"], terminal_width=80).output.splitlines()
    for word, entry in WORDS.items():
        assert f"  {word:<12}  {entry.line}" in lines, f"the line of {word} does not fit"
        assert f"{entry.group}:" in lines
        assert (REPOSITORY / "docs" / f"{entry.guide}.md").is_file()
    assert max(map(len, lines)) <= 80
    assert not any(line.endswith("...") for line in lines[1:])


def test_help_explains_a_command_or_prints_a_page() -> None:
    output = trainyard("help", "jobs", "pause").stdout
    assert output.startswith("Usage: ")
    assert " jobs pause [OPTIONS] JOB" in output
    assert output.rstrip().endswith("docs/jobs.md")
    assert trainyard("help", "sweeps").stdout == (REPOSITORY / "docs" / "sweeps.md").read_text(encoding="utf-8")
    unknown = trainyard("help", "servin")
    assert unknown.returncode == 3
    assert "serving" in unknown.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell: str) -> None:
    assert CliRunner().invoke(app, ["completion", shell]).output.rstrip() == completion_script(shell).rstrip()


def complete(line: str) -> list[str]:
    """What bash is offered for the last word."""
    environment = {"_TRAINYARD_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    program = "from trainyard.surfaces.cli.main import app; app(prog_name='trainyard')"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout.split()


def completions(*lines: str) -> dict[str, list[str]]:
    """The same for the last word of each line, in one process."""
    program = f"""
import json, os
from click.shell_completion import BashComplete
from trainyard.surfaces.cli.main import app
found = {{}}
for line in {lines!r}:
    os.environ |= {{"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}}
    found[line] = BashComplete(app, {{}}, "trainyard", "_TRAINYARD_COMPLETE").complete().split()
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    answers: dict[str, list[str]] = json.loads(done.stdout)
    return answers


def test_a_shell_completes_commands_options_values_and_files() -> None:
    assert complete("trainyard jo") == ["plain,jobs"]
    assert complete("trainyard backends in") == ["plain,install"]
    assert complete("trainyard jobs list --stat") == ["plain,--state"]
    assert complete("trainyard jobs list --state p") == ["plain,pending", "plain,paused"]
    assert complete("trainyard plan ch") == ["file,ch"]


def test_a_shell_completes_what_there_is_on_this_machine(home: Path) -> None:
    run_id = "0aa885f8-eaaa-4f32-a852-144a17056dc2"
    (home / "runs" / run_id).mkdir(parents=True)
    (home / "runs" / "training").mkdir()
    (home / "adapters" / "acme" / "bot" / "v1").mkdir(parents=True)
    (home / "adapters" / "acme" / "bot" / "v1" / "manifest.json").touch()
    (home / "adapters" / "acme" / "begun" / "v1").mkdir(parents=True)
    expected = {
        "trainyard adapters show a": ["plain,acme/bot", "plain,acme/bot/v1"],
        "trainyard adapters list --tenant a": ["plain,acme"],
        "trainyard jobs show 0": [f"plain,{run_id}"],
        "trainyard run 0": [f"plain,{run_id}", "file,0"],
        "trainyard run q": ["plain,qa-pipeline", "file,q"],
        "trainyard run qa-pipeline --preset c": ["plain,control"],
        "trainyard run rag-tuning --preset s": ["plain,strict"],
        "trainyard run rag-tuning --preset q": [],
        "trainyard nightly run --preset nightly-l": ["plain,nightly-l4"],
        "trainyard schema set": ["plain,settings"],
    }
    assert completions(*expected) == expected


def test_completion_of_a_broken_home_is_empty(home: Path) -> None:
    home.write_text("not a folder")
    assert complete("trainyard jobs show 0") == complete("trainyard adapters show a") == []


@pytest.mark.parametrize(
    ("shell", "file", "start"),
    [
        ("bash", ".bash_completions/trainyard.sh", ".bashrc"),
        ("zsh", ".zfunc/_trainyard", ".zshrc"),
        ("fish", ".config/fish/completions/trainyard.fish", None),
    ],
)
def test_completion_is_installed_once(
    shell: str, file: str, start: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    script = completion_script(shell)
    assert install("trainyard", shell, script) == install("trainyard", shell, script) == tmp_path / file
    assert "_TRAINYARD_COMPLETE" in (tmp_path / file).read_text()
    if start is not None:
        assert len((tmp_path / start).read_text().splitlines()) == 1


def test_completion_of_another_shell_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="E-PARAMETER"):
        completion_script("tcsh")
    with pytest.raises(InvalidInput, match="E-PARAMETER"):
        install("trainyard", "tcsh", "")


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m trainyard doctor --json | head -c 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=240, check=False)
    assert done.stdout == "{"
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-16"])
def test_text_is_printed_in_any_encoding(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "grün-正.yaml"
    path.write_text("nodes: [{type: data_source, config: {path: docs, rows: 3}}]")
    command = [sys.executable, "-m", "trainyard", "check", str(path), "--json"]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    printed = subprocess.run(command, capture_output=True, timeout=60, check=False, env=environment)
    assert printed.returncode == 5, printed.stderr
    assert "grün-正.yaml" in json.dumps(json.loads(printed.stdout.decode(encoding)), ensure_ascii=False)


def test_the_version() -> None:
    done = trainyard("--version")
    assert done.returncode == 0
    assert done.stdout.count(".") == 2


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
    assert parse_pairs(pairs) == expected


@pytest.mark.parametrize("pairs", [["count"], ["=5"], ["a..b=1"], ["a=1", "a.b=2"]])
def test_wrong_parameters(pairs: list[str]) -> None:
    with pytest.raises(InvalidInput, match="E-PARAMETER"):
        parse_pairs(pairs)
