"""The program that renders a user's own prompt under limits: `python -m trainyard.data.prompt_child`.

One line of JSON in, one out: first the prompt, then the variables of each rendering. Its parent's side is
`trainyard.data.prompts`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from jinja2 import StrictUndefined, TemplateSyntaxError, UndefinedError, meta
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trainyard.data.template_child import render_limited
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.sandbox.limits import Answer, Reply, serve_lines

MEMORY_BYTES = 256 << 20
RENDER_S = 2.0
MARGIN_CHARS = 100_000
"""How much longer than the document a prompt may become."""
VARIABLES = ("document", "pairs", "wordings", "part", "parts")
DO = f"Correct config.prompt; it sees {', '.join(VARIABLES)} (document has title, text, source and kind)."


def limit_error(why: str) -> InvalidInput:
    """Return the error (`E-PROMPT`) of a prompt that breached a limit."""
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


def answer(environment: ImmutableSandboxedEnvironment, prompt: str, variables: JsonObject) -> Reply:
    """Return the reply to one line: the rendered text, or the error as its four fields."""
    try:
        if "document" in variables:
            most = len(variables["document"]["text"]) + MARGIN_CHARS
            text = render_limited(environment.from_string(prompt).generate(variables), most)
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
        code, message = next((code, message) for kind, code, message in FAULTS if isinstance(fault, kind))
        line = f"Line {fault.lineno}: " if isinstance(fault, TemplateSyntaxError) else ""
        return InvalidInput(message, why=f"{line}{str(fault)[:500]}".rstrip(".") + ".", do=DO, code=code).as_dict()


def open_prompt(setup: dict[str, str]) -> tuple[Reply, Answer]:
    """Check the prompt of the first line, and return what answers the variables of each rendering."""
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, autoescape=False)

    def answer_line(line: bytes) -> Iterator[Reply]:
        yield answer(environment, setup["prompt"], json.loads(line))

    return answer(environment, setup["prompt"], {}), answer_line


if __name__ == "__main__":
    serve_lines(open_prompt)
