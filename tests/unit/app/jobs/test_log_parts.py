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

from tests.unit.surfaces.live.test_job_streams import JobHome, lines_of, texts_until_end
from trainyard.app.jobs.jobs import show_metrics
from trainyard.app.jobs.logs import JobLog, show_logs
from trainyard.errors import NotFound
from trainyard.operations.jobs import LogsInput, MetricsInput
from trainyard.spec.states import JobState


@pytest.fixture
def place(tmp_path: Path) -> JobHome:
    return JobHome(tmp_path)


def part(place: JobHome, offset: int | None = None, limit: int = 65_536) -> JobLog:
    asked = LogsInput(job="guide", source="trainer", offset=offset, limit_bytes=limit)
    return show_logs(asked, place.context)


def everything(place: JobHome, limit: int) -> list[str]:
    """All parts, one after the other."""
    lines, offset = [], 0
    while (found := part(place, offset, limit)).lines:
        assert found.next_offset["trainer"] > offset
        lines += [line.text for line in found.lines]
        offset = found.next_offset["trainer"]
    return lines


texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\n"), max_size=30)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(texts, max_size=12), limit=st.integers(150, 400))
def test_the_parts_of_any_size_are_the_whole(place: JobHome, lines: list[str], limit: int) -> None:
    (place.work / "child.log").write_bytes("".join(f"{line}\n" for line in lines).encode())
    assert everything(place, limit) == lines


def backwards(place: JobHome, limit: int) -> list[str]:
    """All parts from the last one to the first."""
    found = show_logs(LogsInput(job="guide", source="trainer", tail=3, limit_bytes=limit), place.context)
    lines, before = [line.text for line in found.lines], found.first_offset["trainer"]
    while before:
        asked = LogsInput(job="guide", source="trainer", before=before, limit_bytes=limit)
        found = show_logs(asked, place.context)
        assert found.next_offset == {"trainer": before}
        assert found.first_offset["trainer"] < before
        lines, before = [*(line.text for line in found.lines), *lines], found.first_offset["trainer"]
    return lines


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(texts, max_size=12), limit=st.integers(150, 400))
def test_the_parts_from_the_end_are_the_whole(place: JobHome, lines: list[str], limit: int) -> None:
    (place.work / "child.log").write_bytes("".join(f"{line}\n" for line in lines).encode())
    assert backwards(place, limit) == lines


def test_the_end_of_a_log_is_where_its_stream_continues(place: JobHome) -> None:
    place.write("child.log", "one\ntwo\nthr")
    found = show_logs(LogsInput(job="guide", source="trainer", tail=1), place.context)
    assert [line.text for line in found.lines] == ["two"]
    assert (found.first_offset, found.next_offset) == ({"trainer": 4}, {"trainer": 8})
    place.write("child.log", "ee\n")
    assert [line.text for line in part(place, 8).lines] == ["three"]
    place.write("child.log", "no end")
    place.state(JobState.FAILED)
    found = show_logs(LogsInput(job="guide", source="trainer", tail=2), place.context)
    assert [line.text for line in found.lines] == ["three", "no end"]


def test_the_end_of_a_line_longer_than_the_limit_comes_in_parts(place: JobHome) -> None:
    place.write("child.log", "x" * 1000 + "\nend\n")
    assert "".join(backwards(place, 128)) == "x" * 1000 + "end"


def test_the_end_of_a_large_log_is_read_without_the_rest(place: JobHome) -> None:
    line = "step 1/2, loss 4.3100 ".ljust(99, ".")
    with (place.work / "child.log").open("w") as file:
        for _ in range(50):
            file.write(f"{line}\n" * 10_486)
    tracemalloc.start()
    began = time.process_time()
    found = show_logs(LogsInput(job="guide", source="trainer", tail=2000, limit_bytes=1 << 18), place.context)
    took, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(found.lines), found.next_offset["trainer"]) == (2000, 50 * 10_486 * 100)
    assert took < 1.0
    assert peak < 16 << 20


def test_a_log_without_a_line_has_an_end(place: JobHome) -> None:
    for _ in range(2):
        found = show_logs(LogsInput(job="guide", source="trainer", tail=5), place.context)
        assert (found.lines, found.first_offset, found.next_offset) == ((), {"trainer": 0}, {"trainer": 0})
        place.write("child.log", "no line yet")
    found = show_logs(LogsInput(job="guide", source="trainer", before=2**62), place.context)
    assert found.lines == ()


def test_colors_and_overwritten_lines_are_data(place: JobHome) -> None:
    text = "\x1b[1;31mloss\x1b[0m\r 10%\r 20% <script>alert(1)</script>"
    place.write("child.log", f"{text}\n")
    assert [line.text for line in part(place).lines] == [text]


def test_a_part_continues_where_the_last_one_ended_while_the_file_grows(place: JobHome) -> None:
    assert part(place).next_offset == {"trainer": 0}, "it is not there yet"
    place.write("child.log", "one\ntwo\nthr")
    first = part(place)
    assert [line.text for line in first.lines] == ["one", "two"]
    place.write("child.log", "ee\n")
    second = part(place, first.next_offset["trainer"])
    assert [line.text for line in second.lines] == ["three"]
    assert part(place, second.next_offset["trainer"]).lines == ()


def test_the_words_of_a_trainer_that_died_in_a_line_are_given_at_its_end(place: JobHome) -> None:
    place.write("child.log", "one\nno end")
    assert everything(place, 100) == ["one"]
    place.state(JobState.FAILED)
    assert everything(place, 100) == ["one", "no end"]


def test_a_log_that_was_cut_is_given_from_its_start(place: JobHome) -> None:
    place.write("child.log", "one\ntwo\nthree\n")
    offset = part(place).next_offset["trainer"]
    os.truncate(place.work / "child.log", 4)
    found = part(place, offset)
    assert found.restarted
    assert [line.text for line in found.lines] == ["one"]
    assert found.next_offset == {"trainer": 4}


def test_a_line_longer_than_the_limit_comes_in_parts(place: JobHome) -> None:
    place.write("child.log", "x" * 1000 + "\nend\n")
    assert "".join(everything(place, 128)) == "x" * 1000 + "end"


def test_a_log_that_the_job_does_not_have_is_not_found(place: JobHome) -> None:
    with pytest.raises(NotFound, match=r"E-NOT-FOUND: The job guide has no log of 'other'\. Why: It has: run, trainer"):
        show_logs(LogsInput(job="guide", source="other"), place.context)


def test_a_curve_in_few_points_has_what_lies_between_them(place: JobHome) -> None:
    place.step(*range(1, 1001))
    (curve,) = show_metrics(MetricsInput(job="guide", max_points=20), place.context).trainings
    assert len(curve.points) <= 20
    assert curve.steps_per_point >= 50
    assert curve.high["loss"][-1] == 1000.0
    assert curve.low["loss"][0] == 1.0
    (whole,) = show_metrics(MetricsInput(job="guide", since_step=991), place.context).trainings
    assert [point.step for point in whole.points] == list(range(991, 1001))
    assert (whole.steps_per_point, whole.high) == (1, {})


def test_a_secret_that_a_training_prints_does_not_leave_the_service(
    place: JobHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts from both ends and in the stream. The offsets are those of the file, whose bytes stay as they are."""
    monkeypatch.setenv("SOME_API_KEY", "letters only")
    hub_key = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
    own = f"step 1\nlogin with {hub_key}\nhttps://a:Tr0ub4dor@example.org/x\nkey: letters only\nstep 2\n"
    (place.work / "child.log").write_text(own)
    place.state(JobState.COMPLETED)

    async def stream() -> list[str]:
        return lines_of(await texts_until_end(place.logs()))

    parts = (everything(place, 150), backwards(place, 150), asyncio.run(stream()))
    wanted = ["step 1", "login with [redacted]", "https://[redacted]@example.org/x", "key: [redacted]", "step 2"]
    assert list(parts) == [wanted] * 3
    assert part(place).next_offset == {"trainer": len(own)}


def test_the_end_of_a_large_log_is_there_at_once(place: JobHome) -> None:
    """Only what is sent is looked at for secrets."""
    line = "step 12,345 of 50,000: loss 1.2345, token accuracy 0.81, checkpoint-12345 kept\n"
    (place.work / "child.log").write_text(line * (50_000_000 // len(line)))
    begun = time.process_time()
    found = show_logs(LogsInput(job="guide", source="trainer", tail=500, limit_bytes=65_536), place.context)
    assert time.process_time() - begun < 1
    assert len(found.lines) == 500
