"""`trainyard renderers verify`, and templates that a chain names, tried by `trainyard check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainyard.app.context import Context
from trainyard.app.data.renderers import verify_renderers
from trainyard.app.plan.check import FileCheck, check
from trainyard.errors import InvalidInput, NotFound
from trainyard.operations.backends import RenderersInput
from trainyard.operations.chains import CheckInput
from trainyard.settings import load_settings
from trainyard.surfaces.cli.command import render

GOOD = "{% for m in messages %}{{ m.role }}: {{ m.content }}</s>{% endfor %}{{ 'assistant:' if add_generation_prompt }}"
HOSTILE = "{{ ''.__class__.__mro__ }}"


@pytest.fixture
def context(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.chdir(tmp_path)
    turns = [{"role": "user", "content": "What is a kettle?"}, {"role": "assistant", "content": "A vessel."}]
    (tmp_path / "rows.jsonl").write_text((json.dumps({"messages": turns}) + "\n") * 8)
    return Context(load_settings(default_base_model=str(tiny_model)), say=lambda _text: None)


def print_verification(context: Context, *names: str) -> str:
    verification = verify_renderers(RenderersInput(names=names), context)
    assert verification.exit_code == 0
    return render("renderers verify", verification)


def test_the_table_says_what_was_found(context: Context) -> None:
    lines = print_verification(context, "qwen3", "llama3").splitlines()
    assert lines[0].split() == [
        "renderer", "template", "extends", "plain", "system", "thoughts", "tools", "stop", "tokens", "sha256",
    ]  # fmt: skip
    assert [line.split()[:4] for line in lines[1:]] == [
        ["llama3", "llama3", "yes", "yes"],
        ["llama3", "llama3_training", "yes", "yes"],
        ["qwen3", "qwen3", "no", "not"],
    ]
    assert lines[3].endswith("a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8"[:12])


def test_a_file_is_tried_too(tmp_path: Path, context: Context) -> None:
    (tmp_path / "own.jinja").write_text(GOOD)
    (row,) = print_verification(context, str(tmp_path / "own.jinja")).splitlines()[1:]
    assert row.split()[:3] == ["default", "own.jinja", "yes"]
    (tmp_path / "bad.jinja").write_text(HOSTILE)
    with pytest.raises(InvalidInput, match=r"E-CHAT-TEMPLATE: The chat template is refused: .*__class__"):
        print_verification(context, str(tmp_path / "bad.jinja"))


def test_an_unknown_name_is_not_found(context: Context) -> None:
    with pytest.raises(NotFound, match=r"E-CHAT-TEMPLATE: There is no renderer 'lama3'\..*Did you mean 'llama3'\?"):
        print_verification(context, "lama3")


def check_template(folder: Path, template: str, context: Context) -> FileCheck:
    source = "{id: rows, type: data_source, config: {path: rows.jsonl, format: openai}}"
    trainer = f"{{id: tune, type: trainer, config: {{backend: native, engine: {{template: {template}}}}}}}"
    (folder / "chain.yaml").write_text(f"nodes: [{source}, {trainer}]")
    (file,) = check(CheckInput(files=(folder / "chain.yaml",)), context).files
    return file


@pytest.mark.parametrize("template", ["auto", "qwen3", "own.jinja"])
def test_a_template_that_can_be_used_passes_the_check(tmp_path: Path, context: Context, template: str) -> None:
    (tmp_path / "own.jinja").write_text(GOOD)
    assert check_template(tmp_path, template, context).reasons == ()


@pytest.mark.parametrize(
    ("template", "code", "because"),
    [
        ("qwen33", "E-CHAT-TEMPLATE", "There is no renderer 'qwen33'."),
        ("gone.jinja", "E-DATA-NOT-FOUND", "There is no file or folder 'gone.jinja'."),
        ("hostile.jinja", "E-CHAT-TEMPLATE", "The chat template is refused"),
        ("/etc/out.jinja", "R-PATH-ROOT", "The path '/etc/out.jinja' leads to "),
        ("empty.jinja", "E-CHAT-TEMPLATE", "empty.jinja cannot be used as a chat template."),
    ],
)
def test_a_template_that_cannot_be_used_is_told_by_the_check(
    tmp_path: Path, context: Context, template: str, code: str, because: str
) -> None:
    (tmp_path / "hostile.jinja").write_text(HOSTILE)
    (tmp_path / "empty.jinja").write_text(" ")
    file = check_template(tmp_path, template, context)
    assert not file.ok
    (reason,) = file.reasons
    assert (reason["code"], reason["node"], reason["field"]) == (code, "tune", "config.engine.template")
    assert reason["because"].startswith(because)
