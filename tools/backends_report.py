"""`python -m tools.backends_report`: run every test that needs an external trainer, and write down what came of it.

A skip is a failure here: the environments are what this run is about. The result table goes between two marks in
docs/backends.md, with the date and the versions that were really used.
"""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

from trainyard.compute.gpus import physical_cores
from trainyard.spec.axes.backends import BackendName

REPOSITORY = Path(__file__).parent.parent
PAGE = REPOSITORY / "docs" / "backends.md"
BEGIN, END = "<!-- results: written by make test-backends -->", "<!-- end of results -->"
CHAINS = "tests/flows/test_every_backend.py"
CHAIN_TEST = "test_a_chain_trains_on_it"


@dataclass
class Results:
    """Result of one run of the tests."""

    chains: dict[BackendName, dict[str, str]] = field(default_factory=dict)
    """Backend -> facts of its chain, `seconds` and `state` among them."""
    bad: list[str] = field(default_factory=list)
    """Tests that failed or were skipped."""


def run_tests(report: Path, arguments: Iterable[str]) -> int:
    argv = [sys.executable, "-m", "pytest", "-q", f"--junitxml={report}", "-o", "junit_family=xunit1"]
    return subprocess.run([*argv, *arguments], cwd=REPOSITORY, check=False).returncode


def results_of(*reports: Path) -> Results:
    """The results in JUnit reports."""
    results = Results()
    for case in (case for report in reports for case in ElementTree.parse(report).getroot().iter("testcase")):
        state = state_of(case)
        name = f"{case.get('classname')}::{case.get('name')}"
        if state != "passed":
            results.bad.append(f"{state}: {name}")
        if str(case.get("name")).startswith(CHAIN_TEST):
            (backend,) = named(str(case.get("name")))
            facts = {element.get("name", ""): element.get("value", "") for element in case.iter("property")}
            results.chains[backend] = {**facts, "state": state, "seconds": f"{float(case.get('time', 0)):.0f}"}
    return results


HERE = [name for name in BackendName if not name.facts.remote]
"""The backends that compute on this machine."""


def state_of(case: ElementTree.Element) -> str:
    kinds = {"failure": "failed", "error": "failed", "skipped": "skipped"}
    return next((kinds[child.tag] for child in case if child.tag in kinds), "passed")


def named(test: str) -> list[BackendName]:
    """The backends that a test's name speaks of; `native` only if it is alone."""
    tokens = set(re.findall(r"[a-z]+", test.lower().rpartition("[")[2]))
    return [name for name in BackendName if name.value in tokens]


def table(results: Results, now: datetime) -> str:
    """The section of the page."""
    lines = [
        f"Measured on {now:%Y-%m-%d}, {platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"{physical_cores()} CPU cores; a model of two layers, 16 rows, three passes.",
        "",
        "| backend | version | trained | loss | chain |",
        "|---|---|---|---|---|",
    ]
    for name in HERE:
        facts = results.chains.get(name, {})
        trained = f"{facts['stage']}, {facts['method']}" if "stage" in facts else "-"
        loss = f"{facts['first_loss']} → {facts['final_loss']}" if "first_loss" in facts else "-"
        ended = f"{facts['state']}, {facts['seconds']} s" if facts else "not run"
        lines.append(f"| `{name.value}` | {facts.get('version', '-')} | {trained} | {loss} | {ended} |")
    return "\n".join(lines)


def written(page: str, section: str) -> str:
    """The page with another section between the marks."""
    head, mark, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (mark and end):
        raise SystemExit(f"{PAGE.name} has no place for the results: {BEGIN}")
    return f"{head}{BEGIN}\n\n{section}\n\n{END}{tail}"


def main(arguments: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        external, built_in = Path(folder) / "external.xml", Path(folder) / "built_in.xml"
        code = run_tests(external, ["-m", "backends", *arguments])
        code = run_tests(built_in, ["-m", "not backends", CHAINS, *arguments]) or code
        results = results_of(*(report for report in (external, built_in) if report.is_file()))
    if not arguments:  # a part of the tests is no result for the page
        PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), table(results, datetime.now(UTC))), encoding="utf-8")
        results.bad += [f"not run: {name.value}" for name in HERE if name not in results.chains]
    print("\n".join(results.bad) or "every backend trained; no test failed and none was skipped")
    return code or int(bool(results.bad))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
