"""Runs and their logs without Prefect's client mean what they mean with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from trainyard.app.jobs.logs import WORDS, is_upcoming, strip_traceback
from trainyard.prefect_api.states import STATES
from trainyard.stores.live.job_ids import is_meant

RUN = "179c3d66-73e8-4014-9e67-0abc492bf34e"


def test_the_states_are_those_of_the_map() -> None:
    assert {kind.value: word for kind, (word, *_) in STATES.items()} == WORDS


@pytest.mark.parametrize("word", ["desk", "desk-ff409a8d", "job-5b58", "job-5B5808532723", RUN, RUN[:8]])
def test_a_word_names_a_run_by_its_name_or_a_beginning_of_its_ids(word: str) -> None:
    assert is_meant(word, RUN, "desk-ff409a8d", ["job", "job-5b5808532723"])
    assert not is_meant("des", RUN, "desk-ff409a8d", ["job", "job-5b5808532723"])


def test_a_planned_run_is_not_a_job_yet_and_a_late_one_is() -> None:
    planned = {"auto_scheduled": True, "state_name": "Scheduled", "expected_start_time": "2999-01-01T00:00:00+00:00"}
    assert is_upcoming(planned)
    assert not is_upcoming(planned | {"state_name": "Late"})
    assert strip_traceback("gate said no\nNoneType: None") == "gate said no"


def test_reading_a_log_imports_no_prefect() -> None:
    program = (
        "import sys, trainyard.app.jobs.logs; "
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'prefect', 'torch', 'transformers', 'aiohttp'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
