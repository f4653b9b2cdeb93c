"""Chat templates under limits.

A template is a program that comes with a model: transformers runs it in Jinja's sandbox, and here it also gets a limit
on time and memory. What it writes is read by `trainyard.data.renderers`.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import psutil

from trainyard.data.renderers.borders import common_prefix
from trainyard.data.renderers.rendering import Piece, Renderer
from trainyard.data.renderers.rendering import turn_of as turn
from trainyard.data.renderers.role_colon import PLAIN_TEMPLATE
from trainyard.errors import TrainyardError

__all__ = ["PLAIN_TEMPLATE", "Piece", "Renderer", "TemplateLimit", "common_prefix", "template_limits", "turn"]

TEMPLATE_CPU_S = 5.0
TEMPLATE_MEMORY_BYTES = 4 << 30


class TemplateLimit(TrainyardError):
    """A chat template that used up what one row may cost."""

    default_code = "E-TEMPLATE-LIMIT"


@contextmanager
def template_limits(cpu_s: float = TEMPLATE_CPU_S, memory_bytes: int = TEMPLATE_MEMORY_BYTES) -> Iterator[None]:
    """Bound what a chat template, which comes with a model, may cost: CPU time and memory. The main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def over(_signal: int, _frame: FrameType | None) -> None:
        raise TemplateLimit(
            f"The chat template took more than {cpu_s:g} s of CPU time for one row.",
            why="A template is a program that comes with the model; this one is broken or hostile.",
            do="Use another model, or replace its chat template.",
        )

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    ceiling = psutil.Process(os.getpid()).memory_info().vms + memory_bytes
    previous = signal.signal(signal.SIGVTALRM, over)
    resource.setrlimit(resource.RLIMIT_AS, (ceiling if hard == resource.RLIM_INFINITY else min(ceiling, hard), hard))
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    except MemoryError:
        raise TemplateLimit(
            "The chat template asked for more memory than a row may cost.",
            why="A template is a program that comes with the model; this one is broken or hostile.",
            do="Use another model, or replace its chat template.",
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGVTALRM, previous)
