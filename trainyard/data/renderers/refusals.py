"""The refusals of chat templates: what a template raises for a conversation that it does not take, under one name.

A template is a program, and a conversation that it was not written for ends in whatever its expressions raise. Every
rendering passes through `refusals`, so a caller catches `TemplateError` (or `TemplateRefusal`) alone and has the
template's own words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jinja2.exceptions import TemplateError

REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a template raises for a conversation that it does not take."""


class TemplateRefusal(TemplateError):
    """A conversation that a chat template does not take; its text is the template's own, or says what was raised."""


@contextmanager
def refusals() -> Iterator[None]:
    """Raise a `TemplateRefusal` in place of anything that a template raises for a conversation.

    `TemplateLimit`, of a template that used up its limits, passes.
    """
    try:
        yield
    except TemplateError:
        raise
    except REFUSALS as error:
        raise TemplateRefusal(f"{type(error).__name__}: {error}") from error
