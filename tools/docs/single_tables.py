"""Pages that are one table of another module: OpenAI's request fields, automatic choices, benchmarks."""

from __future__ import annotations

from tools.docs.markdown import code, page, table
from trainyard.backends.choices import AUTOMATIC
from trainyard.evals.benchmarks.table import BENCHMARKS, INSTALL_LM_EVAL, Benchmark
from trainyard.surfaces.openai.fields import TAKEN, write_fields

FIELDS = """\
Every field that the `openai` package sends to these paths, and the values that are accepted. A field with another value
is refused by its name, never ignored. Null means that a field is not sent ([OpenAI clients](../openai.md))."""
CHOICES = """\
What a spec leaves open, the setting that decides it instead, and the facts from which it follows: never a clock, nor
the memory that is free at the moment ([training](../training.md#automatic-choices))."""

SCORED = f"""\
What an [evaluator](../evaluation.md#benchmarks) can measure, row by row. `lm_eval:<task>` is the metric of a task of
the lm-evaluation-harness (`{INSTALL_LM_EVAL}`). The margin is that of a benchmark that is not listed in the config."""
NEEDED = {
    "gold": "an answer",
    "answer": "an answer, or plain text",
    "rejected": "preference rows",
    "prompt": "a prompt",
}


def benchmarks_page() -> str:
    rows = [
        [
            code(name),
            row.means,
            "higher" if row.higher_is_better else "lower",
            NEEDED.get(row.needs, row.needs),
            margin(row),
        ]
        for name, row in BENCHMARKS.items()
    ]
    return page("Benchmarks", SCORED, [table(["benchmark", "value of a row", "better", "needs", "margin"], rows)])


def margin(row: Benchmark) -> str:
    """Return the margin of a benchmark that is taken by default."""
    share = row.default_relative_margin
    return f"{share:g} of the baseline" if share else f"{row.default_margin:g}"


def openai_page() -> str:
    return page("OpenAI fields", FIELDS, ["\n".join(write_fields(path)) for path in TAKEN])


def choices_page() -> str:
    rows = [[row.name, code(row.setting) if row.setting else "", ", ".join(row.decided_by)] for row in AUTOMATIC]
    return page("Automatic choices", CHOICES, [table(["choice", "setting", "decided by"], rows)])
