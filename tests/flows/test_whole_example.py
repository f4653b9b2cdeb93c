"""`examples/whole.py`: rows, a chain, a run, a comparison, a served adapter and a question, on a real stack."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples import whole
from tests.conftest import REPOSITORY
from tests.flows.real_stack import Stack
from trainyard.stores.models import SHIPPED_STARTER

pytestmark = [pytest.mark.slow, pytest.mark.faults, pytest.mark.timeout(900)]


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path, SHIPPED_STARTER)
    up = stack.command("up")
    assert up.returncode == 0, up.stderr
    yield stack
    stack.command("down")
    assert not stack.children()


def test_the_example_trains_compares_serves_and_asks(stack: Stack) -> None:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "examples" / "whole.py")], cwd=stack.work, env=stack.environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trainer.hyperparameters.epochs: 2 or 12" in done.stdout
    assert re.search(r"heldout_loss/questions: .* better by \+\d\.\d+ \[\+", done.stdout)
    assert done.stdout.rstrip().endswith(f"(default/{whole.ROLE}/v1)")
    assert re.search(rf"adapter   The ride to {whole.STOPS[0]} takes \d+ minutes\.", done.stdout)
