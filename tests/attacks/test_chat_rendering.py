"""Chat templates that misbehave where no sample looked: every rendering ends in a coded error within its limits."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import psutil
import pytest

from trainyard.data.renderers.choice import digest, list_shipped, map_by_digest
from trainyard.data.renderers.contract import Flavour
from trainyard.data.renderers.limited import CPU_S, LimitedTemplate, TemplateLimit, is_known, open_limited
from trainyard.data.renderers.rendering import Renderer
from trainyard.data.renderers.table import RENDERERS
from trainyard.data.renderers.verify import samples, toy_tokenizer
from trainyard.data.rows import Message, SftRow
from trainyard.serve.prompt_fields import check_chat_template
from trainyard.testing.tiny import TEXT, build_tokenizer
from trainyard.train.rows.tokens import encode_sft

pytestmark = pytest.mark.integration

FOUR = [{"role": role, "content": "a"} for role in ("user", "assistant", "user", "assistant")]
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
LATE = "{% for m in messages %}{{ m.content }}{% endfor %}{% if messages | length > 3 %}ATTACK{% endif %}"
ATTACKS = {
    "loop": LOOP,
    "range": "{% for a in range(10**9) %}{% endfor %}",
    "repetition": "{{ 'x' * 10**10 }}",
    "constant": "{{ ('x' * 10**9) | length }}",
    "doubling": "{% set n = namespace(s='x') %}{% for a in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s }}",
    "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "recursive loop": "{% for m in [messages] recursive %}{{ loop([messages]) }}{% endfor %}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "replace": "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
    "width": "{{ '%1000000000d' % 1 }}",
    "format": "{{ '{:>10000000000}'.format(1) }}",
    "list": "{{ ([0] * 10**8) | join(',') }}",
    "length": "{% for a in range(99999) %}{{ messages }}{% endfor %}",
}
QUICK = ("loop", "repetition", "recursion")


@pytest.fixture
def children() -> Iterator[list[LimitedTemplate]]:
    """The children of a test, which it ends."""
    templates: list[LimitedTemplate] = []
    yield templates
    for template in templates:
        template.stop()


def cases() -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.faults) for name in ATTACKS]


@pytest.mark.parametrize("name", cases())
def test_a_rendering_ends_within_its_limits(name: str, children: list[LimitedTemplate]) -> None:
    child = LimitedTemplate(ATTACKS[name])
    children.append(child)
    own_rss = psutil.Process().memory_info().rss
    with pytest.raises(TemplateLimit, match="E-CHAT-TEMPLATE: The chat template used more"):
        child.render(json.dumps({"messages": FOUR}))
    assert psutil.Process().memory_info().rss - own_rss < 64 << 20
    assert child.process is None or child.process.poll() is None  # it is gone, or it answered and lives


def test_processor_time_is_bounded_and_the_next_rendering_gets_a_new_child(children: list[LimitedTemplate]) -> None:
    child = LimitedTemplate(LATE.replace("ATTACK", LOOP))
    children.append(child)
    assert child.render(json.dumps({"messages": FOUR[:1]})) == "a"
    assert child.process is not None
    first = psutil.Process(child.process.pid)
    used, started = 0.0, time.monotonic()
    with pytest.raises(TemplateLimit, match=f"more than {CPU_S:g} s of processor time"):
        child.render(json.dumps({"messages": FOUR}))
    used = time.monotonic() - started
    assert used < 30  # of wall time, on a machine with other work; alone it takes 1.0 s
    assert not first.is_running()
    assert child.render(json.dumps({"messages": FOUR[:1]})) == "a"


@pytest.mark.parametrize("late", [LOOP, pytest.param("{{ 'x' * 10**10 }}", marks=pytest.mark.faults)])
def test_a_template_that_passes_the_samples_is_stopped_in_the_trainers_renderer(late: str) -> None:
    template = LATE.replace("ATTACK", late)
    check_chat_template(template)
    tokenizer = build_tokenizer([TEXT])
    tokenizer.chat_template = template
    row = SftRow([Message(turn["role"], turn["content"]) for turn in FOUR])
    before = psutil.Process().children()
    with pytest.raises(TemplateLimit):
        encode_sft([row], tokenizer, 64)
    assert psutil.Process().children() == before


def test_what_a_template_refuses_is_an_error_of_jinja_as_before(children: list[LimitedTemplate]) -> None:
    child = LimitedTemplate("{% if messages | length > 1 %}{{ raise_exception('one message') }}{% endif %}{{ 1 // 0 }}")
    children.append(child)
    with pytest.raises(jinja2.TemplateError, match="one message"):
        child.render(json.dumps({"messages": FOUR}))
    with pytest.raises(jinja2.TemplateError, match="ZeroDivisionError"):
        child.render(json.dumps({"messages": FOUR[:1]}))


def test_a_child_knows_nothing_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, children: list[LimitedTemplate]
) -> None:
    monkeypatch.setenv("SOMEBODYS_API_KEY", "secret")
    child = LimitedTemplate("{{ messages[0].content }}")
    children.append(child)
    assert child.render(json.dumps({"messages": FOUR})) == "a"
    assert child.process is not None
    assert b"secret" not in Path(f"/proc/{child.process.pid}/environ").read_bytes()


def test_renderers_of_one_template_share_a_child_that_ends_with_them() -> None:
    before = set(psutil.Process().children())
    template, same_template = open_limited("{{ messages[0].content }}!"), open_limited("{{ messages[0].content }}!")
    assert template is same_template
    assert template.render('{"messages": [{"content": "\\ud83c"}]}') == "\ud83c!"  # half a character passes as it is
    assert len(set(psutil.Process().children()) - before) == 1
    del template, same_template
    assert set(psutil.Process().children()) == before


def test_known_templates_run_here_and_any_change_makes_one_unknown() -> None:
    texts = [text for spec in RENDERERS.values() for text in spec.own_templates.values()]
    texts += [path.read_text(encoding="utf-8") for path in list_shipped().values()]
    assert all(map(is_known, texts))
    assert not any(is_known(f"{text} ") for text in texts)


def parity_cases() -> list[Any]:
    names = sorted(list_shipped())
    return [pytest.param(name, marks=() if name == "qwen3" else pytest.mark.faults) for name in names]


@pytest.mark.parametrize("name", parity_cases())
def test_the_child_writes_what_transformers_writes(name: str) -> None:
    text = list_shipped()[name].read_text(encoding="utf-8")
    spec = map_by_digest().get(digest(text))
    here, there = Renderer(toy_tokenizer(text), spec, text), Renderer(toy_tokenizer(text), spec, text + "{# other #}")
    assert here.is_trusted
    assert not there.is_trusted
    for flavour in Flavour:
        for sample in samples(flavour):
            assert render_text(there, sample.turns, sample.tools) == render_text(here, sample.turns, sample.tools)


def render_text(renderer: Renderer, turns: list[Any], tools: Any) -> str:
    try:
        return renderer.text(turns, tools, ask=True)
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError):
        return "refused"
