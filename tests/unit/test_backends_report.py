"""The page that `make test-backends` writes: what it reads from a report, and what it calls bad."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tools import backends_report as report

XML = """<testsuites><testsuite>
<testcase classname="tests.flows.test_every_backend" name="test_a_chain_trains_on_it[mlx]" time="12.3">
 <properties><property name="backend" value="mlx"/><property name="version" value="0.32.2"/>
 <property name="stage" value="sft"/><property name="method" value="lora"/>
 <property name="first_loss" value="6.1"/><property name="final_loss" value="5.2"/></properties></testcase>
<testcase classname="tests.unit" name="test_it_stops[mlx-lora]" time="1"/>
<testcase classname="tests.unit" name="test_it_stops[deepspeed]" time="1"><failure message="no"/></testcase>
<testcase classname="tests.unit" name="test_it_stops[unsloth]" time="1"><skipped message="no environment"/></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def results(tmp_path: Path) -> report.Results:
    path = tmp_path / "report.xml"
    path.write_text(XML)
    return report.results_of(path)


def test_skips_and_failures_are_bad(results: report.Results) -> None:
    assert results.bad == [
        "failed: tests.unit::test_it_stops[deepspeed]",
        "skipped: tests.unit::test_it_stops[unsloth]",
    ]


def test_the_table_has_a_line_for_every_backend(results: report.Results) -> None:
    text = report.table(results, datetime(2026, 1, 2, tzinfo=UTC))
    assert text.startswith("Measured on 2026-01-02, ")
    assert "| `mlx` | 0.32.2 | sft, lora | 6.1 → 5.2 | passed, 12 s |" in text
    assert "| `deepspeed` | - | - | - | not run |" in text
    assert sum(line.startswith("| `") for line in text.splitlines()) == len(report.HERE)


def test_the_page_has_a_place_for_the_results_and_nothing_else_moves(results: report.Results) -> None:
    page = report.PAGE.read_text(encoding="utf-8")
    once = report.written(page, "A TABLE")
    assert report.written(once, "A TABLE") == once
    assert once.partition(report.BEGIN)[0] == page.partition(report.BEGIN)[0]
    assert once.partition(report.END)[2] == page.partition(report.END)[2]
    with pytest.raises(SystemExit, match="no place for the results"):
        report.written("another page", "A TABLE")
