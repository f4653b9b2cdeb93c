"""The setting `template`: auto, a name, a file; and what is wrong with each."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from trainyard.data.renderers.choice import MAX_TEMPLATE_CHARS, choose_template, list_shipped, recognise_template
from trainyard.data.renderers.table import DEFAULT, PLAIN_TEMPLATE, RENDERERS
from trainyard.errors import InvalidInput, NotFound, Refused


def test_auto_takes_the_tokenizers_own_and_knows_it_by_its_digest() -> None:
    text = list_shipped()["qwen3"].read_text(encoding="utf-8")
    template = choose_template("auto", text)
    assert (template.spec.name, template.text, template.note) == ("qwen3", text, "")
    assert template.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert recognise_template(text + " ") is DEFAULT, "a changed template is another template"


def test_auto_without_a_template_falls_back_and_says_so() -> None:
    template = choose_template("auto", None)
    assert template.spec.name == "role_colon"
    assert template.text == PLAIN_TEMPLATE
    assert template.note.startswith("The tokenizer has no chat template; the renderer role_colon is used")


@pytest.mark.parametrize("name", RENDERERS)
def test_a_name_stands_for_its_first_template(name: str) -> None:
    assert choose_template(name).spec.name == name
    assert recognise_template(choose_template(name).text) is RENDERERS[name]


def test_an_unknown_name_is_refused_with_a_neighbour() -> None:
    with pytest.raises(NotFound, match=r"E-CHAT-TEMPLATE: There is no renderer 'qwen33'\..*Did you mean 'qwen3'\?"):
        choose_template("qwen33")
    with pytest.raises(NotFound, match=r"Write auto, one of these names, or a path that ends in \.jinja"):
        choose_template("zzz")


def test_a_file_is_read_inside_its_root(tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}")
    template = choose_template("own.jinja", roots=(tmp_path,))
    assert (template.spec, template.text) == (DEFAULT, "{{ messages[0].content }}")
    (tmp_path / "known.jinja").write_text(choose_template("llama3").text)
    assert choose_template("known.jinja", roots=(tmp_path,)).spec.name == "llama3"
    with pytest.raises(Refused, match="R-PATH-ROOT"):
        choose_template("../own.jinja", roots=(tmp_path / "sub",))
    with pytest.raises(NotFound, match="E-DATA-NOT-FOUND"):
        choose_template("none.jinja", roots=(tmp_path,))


@pytest.mark.parametrize(
    ("content", "why"),
    [(b"", "It has 0 characters"), (b"x" * (MAX_TEMPLATE_CHARS + 1), "262,145 characters"), (b"\xff\xfe", "not UTF-8"),
     (b"x" * (4 * MAX_TEMPLATE_CHARS + 1), "far too long")],
    ids=["empty", "long", "binary", "huge"],
)  # fmt: skip
def test_a_file_that_is_no_template_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "bad.jinja").write_bytes(content)
    with pytest.raises(InvalidInput, match=rf"E-CHAT-TEMPLATE: bad\.jinja cannot be used .*{why}"):
        choose_template("bad.jinja", roots=(tmp_path,))


def test_the_names_are_known_without_transformers() -> None:
    program = (
        "import sys, trainyard.data.renderers.choice as c; c.choose_template('qwen3'); "
        "print(*[n for n in ('torch', 'transformers', 'trl') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
