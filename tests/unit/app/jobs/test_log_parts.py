"""Parts of a log by byte offset: nothing is lost, doubled or changed, while the file grows, is cut and is replaced."""

from __future__ import annotations

import asyncio
import os
import time
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.surfaces.test_job_streams import JobHome, list_lines, texts_until_end
from trainyard.app.jobs.jobs import show_metrics
from trainyard.app.jobs.logs import JobLog, show_logs
from trainyard.errors import NotFound
from trainyard.operations.jobs import LogsInput, MetricsInput
from trainyard.spec.states import JobState


@pytest.fixture
def job_home(tmp_path: Path) -> JobHome:
    return JobHome(tmp_path)


def show_part(job_home: JobHome, offset: int | None = None, limit: int = 65_536) -> JobLog:
    request = LogsInput(job="guide", source="trainer", offset=offset, limit_bytes=limit)
    return show_logs(request, job_home.context)


def read_all_parts(job_home: JobHome, limit: int) -> list[str]:
    """All parts, one after the other."""
    lines, offset = [], 0
    while (log := show_part(job_home, offset, limit)).lines:
        assert log.next_offset["trainer"] > offset
        lines += [line.text for line in log.lines]
        offset = log.next_offset["trainer"]
    return lines


texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n"), max_size=30)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(texts, max_size=12), limit=st.integers(150, 400))
def test_the_parts_of_any_size_are_the_whole(job_home: JobHome, lines: list[str], limit: int) -> None:
    (job_home.work / "child.log").write_bytes("".join(f"{line}\n" for line in lines).encode())
    assert read_all_parts(job_home, limit) == lines


def backwards(job_home: JobHome, limit: int) -> list[str]:
    """All parts from the last one to the first."""
    log = show_logs(LogsInput(job="guide", source="trainer", tail=3, limit_bytes=limit), job_home.context)
    lines, before = [line.text for line in log.lines], log.first_offset["trainer"]
    while before:
        request = LogsInput(job="guide", source="trainer", before=before, limit_bytes=limit)
        log = show_logs(request, job_home.context)
        assert log.next_offset == {"trainer": before}
        assert log.first_offset["trainer"] < before
        lines, before = [*(line.text for line in log.lines), *lines], log.first_offset["trainer"]
    return lines


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(texts, max_size=12), limit=st.integers(150, 400))
def test_the_parts_from_the_end_are_the_whole(job_home: JobHome, lines: list[str], limit: int) -> None:
    (job_home.work / "child.log").write_bytes("".join(f"{line}\n" for line in lines).encode())
    assert backwards(job_home, limit) == lines


def test_the_end_of_a_log_is_where_its_stream_continues(job_home: JobHome) -> None:
    job_home.write("child.log", "one\ntwo\nthr")
    log = show_logs(LogsInput(job="guide", source="trainer", tail=1), job_home.context)
    assert [line.text for line in log.lines] == ["two"]
    assert (log.first_offset, log.next_offset) == ({"trainer": 4}, {"trainer": 8})
    job_home.write("child.log", "ee\n")
    assert [line.text for line in show_part(job_home, 8).lines] == ["three"]
    job_home.write("child.log", "no end")
    job_home.state(JobState.FAILED)
    log = show_logs(LogsInput(job="guide", source="trainer", tail=2), job_home.context)
    assert [line.text for line in log.lines] == ["three", "no end"]


def test_the_end_of_a_line_longer_than_the_limit_comes_in_parts(job_home: JobHome) -> None:
    job_home.write("child.log", "x" * 1000 + "\nend\n")
    assert "".join(backwards(job_home, 128)) == "x" * 1000 + "end"


def test_the_end_of_a_large_log_is_read_without_the_rest(job_home: JobHome) -> None:
    line = "step 1/2, loss 4.3100 ".ljust(99, ".")
    with (job_home.work / "child.log").open("w") as file:
        for _ in range(50):
            file.write(f"{line}\n" * 10_486)
    tracemalloc.start()
    began = time.process_time()
    log = show_logs(LogsInput(job="guide", source="trainer", tail=2000, limit_bytes=1 << 18), job_home.context)
    took, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(log.lines), log.next_offset["trainer"]) == (2000, 50 * 10_486 * 100)
    assert took < 1.0
    assert peak < 16 << 20


def test_a_log_without_a_line_has_an_end(job_home: JobHome) -> None:
    for _ in range(2):
        log = show_logs(LogsInput(job="guide", source="trainer", tail=5), job_home.context)
        assert (log.lines, log.first_offset, log.next_offset) == ((), {"trainer": 0}, {"trainer": 0})
        job_home.write("child.log", "no line yet")
    log = show_logs(LogsInput(job="guide", source="trainer", before=2**62), job_home.context)
    assert log.lines == ()


def test_colors_and_overwritten_lines_are_data(job_home: JobHome) -> None:
    text = "\x1b[1;31mloss\x1b[0m\r 10%\r 20% <script>alert(1)</script>"
    job_home.write("child.log", f"{text}\n")
    assert [line.text for line in show_part(job_home).lines] == [text]


def test_a_part_continues_where_the_last_one_ended_while_the_file_grows(job_home: JobHome) -> None:
    assert show_part(job_home).next_offset == {"trainer": 0}, "it is not there yet"
    job_home.write("child.log", "one\ntwo\nthr")
    first = show_part(job_home)
    assert [line.text for line in first.lines] == ["one", "two"]
    job_home.write("child.log", "ee\n")
    second = show_part(job_home, first.next_offset["trainer"])
    assert [line.text for line in second.lines] == ["three"]
    assert show_part(job_home, second.next_offset["trainer"]).lines == ()


def test_the_words_of_a_trainer_that_died_in_a_line_are_given_at_its_end(job_home: JobHome) -> None:
    job_home.write("child.log", "one\nno end")
    assert read_all_parts(job_home, 100) == ["one"]
    job_home.state(JobState.FAILED)
    assert read_all_parts(job_home, 100) == ["one", "no end"]


def test_a_log_that_was_cut_is_given_from_its_start(job_home: JobHome) -> None:
    job_home.write("child.log", "one\ntwo\nthree\n")
    offset = show_part(job_home).next_offset["trainer"]
    os.truncate(job_home.work / "child.log", 4)
    log = show_part(job_home, offset)
    assert log.restarted
    assert [line.text for line in log.lines] == ["one"]
    assert log.next_offset == {"trainer": 4}


def test_a_line_longer_than_the_limit_comes_in_parts(job_home: JobHome) -> None:
    job_home.write("child.log", "x" * 1000 + "\nend\n")
    assert "".join(read_all_parts(job_home, 128)) == "x" * 1000 + "end"


def test_a_log_that_the_job_does_not_have_is_not_found(job_home: JobHome) -> None:
    with pytest.raises(NotFound, match=r"E-NOT-FOUND: The job guide has no log of 'other'\. Why: It has: run, trainer"):
        show_logs(LogsInput(job="guide", source="other"), job_home.context)


def test_a_curve_in_few_points_has_what_lies_between_them(job_home: JobHome) -> None:
    job_home.step(*range(1, 1001))
    (curve,) = show_metrics(MetricsInput(job="guide", max_points=20), job_home.context).trainings
    assert len(curve.points) <= 20
    assert curve.steps_per_point >= 50
    assert curve.high["loss"][-1] == 1000.0
    assert curve.low["loss"][0] == 1.0
    (whole,) = show_metrics(MetricsInput(job="guide", since_step=991), job_home.context).trainings
    assert [point.step for point in whole.points] == list(range(991, 1001))
    assert (whole.steps_per_point, whole.high) == (1, {})


def test_a_secret_that_a_training_prints_does_not_leave_the_service(
    job_home: JobHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts from both ends and in the stream. The offsets are those of the file, whose bytes stay as they are."""
    monkeypatch.setenv("SOME_API_KEY", "letters only")
    hub_key = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
    text = f"step 1\nlogin with {hub_key}\nhttps://a:Tr0ub4dor@example.org/x\nkey: letters only\nstep 2\n"
    (job_home.work / "child.log").write_text(text)
    job_home.state(JobState.COMPLETED)

    async def stream() -> list[str]:
        return list_lines(await texts_until_end(job_home.logs()))

    parts = (read_all_parts(job_home, 150), backwards(job_home, 150), asyncio.run(stream()))
    expected_lines = [
        "step 1",
        "login with [redacted]",
        "https://[redacted]@example.org/x",
        "key: [redacted]",
        "step 2",
    ]
    assert list(parts) == [expected_lines] * 3
    assert show_part(job_home).next_offset == {"trainer": len(text)}


def test_the_end_of_a_large_log_is_there_at_once(job_home: JobHome) -> None:
    """Only what is sent is looked at for secrets."""
    line = "step 12,345 of 50,000: loss 1.2345, token accuracy 0.81, checkpoint-12345 kept\n"
    (job_home.work / "child.log").write_text(line * (50_000_000 // len(line)))
    start_s = time.process_time()
    log = show_logs(LogsInput(job="guide", source="trainer", tail=500, limit_bytes=65_536), job_home.context)
    assert time.process_time() - start_s < 1
    assert len(log.lines) == 500
