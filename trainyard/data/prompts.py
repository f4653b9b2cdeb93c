"""What a language model is asked: built-in prompts, a user's own Jinja prompt, and the JSON schema of the reply.

The part that all requests share (task and format) comes first and the document last, so that a server with prefix
caching computes the shared part once; requests on one document follow each other.

A user's prompt is code from a stranger. It is rendered only in a child process (`python -m trainyard.data.prompts`),
in Jinja's immutable sandbox, under limits of memory (`RLIMIT_AS`), of wall time and of length: one line of JSON in,
one line out, about 0.1 ms a prompt. The child ends with its parent's pipe.
"""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import IO, Any

from jinja2 import StrictUndefined, TemplateSyntaxError, UndefinedError, meta
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trainyard.data.template_child import limit_this_process, render_limited
from trainyard.errors import InvalidInput
from trainyard.inherited import child_environment
from trainyard.spec.axes.data import GenerationTemplate

Messages = list[dict[str, str]]
MEMORY_BYTES = 256 << 20
RENDER_S = 2.0
START_S = 20.0
"""A cold interpreter on a loaded machine takes seconds to import; this bounds the start, not a rendering."""
MARGIN_CHARS = 100_000
"""How much longer than the document a prompt may become."""
VARIABLES = ("document", "pairs", "wordings", "part", "parts")
DO = f"Correct config.prompt; it sees {', '.join(VARIABLES)} (document has title, text, source and kind)."
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


def item_schema(template: GenerationTemplate, wordings: int) -> dict[str, Any]:
    """JSON Schema of one pair in a reply."""
    text = {"type": "string", "minLength": 1}
    if template is GenerationTemplate.QA:
        questions = {"type": "array", "items": text, "minItems": wordings, "maxItems": wordings}
        properties: dict[str, Any] = {"questions": questions, "answer": text}
    else:
        properties = dict.fromkeys(FIELDS[template], text)
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def reply_schema(template: GenerationTemplate, wordings: int, pairs: int) -> dict[str, Any]:
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


def answers_schema(count: int) -> dict[str, Any]:
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
            self.child.start()
        return self

    def __exit__(self, *_error: object) -> None:
        if self.child:
            self.child.stop()

    def messages(self, document: dict[str, str], *, pairs: int, part: int = 1, parts: int = 1) -> Messages:
        """System and user message that ask for `pairs` pairs on a document {title, text, source, kind}."""
        if self.child:
            given = {"document": document, "pairs": pairs, "wordings": self.wordings, "part": part, "parts": parts}
            user = self.child.render(given)
        else:
            user = DOCUMENT_PROMPT.format(title=document["title"], text=document["text"], pairs=pairs)
            user += PART_PROMPT.format(part=part, parts=parts) if parts > 1 else ""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": user}]


class PromptChild:
    """The process in which one untrusted template is rendered, again and again."""

    def __init__(self, prompt: str) -> None:
        self.prompt = prompt
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "trainyard.data.prompts"]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=child_environment()
        )
        try:
            self.exchange({"prompt": self.prompt}, START_S)
            self.render({"document": SAMPLE, "pairs": 1, "wordings": 1, "part": 1, "parts": 1})
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        if self.process:
            self.process.kill()
            self.process.communicate()
            self.process = None

    def render(self, given: dict[str, Any]) -> str:
        return str(self.exchange(given, RENDER_S)["text"])

    def exchange(self, given: dict[str, Any], seconds: float) -> dict[str, Any]:
        """One line to the child, one line back, within `seconds`."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(given).encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise limit_error("its process ended") from error
        if not select.select([self.process.stdout], [], [], seconds)[0]:
            raise limit_error(f"it did not finish within {seconds:g} s")
        line = self.process.stdout.readline()
        if not line:
            raise limit_error("its process ended, which running out of memory or time does")
        reply: dict[str, Any] = json.loads(line)
        if "code" in reply:
            raise InvalidInput(reply["what"], why=reply["why"], do=reply["do"], code=reply["code"])
        return reply


def limit_error(why: str) -> InvalidInput:
    return InvalidInput(
        "The generator's own prompt was stopped.",
        why=f"While it was rendered, {why}; allowed are {RENDER_S:g} s, {MEMORY_BYTES >> 20} MiB and the document's "
        f"length plus {MARGIN_CHARS:,} characters.",
        do="Take loops and repetitions out of config.prompt.",
        code="E-PROMPT",
    )


FAULTS: tuple[tuple[type[Exception], str, str], ...] = (
    (TemplateSyntaxError, "E-PROMPT", "The generator's own prompt is not Jinja."),
    (SecurityError, "E-PROMPT", "The generator's own prompt tries to leave its sandbox."),
    (UndefinedError, "E-PROMPT", "The generator's own prompt uses a name that does not exist."),
    (Exception, "E-PROMPT", "The generator's own prompt cannot be rendered."),
)
"""The first row whose type matches names the code; Jinja lets any exception of an expression through."""


def answer(environment: ImmutableSandboxedEnvironment, prompt: str, given: dict[str, Any]) -> dict[str, Any]:
    """The child's reply to one line: the rendered text, or the error as its four fields."""
    try:
        if "document" in given:
            most = len(given["document"]["text"]) + MARGIN_CHARS
            text = render_limited(environment.from_string(prompt).generate(given), most)
            if text is None:
                raise limit_error(f"it became longer than {most:,} characters")
            return {"text": text}
        if "document" not in meta.find_undeclared_variables(environment.parse(prompt)):
            raise InvalidInput("The generator's own prompt never shows the document.", do=DO, code="E-PROMPT")
        return {"text": ""}
    except InvalidInput as fault:
        return fault.as_dict()
    except (MemoryError, RecursionError, OverflowError) as fault:
        return limit_error(f"it ran into {type(fault).__name__}").as_dict()
    except Exception as fault:
        code, what = next((code, what) for kind, code, what in FAULTS if isinstance(fault, kind))
        line = f"Line {fault.lineno}: " if isinstance(fault, TemplateSyntaxError) else ""
        return InvalidInput(what, why=f"{line}{str(fault)[:500]}".rstrip(".") + ".", do=DO, code=code).as_dict()


def serve(lines: IO[bytes], out: IO[bytes]) -> None:
    """The child's loop. The first line brings the prompt, every later one the variables of a rendering."""
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
    prompt = ""
    for line in lines:
        given = json.loads(line)
        prompt = given.get("prompt", prompt)
        # The default action of SIGALRM ends the process: a runaway rendering stops even when its parent is gone.
        signal.setitimer(signal.ITIMER_REAL, 2 * RENDER_S)
        reply = answer(environment, prompt, given)
        signal.setitimer(signal.ITIMER_REAL, 0)
        out.write(json.dumps(reply).encode() + b"\n")
        out.flush()


if __name__ == "__main__":
    limit_this_process(MEMORY_BYTES)
    serve(sys.stdin.buffer, sys.stdout.buffer)
