"""Prompts for a language model: built-in prompts, a user's own Jinja prompt, and the JSON schema of the reply.

The part that all requests share (task and format) comes first and the document last, so that a server with prefix
caching computes the shared part once; requests on one document follow each other.

A user's prompt is code from a stranger. It is rendered only in a child process (`prompt_child.py`), in Jinja's
immutable sandbox, under limits of memory, of processor time and of length: one line of JSON in, one line out, about
0.1 ms a prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from trainyard.data.prompt_child import MEMORY_BYTES, RENDER_S, limit_error
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.sandbox.children import ChildEnded, LineChild
from trainyard.sandbox.limits import ChildLimits, Death
from trainyard.spec.axes.data import GenerationTemplate

Messages = list[dict[str, str]]
ENDED = "its process ended, which running out of memory or time does"
SAMPLE = {"title": "Sample", "text": "A chain is a list of nodes.", "source": "sample.md", "kind": "markdown"}

TASKS = {
    GenerationTemplate.QA: (
        "You write questions and answers for training an assistant. Use only what the document says. Each question is "
        "understandable without seeing the document: it names its subject. Each answer is short, complete and correct. "
        "Give every question in {wordings} clearly different wordings with one meaning; the last one differs most. "
        'Reply with JSON: {{"pairs": [{{"questions": [{wordings} strings], "answer": string}}, …]}}.'
    ),
    GenerationTemplate.INSTRUCTION: (
        "You write instructions and responses for training an assistant. Each instruction asks for work that the "
        "document makes possible and is understandable without seeing it; each response carries it out using only "
        'what the document says. Reply with JSON: {{"pairs": [{{"instruction": string, "response": string}}, …]}}.'
    ),
    GenerationTemplate.CODE: (
        "You write programming tasks and solutions for training an assistant. Each task is understandable without "
        "seeing the document; each solution is complete code in the document's language and follows its interfaces. "
        'Reply with JSON: {{"pairs": [{{"task": string, "code": string}}, …]}}.'
    ),
    GenerationTemplate.PREFERENCE: (
        "You write preference pairs for training an assistant. Each prompt is understandable without seeing the "
        "document; the chosen reply is correct by the document, the rejected reply is plausible, similar in length and "
        "wrong or unhelpful. Reply with JSON: "
        '{{"pairs": [{{"prompt": string, "chosen": string, "rejected": string}}, …]}}.'
    ),
}
DOCUMENT_PROMPT = "Document: {title}\n\n{text}\n\nWrite exactly {pairs} pairs on this document, about different facts."
PART_PROMPT = " This is request {part} of {parts} on the same text: take facts from that part of it."
AGAIN_TASKS = {
    GenerationTemplate.QA: (
        "You answer questions for training an assistant. Use only what the document says. Each answer is short, "
        "complete and correct."
    ),
    GenerationTemplate.INSTRUCTION: (
        "You respond to instructions for training an assistant. Each response carries its instruction out using only "
        "what the document says."
    ),
    GenerationTemplate.CODE: (
        "You solve programming tasks for training an assistant. Each solution is complete code in the document's "
        "language and follows its interfaces."
    ),
}
AGAIN_FORM = ' Reply with JSON: {{"answers": [{count} strings]}}, one for each number, in order.'
AGAIN_PROMPT = "Document: {title}\n\n{text}\n\n{questions}"
FIELDS = {
    GenerationTemplate.INSTRUCTION: ("instruction", "response"),
    GenerationTemplate.CODE: ("task", "code"),
    GenerationTemplate.PREFERENCE: ("prompt", "chosen", "rejected"),
}


def item_schema(template: GenerationTemplate, wordings: int) -> JsonObject:
    """JSON Schema of one pair in a reply."""
    text = {"type": "string", "minLength": 1}
    if template is GenerationTemplate.QA:
        questions = {"type": "array", "items": text, "minItems": wordings, "maxItems": wordings}
        properties: dict[str, object] = {"questions": questions, "answer": text}
    else:
        properties = dict.fromkeys(FIELDS[template], text)
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def reply_schema(template: GenerationTemplate, wordings: int, pairs: int) -> dict[str, object]:
    """JSON Schema of a reply with exactly `pairs` pairs.

    A run has at most as many schemas as a request has pairs, so a server compiles few grammars and keeps them.
    """
    items = item_schema(template, wordings)
    return {
        "type": "object",
        "properties": {"pairs": {"type": "array", "items": items, "minItems": pairs, "maxItems": pairs}},
        "required": ["pairs"],
        "additionalProperties": False,
    }


def answers_schema(count: int) -> dict[str, object]:
    """JSON Schema of further answers to `count` questions."""
    text = {"type": "string", "minLength": 1}
    return {
        "type": "object",
        "properties": {"answers": {"type": "array", "items": text, "minItems": count, "maxItems": count}},
        "required": ["answers"],
        "additionalProperties": False,
    }


def answer_messages(template: GenerationTemplate, document: dict[str, str], questions: Sequence[str]) -> Messages:
    """Messages that ask for one more answer to each of these questions on a document {title, text}."""
    listed = "\n".join(f"{number}. {question}" for number, question in enumerate(questions, 1))
    user = AGAIN_PROMPT.format(title=document["title"], text=document["text"], questions=listed)
    system = AGAIN_TASKS[template] + AGAIN_FORM.format(count=len(questions))
    return [{"role": "system", "content": system}, {"role": "user", "content": user}]


class Prompter:
    """Makes the messages of a request; owns the child that renders a user's own prompt. A context manager.

    Raises `InvalidInput` on entry when the own prompt cannot be used: `E-PROMPT` for a
    variable that does not exist, a prompt that never shows the document or leaves the sandbox, and one over the limits
    of time, memory or length; and later, when a document makes it do so.
    """

    def __init__(self, template: GenerationTemplate, *, wordings: int, prompt: str | None = None) -> None:
        self.system = TASKS[template].format(wordings=wordings)
        self.wordings = wordings
        self.child = PromptChild(prompt) if prompt is not None else None

    def __enter__(self) -> Prompter:
        if self.child:
            self.child.open_prompt()
        return self

    def __exit__(self, *_error: object) -> None:
        if self.child:
            self.child.stop()

    def messages(self, document: dict[str, str], *, pairs: int, part: int = 1, parts: int = 1) -> Messages:
        """System and user message that ask for `pairs` pairs on a document {title, text, source, kind}."""
        if self.child:
            variables = {"document": document, "pairs": pairs, "wordings": self.wordings, "part": part, "parts": parts}
            user = self.child.render(variables)
        else:
            user = DOCUMENT_PROMPT.format(title=document["title"], text=document["text"], pairs=pairs)
            user += PART_PROMPT.format(part=part, parts=parts) if parts > 1 else ""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": user}]


class PromptChild(LineChild):
    """The process in which one untrusted template is rendered, again and again."""

    def __init__(self, prompt: str) -> None:
        super().__init__("trainyard.data.prompt_child", ChildLimits(RENDER_S, MEMORY_BYTES))
        self.prompt = prompt

    def open_prompt(self) -> None:
        """Start the child and try the prompt on a sample. Raises `InvalidInput` (`E-PROMPT`)."""
        try:
            read_text(lambda: self.start({"prompt": self.prompt}))
            self.render({"document": SAMPLE, "pairs": 1, "wordings": 1, "part": 1, "parts": 1})
        except BaseException:
            self.stop()
            raise

    def render(self, variables: JsonObject) -> str:
        """Return the text for the variables of a prompt. Raises `InvalidInput` (`E-PROMPT`)."""
        if self.process is None:
            self.open_prompt()
        return read_text(lambda: self.exchange(json.dumps(variables).encode()))


def read_text(exchange: Callable[[], JsonObject]) -> str:
    """Return the text of a child's reply. Raises `InvalidInput` (`E-PROMPT`) for a fault and for a child that ended."""
    try:
        reply = exchange()
    except ChildEnded as ended:
        slow = ended.death is Death.TIME
        why = f"it did not finish within {RENDER_S:g} s" if slow else ENDED
        raise limit_error(why) from ended
    if "code" in reply:
        raise InvalidInput(reply["what"], why=reply["why"], do=reply["do"], code=reply["code"])
    return str(reply["text"])
