"""Chat templates that are not known: each rendering in a child process under limits.

A template is a program that comes with a model. Trying it on samples proves little: it can loop from the fourth message
on. So a template is rendered in the calling process only if its digest is one of the table's, of a Trainyard model, or
of a file that TRL ships. Any other goes to a child (`trainyard.data.template_child`) under limits of processor time,
memory and length, every time.

Cost in processor time: 1,000 renderings of four messages take 0.3 s here and 0.8 s through a child. A child starts in
0.1 s.
"""

from __future__ import annotations

import threading
import weakref
from functools import cache

import jinja2

from trainyard.data.renderers.choice import digest, list_shipped, map_by_digest, strip_start
from trainyard.data.renderers.day import DAY
from trainyard.data.renderers.table import MARKED_TEMPLATES
from trainyard.data.template_child import MARGIN_CHARS, MAX_GROWTH, MEMORY_BYTES, Unsupported
from trainyard.errors import TrainyardError
from trainyard.sandbox.children import ChildEnded, LineChild
from trainyard.sandbox.limits import ChildLimits, Death

CPU_S = 1.0
"""Processor time of one rendering; a conversation of 1,000 messages takes about 10 ms."""

RUNNING: weakref.WeakValueDictionary[str, LimitedTemplate] = weakref.WeakValueDictionary()
"""Template -> its child's side, while somebody has it."""


class TemplateLimit(TrainyardError):
    """A chat template that used up what one rendering may cost."""

    default_code = "E-CHAT-TEMPLATE"


def is_known(template: str) -> bool:
    """Whether a template may run in this process: it came with this package, or with the installed TRL."""
    return digest(template) in list_digests() or digest(strip_start(template)) in list_digests()


@cache
def list_digests() -> frozenset[str]:
    """Return the digests of the templates of the table, of Trainyard's models, and of those that TRL ships."""
    texts = [*MARKED_TEMPLATES, *(path.read_text(encoding="utf-8") for path in list_shipped().values())]
    return frozenset([*map(digest, texts), *map_by_digest()])


def open_limited(template: str) -> LimitedTemplate:
    """Return the child's side of a template, shared by all who have it now; the child ends with the last of them."""
    child = RUNNING.get(template)
    if child is None:
        child = RUNNING[template] = LimitedTemplate(template)
    return child


class LimitedTemplate(LineChild):
    """A template in its child. Thread-safe; the child starts with the first rendering."""

    def __init__(self, template: str, *, cpu_s: float = CPU_S) -> None:
        super().__init__("trainyard.data.template_child", ChildLimits(cpu_s, MEMORY_BYTES))
        self.template, self.cpu_s = template, cpu_s
        self.lock = threading.Lock()

    def render(self, variables: str) -> str:
        """Return the text for the variables of a template (messages, tools, …), which are one line of JSON.

        Raises `TemplateLimit` (`E-CHAT-TEMPLATE`), and `jinja2.TemplateError` with what the template raised
        (`Unsupported` where it says itself that it does not take the conversation).
        """
        try:
            with self.lock:
                if not self.alive:
                    DAY.is_written |= DAY.applies_to(self.template)
                    self.start({"template": self.template, "day": DAY.fixed})
                reply = self.exchange(variables.encode(errors="surrogatepass"))
        except ChildEnded as ended:
            slow = ended.death is Death.TIME
            reply = {
                "limit": f"more than {self.cpu_s:g} s of processor time" if slow else "more memory than is allowed"
            }
        if "limit" in reply:
            raise TemplateLimit(
                f"The chat template used {reply['limit']} for one conversation.",
                why=f"A template is a program that comes with the model; allowed are {CPU_S:g} s, "
                f"{MEMORY_BYTES >> 20} MiB and {MAX_GROWTH} times the conversation's length plus "
                f"{MARGIN_CHARS:,} characters.",
                do="Use another model, or set `template` to a renderer's name (`trainyard renderers verify`).",
            )
        if "unsupported" in reply:
            raise Unsupported(reply["unsupported"])
        if "refused" in reply:
            raise jinja2.TemplateError(reply["refused"])
        return str(reply["text"])
