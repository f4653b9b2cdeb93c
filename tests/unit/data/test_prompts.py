"""Prompts: the shared part first, the document last; a user's own Jinja is rendered in a child that cannot do harm."""

from __future__ import annotations

import json
import time

import jsonschema
import psutil
import pytest
from jinja2 import StrictUndefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trainyard.data.prompt_child import DO, answer, open_prompt
from trainyard.data.prompts import Prompter, item_schema, reply_schema
from trainyard.errors import InvalidInput
from trainyard.spec.axes.data import GenerationTemplate

DOCUMENT = {"title": "Nodes", "text": "A node is a box.", "source": "nodes.md", "kind": "markdown"}
FIRST = {
    GenerationTemplate.QA: {"questions": ["q1", "q2"], "answer": "a"},
    GenerationTemplate.INSTRUCTION: {"instruction": "i", "response": "r"},
    GenerationTemplate.CODE: {"task": "t", "code": "c"},
    GenerationTemplate.PREFERENCE: {"prompt": "p", "chosen": "c", "rejected": "r"},
}


@pytest.mark.parametrize("template", GenerationTemplate)
def test_each_template_has_a_task_and_a_schema(template: GenerationTemplate) -> None:
    schema = reply_schema(template, 2, 1)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"pairs": [FIRST[template]]}, schema)
    for broken in ({"pairs": []}, {}, {"pairs": [{}]}, {"pairs": [FIRST[template] | {"more": "x"}]}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema)
    with Prompter(template, wordings=2) as prompter:
        assert '{"pairs": [{' in prompter.system


def test_wordings_are_an_exact_number_of_texts() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"questions": ["only one"], "answer": "a"}, item_schema(GenerationTemplate.QA, 2))


def test_requests_share_their_beginning_and_end_with_what_differs() -> None:
    with Prompter(GenerationTemplate.QA, wordings=3) as prompter:
        first = prompter.messages(DOCUMENT, pairs=4, part=1, parts=2)
        second = prompter.messages(DOCUMENT, pairs=4, part=2, parts=2)
        alone = prompter.messages(DOCUMENT | {"text": "{braces} {{stay}}"}, pairs=1)
    assert first[0] == second[0] == alone[0]
    text = second[1]["content"]
    assert first[1]["content"].startswith(text[: text.index("This is request 2 of 2")])
    assert "request" not in alone[1]["content"]
    assert "{braces} {{stay}}" in alone[1]["content"]


def test_an_own_prompt_sees_the_document_and_the_request() -> None:
    template = "{{ document.title|upper }}/{{ document.kind }}/{{ document.source }}: {{ document.text }} "
    template += "{{ pairs }}x{{ wordings }} {{ part }}/{{ parts }}"
    with Prompter(GenerationTemplate.QA, wordings=3, prompt=template) as prompter:
        messages = prompter.messages(DOCUMENT, pairs=5, part=1, parts=2)
        again = prompter.messages(DOCUMENT | {"text": "ünï\ncode"}, pairs=5)
    assert messages[0]["role"] == "system"
    assert messages[1]["content"] == "NODES/markdown/nodes.md: A node is a box. 5x3 1/2"
    assert "ünï\ncode" in again[1]["content"]


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (
            "{{ document.text",
            r"E-PROMPT: The generator's own prompt is not Jinja\. Why: Line 1: .*Do: Correct config\.p",
        ),
        ("{% for %}{{ document }}", "E-PROMPT"),
        ("{% include '/etc/passwd' %}{{ document }}", "E-PROMPT: The generator's own prompt cannot be rendered"),
        ("Write questions.", r"E-PROMPT: The generator's own prompt never shows the document"),
        (
            "{{ document.text }} {{ secret }}",
            r"E-PROMPT: .*uses a name that does not exist\. Why: 'secret' is undefined",
        ),
        (
            "{{ document.body }}",
            r"E-PROMPT: .*has no attribute 'body'.* it sees document, pairs, wordings, part, parts",
        ),
        ("{{ document.__class__.__mro__ }}", r"E-PROMPT: .*tries to leave its sandbox"),
        ("{{ ''.__class__.__base__.__subclasses__() }}{{ document }}", "E-PROMPT"),
        ("{{ document.update({'text': ''}) }}", "E-PROMPT"),
        ("{{ document.text.format.__globals__ }}", "E-PROMPT"),
        ("{{ '{0.__class__}'.format(document) }}", "E-PROMPT"),
        ("{{ lipsum.__globals__['os'].popen('id').read() }}{{ document }}", "E-PROMPT"),
        ("{{ document.text + 1 }}", r"E-PROMPT: .*cannot be rendered\. Why: can only concatenate str"),
        ("{{ 1 // 0 }}{{ document }}", "E-PROMPT"),
        ("{% for i in range(99999999) %}{{ document }}{% endfor %}", "E-PROMPT"),
        (
            "{{ 'x' * 1000000000 }}{{ document }}",
            r"E-PROMPT: .*was stopped\. Why: While it was rendered, it ran into Memo",
        ),
        ("{% for i in range(9999) %}{{ document.text * 99 }}{% endfor %}", r"it became longer than 100,027 characters"),
        ("{{ '%999999999d' % 1 }}{{ document }}", "E-PROMPT"),
        ("{{ document }}{{ " + "(" * 9000, "E-PROMPT"),
        ("{{ document }}{{ " + "-" * 9000 + "1 }}", "E-PROMPT"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_refused_with_its_reason(prompt: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Prompter(GenerationTemplate.QA, wordings=1, prompt=prompt).__enter__()


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}{{ document }}"


def test_an_endless_prompt_is_ended_and_leaves_no_process() -> None:
    before = {child.pid for child in psutil.Process().children()}
    started = time.monotonic()
    with pytest.raises(InvalidInput, match=r"E-PROMPT: .* it did not finish within 2 s; allowed are 2 s, 256 MiB"):
        Prompter(GenerationTemplate.QA, wordings=1, prompt=ENDLESS).__enter__()
    assert time.monotonic() - started < 60  # the start of the process that has 2 s counts, too
    assert {child.pid for child in psutil.Process().children()} <= before


def test_a_prompt_that_turns_on_a_later_document_is_stopped_too() -> None:
    template = "{% if document.title == 'Trap' %}{{ document.text * 10 ** 9 }}{% endif %}{{ document.text }}"
    with Prompter(GenerationTemplate.QA, wordings=1, prompt=template) as prompter:
        assert prompter.messages(DOCUMENT, pairs=1)[1]["content"] == "A node is a box."
        with pytest.raises(InvalidInput, match="E-PROMPT"):
            prompter.messages(DOCUMENT | {"title": "Trap"}, pairs=1)
        assert prompter.messages(DOCUMENT, pairs=1)[1]["content"] == "A node is a box."


def test_a_child_that_was_killed_is_reported() -> None:
    with Prompter(GenerationTemplate.QA, wordings=1, prompt="{{ document.text }}") as prompter:
        assert prompter.child is not None
        assert prompter.child.process is not None
        prompter.child.process.kill()
        prompter.child.process.wait()
        with pytest.raises(InvalidInput, match=r"E-PROMPT: .*its process ended"):
            prompter.messages(DOCUMENT, pairs=1)
    assert prompter.child.process is None


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ("{{ document", "E-PROMPT"),
        ("Nothing.", "E-PROMPT"),
        ("{{ document }}{{ nothing }}", "E-PROMPT"),
        ("{{ document.__class__ }}", "E-PROMPT"),
        ("{{ document.text * 9999 }}", "E-PROMPT"),
        ("{{ document }}{% for i in range(9999999) %}{% endfor %}", "E-PROMPT"),
        ("{{ document + 1 }}", "E-PROMPT"),
    ],
)
def test_the_child_answers_a_fault_with_its_four_fields(prompt: str, code: str) -> None:
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
    replies = [answer(environment, prompt, fields) for fields in ({}, {"document": DOCUMENT})]
    faults = [reply for reply in replies if "code" in reply]
    assert faults[0].keys() == {"code", "what", "why", "do"}
    assert code in {fault["code"] for fault in faults}


def test_the_childs_loop_answers_line_by_line() -> None:
    lines = [{"document": DOCUMENT}, {"document": {"title": "t", "text": ""}}]
    first, answer_line = open_prompt({"prompt": "{{ document.text }}"})
    replies = [reply for line in lines for reply in answer_line(json.dumps(line).encode())]
    assert [first, *replies] == [{"text": ""}, {"text": "A node is a box."}, {"text": ""}]
    assert "{{" not in DO
