"""Chat templates of strangers: what is let through and what is refused, each in a real child with limits."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import jinja2
import pytest

from trainyard.data.template_child import environment
from trainyard.errors import InvalidInput
from trainyard.serve.prompt_fields import MAX_TEMPLATE_CHARS, NAMES, check_chat_template, check_folder
from trainyard.stores.models import chat_template_sha256
from trainyard.train.starter.corpus import CHAT_TEMPLATE

USER = {"role": "user", "content": "Hi"}


def render(text: str, messages: list[dict[str, str]], **variables: Any) -> str:
    """The conversation as the template writes it, in this process."""
    return environment().from_string(text).render(messages=messages, **{**NAMES, **variables})


def test_the_starters_template_passes_and_reads_as_chatml() -> None:
    check_chat_template(CHAT_TEMPLATE)
    text = render(CHAT_TEMPLATE, [USER, {"role": "assistant", "content": "Yo"}, USER], add_generation_prompt=True)
    assert text == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_that_takes_no_system_message_passes() -> None:
    check_chat_template(
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )


def test_the_names_that_transformers_offers_are_known() -> None:
    text = "{{ messages | tojson }}{{ strftime_now('%Y') | length }}{% for m in messages %}{% break %}{% endfor %}"
    assert render(text, [USER]) == '[{"role": "user", "content": "Hi"}]4'


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "access to attribute '__class__'"),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "access to attribute '__init__'"),
        ("{{ messages.append(1) }}", "access to attribute 'append'"),
        ("{% include 'secret' %}", "no loader"),
        ("{% if %}", "does not compile, line 1"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("{{ raise_exception('never') }}", r"takes no plain user message \(never\)"),
        ("{{ 'x' * 100000 }}", "characters into 100,000"),
        ("{{ 'x' * 10**10 }}", "more memory than is allowed"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "more memory than is allowed"),
    ],
)
def test_an_attack_is_refused(template: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=f"E-CHAT-TEMPLATE: The chat template is refused: .*{why}"):
        check_chat_template(template)


def test_a_template_without_end_is_ended() -> None:
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    started = time.monotonic()
    with pytest.raises(InvalidInput, match="used more than 1 s of processor time"):
        check_chat_template(endless, cpu_s=1)
    assert time.monotonic() - started < 30


def test_a_huge_template_is_not_even_compiled() -> None:
    with pytest.raises(InvalidInput, match=r"it has 262,145 characters; 262,144 are allowed"):
        check_chat_template("x" * (MAX_TEMPLATE_CHARS + 1))


def test_the_sandbox_raises_in_this_process_too() -> None:
    with pytest.raises(jinja2.exceptions.SecurityError):
        render("{{ ().__class__.x }}", [USER])


def test_a_folder_is_checked_by_the_template_that_a_loader_would_take(tmp_path: Path) -> None:
    check_folder(tmp_path)
    assert chat_template_sha256(tmp_path) is None
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages[0].content }}"}')
    check_folder(tmp_path)
    assert chat_template_sha256(tmp_path) == hashlib.sha256(b"{{ messages[0].content }}").hexdigest()
    (tmp_path / "chat_template.jinja").write_text("{{ ().__class__.x }}")
    with pytest.raises(InvalidInput, match="E-CHAT-TEMPLATE"):
        check_folder(tmp_path)
