"""The program that renders one chat template under limits: `python -m trainyard.data.template_child`.

One line of JSON in, one out: first the template, then the variables of each rendering. It imports jinja2 and the
standard library only, so that it starts in a tenth of a second. Its parent's side is
`trainyard.data.renderers.limited`.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

from trainyard.json_types import JsonObject
from trainyard.sandbox.limits import Answer, Reply, serve_lines

MEMORY_BYTES = 512 << 20
MARGIN_CHARS = 1 << 20
MAX_GROWTH = 4
"""A text may have four times the characters of what is written, and `MARGIN_CHARS` more."""


class Unsupported(jinja2.TemplateError):
    """The template itself says that it does not take a conversation."""


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}…{% endgeneration %}`, which marks the assistant's part for loss masks; here it only passes."""

    tags = {"generation"}  # noqa: RUF012  (jinja's own protocol)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("pass_through"), [], [], body).set_lineno(line)

    def pass_through(self, caller: jinja2.runtime.Macro) -> str:
        return str(caller())


class PlainNamespace(jinja2.utils.Namespace):
    """A namespace without names of Python's own, as transformers has it."""

    def __setitem__(self, name: str, value: object) -> None:
        if name.startswith("_"):
            raise jinja2.sandbox.SecurityError(f"a namespace has no name {name!r}")
        super().__setitem__(name, value)


def raise_exception(message: str) -> NoReturn:
    raise Unsupported(message)


def plain_dict(*items: Any, **more: Any) -> dict[Any, Any]:
    """Return the global `dict` as a function: the type itself would bring its methods along."""
    return dict(*items, **more)


def format_time(day: str, form: str) -> str:
    """Format the start of a fixed day, or the current time."""
    moment = datetime.datetime.fromisoformat(day) if day else datetime.datetime.now()
    return moment.strftime(form)


def environment(day: str = "") -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    """Return the sandbox with the names that transformers offers to templates; `day` is an ISO date instead of now."""
    sandbox = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    sandbox.filters["tojson"] = lambda value, ensure_ascii=False, **options: json.dumps(
        value, ensure_ascii=ensure_ascii, **options
    )
    sandbox.globals["raise_exception"] = raise_exception
    sandbox.globals["strftime_now"] = partial(format_time, day)
    sandbox.globals["dict"] = plain_dict
    sandbox.globals["namespace"] = PlainNamespace
    return sandbox


def render_limited(pieces: Iterator[str], most: int) -> str | None:
    """Join rendered pieces; None as soon as they are longer than allowed."""
    text, length = [], 0
    for piece in pieces:
        length += len(piece)
        if length > most:
            return None
        text.append(piece)
    return "".join(text)


def answer(template: jinja2.Template, variables: JsonObject, most: int) -> dict[str, str]:
    """Return the reply to the variables of one rendering."""
    try:
        text = render_limited(template.generate(variables), most)
    except (MemoryError, RecursionError, OverflowError) as error:
        return {"limit": f"more memory than is allowed ({type(error).__name__})"}
    except Unsupported as error:
        return {"unsupported": str(error)}
    except Exception as error:  # what an expression raises is the template's own refusal
        is_template_error = isinstance(error, jinja2.TemplateError)
        return {"refused": str(error) if is_template_error else f"{type(error).__name__}: {error}"}
    return {"limit": f"more than {most:,} characters"} if text is None else {"text": text}


def open_template(setup: dict[str, str]) -> tuple[Reply, Answer]:
    """Compile the template of the first line, and return what answers the variables of each rendering."""
    problem, template = "", None
    try:
        template = environment(setup.get("day", "")).from_string(setup["template"])
    except jinja2.TemplateSyntaxError as error:
        problem = f"it does not compile, line {error.lineno}: {error.message}"
    except (MemoryError, RecursionError) as error:
        problem = f"the template cannot be compiled ({type(error).__name__})"

    def answer_line(line: bytes) -> Iterator[Reply]:
        most = MAX_GROWTH * len(line) + MARGIN_CHARS
        yield {"refused": problem} if template is None else answer(template, json.loads(line), most)

    return {}, answer_line


if __name__ == "__main__":
    serve_lines(open_template)
