"""The day that chat templates write: the day of a training's first start, also where it continues on another one.

Templates such as those of Llama 3.1 and gpt-oss write today's date (`strftime_now`). Rows that were rendered again on
the next day would have other tokens, and a training that continues with them other bits.
"""

from __future__ import annotations

import datetime

FUNCTION = "strftime_now"
"""Name under which transformers offers the time to templates."""


class TemplateDay:
    """The day of this process: now, unless it is fixed."""

    def __init__(self) -> None:
        self.fixed = ""
        """ISO date; empty: the clock of the machine."""
        self.is_written = False
        """Whether a template that writes the time was rendered with the fixed day."""

    def fix(self, day: str) -> None:
        """Let templates write an ISO date from now on. Raises `ValueError` for another text."""
        datetime.date.fromisoformat(day)
        self.fixed = day

    def applies_to(self, template: str) -> bool:
        """Return whether a template writes the fixed day; transformers would render it with the clock."""
        return bool(self.fixed) and FUNCTION in template


DAY = TemplateDay()
