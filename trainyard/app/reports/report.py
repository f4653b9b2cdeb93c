"""`trainyard report`: one HTML file about a run, without a script or a request to anything outside it.

The page is a template next to this module; every value in it is escaped. Its policy (CSP) allows its own style sheet by
its digest and nothing else, so that text which became markup by a mistake could still load and run nothing.
"""

from __future__ import annotations

import base64
import hashlib
import time
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from trainyard import __version__
from trainyard.app.context import Context
from trainyard.app.names import find_run
from trainyard.app.reports.facts import gather, read_run
from trainyard.app.responses import Response
from trainyard.json_types import JsonMapping
from trainyard.operations.artifacts import format_time
from trainyard.operations.ledger import ReportInput
from trainyard.stores.files import DISK, make_folders, translate_os_errors
from trainyard.stores.whole import write_whole

FOLDER = Path(__file__).parent
MOST_SAMPLES = 5


class RunReport(Response):
    """A report: its page, or the file that was written."""

    run: str
    html: str = ""
    path: str = ""
    answers: tuple[tuple[str, str], ...]
    """The five questions and their answers."""


def write_report(request: ReportInput, context: Context) -> RunReport:
    """Return the page of a run; on this machine it is written to a file. Raises `NotFound` (`E-JOB-NOT-FOUND`)."""
    run = find_run(request.run, context)
    facts = gather(read_run(run, context), MOST_SAMPLES if request.samples else 0)
    answers = tuple((item["question"], item["answer"]) for item in facts["answers"])
    html = render(facts)
    if request.out is None:
        return RunReport(run=run.id, html=html, answers=answers)
    out = request.out.expanduser().absolute()
    with translate_os_errors(f"The report was not written to {out}"):
        make_folders(DISK, out.parent)
        write_whole(DISK, out, html.encode())
    return RunReport(run=run.id, path=str(out), answers=answers)


def render(facts: JsonMapping) -> str:
    """Return the page of these facts."""
    style = read_style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    fields = {"trainyard_version": __version__, "written": format_time(time.time())}
    template = open_environment().get_template("report.html.jinja")
    return template.render({**fields, **facts, "style": Markup(style), "style_sha256": digest})


@cache
def read_style() -> str:
    return (FOLDER / "report.css").read_text(encoding="utf-8")


@cache
def open_environment() -> Environment:
    return Environment(loader=FileSystemLoader(FOLDER), autoescape=True)
