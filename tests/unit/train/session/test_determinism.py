"""Strict kernels: an operation without a deterministic one is an error, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch.utils import deterministic

from tests.unit.train.session.engines import copy_weights, make_batch, make_session, same, train_step
from trainyard.train.session.determinism import find_refusal, prefer_deterministic, strict_kernels


@pytest.fixture(autouse=True)
def as_a_job_has_it() -> Iterator[None]:
    before, fills = torch.are_deterministic_algorithms_enabled(), deterministic.fill_uninitialized_memory
    prefer_deterministic()
    yield
    torch.use_deterministic_algorithms(before)
    deterministic.fill_uninitialized_memory = fills


def overwrite() -> None:
    """An operation that torch has no deterministic kernel for, on any device."""
    torch.zeros(3).put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))


def test_an_operation_without_a_deterministic_kernel_is_refused_inside_and_only_there() -> None:
    with strict_kernels(), pytest.raises(RuntimeError, match="put_"):
        overwrite()
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    with pytest.warns(UserWarning, match="put_"):
        overwrite()


def test_the_flags_are_put_back_after_an_error() -> None:
    with pytest.raises(KeyError), strict_kernels():
        raise KeyError
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_what_is_not_enabled_changes_nothing() -> None:
    with strict_kernels(False):
        assert torch.is_deterministic_algorithms_warn_only_enabled()


def test_a_refused_step_says_which_operation_it_was() -> None:
    assert "put_" in find_refusal(overwrite)
    assert find_refusal(lambda: None) == ""


def test_another_error_of_a_step_is_not_taken_for_a_refusal() -> None:
    with pytest.raises(RuntimeError, match="shape"):
        find_refusal(lambda: torch.zeros(2).reshape(3).sum() or None)


def test_a_strict_session_gives_the_same_bits(tmp_path: Path) -> None:
    results = []
    for strict in (True, False):
        session = make_session(tmp_path / str(strict))  # seeds the generators
        session.engine.strict = strict
        losses = [train_step(session, [make_batch()]) for _ in range(2)]
        results.append((losses, copy_weights(session)))
    assert results[0][0] == results[1][0]
    assert same(results[0][1], results[1][1])


def test_new_memory_is_not_filled_first_and_the_bits_are_the_same(tmp_path: Path) -> None:
    assert not deterministic.fill_uninitialized_memory
    results = []
    for fills in (False, True):
        deterministic.fill_uninitialized_memory = fills
        session = make_session(tmp_path / str(fills))
        train_step(session, [make_batch()])
        results.append(copy_weights(session))
    assert same(*results)
