"""The demo's result as text: the table that says whether the adapter learned anything."""

from __future__ import annotations

from trainyard.api.verbs.demo import DemoResult


def demo_text(result: DemoResult) -> str:
    """The table that ends the demo."""
    dropped = ", ".join(f"{count} {reason}" for reason, count in result.dropped.items() if count) or "none"
    lines = [
        f"documents  {result.documents}",
        f"rows       {result.pairs} read = {result.kept} kept + {result.heldout} held out + dropped ({dropped})",
        "",
        f"{'loss per answer token':<18}{'rows':>6}{'base':>8}{'control':>9}{'tuned':>8}"
        f"   {'base - tuned [95 %]':<26}control - tuned [95 %]",
    ]
    for one in result.sets:
        lines.append(
            f"{one.name.replace('_', ' '):<18}{one.rows:>6}{one.base:>8.3f}{one.control:>9.3f}{one.tuned:>8.3f}"
            f"   {one.base_minus_tuned!s:<26}{one.control_minus_tuned!s}"
        )
    quotes = result.quotes
    lines += [
        "",
        f"{'right sentence quoted':<21}{quotes.questions:>3}{quotes.base:>8}{quotes.control:>9}{quotes.tuned:>8}"
        "   questions in unseen wording",
        "",
        f"prompt     {one_line(result.prompt)}",
        f"base       {one_line(result.base_answer)}",
        f"tuned      {one_line(result.tuned_answer)}",
        "",
        f"adapter    {result.adapter}",
        f"run        {result.urls.run}",
        f"UI         {result.urls.prefect}",
        f"dashboard  {result.urls.dashboard} (logs a browser in once, within an hour)",
        f"model      {result.urls.model}/v1 (OpenAI-compatible)",
        f"seconds    {result.seconds:.0f}",
        result.last_line,
    ]
    return "\n".join(lines)


def one_line(given: str) -> str:
    flat = " ".join(given.split())
    return flat if len(flat) <= 160 else flat[:159] + "…"
