"""Programs that answer lines under limits: each reason of an end, and the next start."""

from __future__ import annotations

import os
import signal

import pytest

from trainyard.sandbox.children import ChildEnded, LineChild
from trainyard.sandbox.limits import ChildLimits, Death, find_death

PATTERNS = "trainyard.stores.pattern_child"
LIMITS = ChildLimits(cpu_s=0.3, memory_bytes=256 << 20)


def test_a_reply_that_takes_too_long_ends_the_child_and_the_next_start_works() -> None:
    child = LineChild(PATTERNS, LIMITS)
    slow = {"patterns": [["target_modules", "(a+)+$", "match"]], "names": ["a" * 60 + "!"]}
    with pytest.raises(ChildEnded) as ended:
        child.start(slow)
    assert (ended.value.death, ended.value.code, child.alive) == (Death.TIME, -signal.SIGPROF, False)
    assert child.start({"patterns": [["target_modules", "(", "match"]], "names": ["a"]})["problem"].startswith("target")
    assert child.alive
    child.stop()
    assert not child.alive


def test_a_child_that_was_killed_is_noticed_at_its_reply() -> None:
    child = LineChild(PATTERNS, LIMITS)
    assert child.start({"patterns": [], "names": []}) == {"problem": ""}
    assert child.process is not None
    os.kill(child.process.pid, signal.SIGKILL)
    with pytest.raises(ChildEnded) as ended:
        child.exchange(b"{}")
    assert (ended.value.death, child.process) == (Death.MEMORY, None)


@pytest.mark.parametrize(
    ("code", "death"), [(None, Death.TIME), (-signal.SIGXCPU, Death.TIME), (1, Death.MEMORY), (3, Death.OTHER)]
)
def test_the_reason_of_an_end_is_its_exit_code(code: int | None, death: Death) -> None:
    assert find_death(code) is death
