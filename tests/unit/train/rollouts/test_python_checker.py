"""Code of completions in a process of its own: what runs, what is refused, and what does not count as run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from trainyard.train.rollouts.python_checker import last_block, run_python, runs_through

ADD = "def add(a, b):\n    return a + b\n"


def passes(code: str, timeout_s: int = 5) -> bool:
    return runs_through(code, timeout_s=timeout_s, memory_mb=512)


def test_code_that_satisfies_its_assertions_passes() -> None:
    assert passes(f"{ADD}\nassert add(2, 3) == 5")
    assert not passes(f"{ADD}\nassert add(2, 3) == 6")
    assert not passes("def add(a, b)")


@pytest.mark.parametrize("code", ["import sys; sys.exit(0)", "import os; os._exit(0)", "raise SystemExit"])
def test_code_that_leaves_before_its_assertions_does_not_pass(code: str) -> None:
    assert not passes(f"{code}\nassert False")


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.socket()",
        "import subprocess; subprocess.run(['true'])",
        "import os; os.system('true')",
        "open('left.txt', 'w')",
        "import os; os.kill(os.getppid(), 0)",
        "x = bytearray(1 << 30)",
    ],
)
def test_what_reaches_outside_is_refused(code: str) -> None:
    assert not passes(code)
    assert passes("x = 1")


def test_an_endless_loop_ends_with_its_limit() -> None:
    started = time.monotonic()
    assert not passes("while True: pass", timeout_s=1)
    assert time.monotonic() - started < 5


def test_nothing_of_ours_is_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert run_python("import os; print(dict(os.environ), os.getcwd())", timeout_s=5, memory_mb=512)[0]
    printed = run_python("import os; print(os.environ.get('HF_TOKEN'))", timeout_s=5, memory_mb=512)[1]
    assert printed == "None\n"


def test_a_null_byte_is_code_that_does_not_run(tmp_path: Path) -> None:
    assert not passes("x = '\0'; raise")


def test_the_last_block_of_a_text_is_its_code() -> None:
    assert last_block("First\n```python\na\n```\nthen\n```\nb = 1\n```\nDone.") == "b = 1\n"
    assert last_block("x = 1") == "x = 1"
