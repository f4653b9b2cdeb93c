"""Two sessions in one process: taking turns, each draws what it would draw alone."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.unit.train.session.engines import copy_weights, make_batch, make_config, make_session, same, train_step
from trainyard.spec.axes.stages import Stage
from trainyard.train.contracts import Sampling
from trainyard.train.session.session import Session

STEPS = 3


def noisy(folder: Path, seed: int) -> Session:
    """Dropout and noise on the embeddings: both draw in each forward."""
    return make_session(folder, make_config(Stage.SFT.settings(neftune_alpha=5)), dropout=0.2, seed=seed)


def test_sessions_that_take_turns_end_in_the_bits_of_those_that_run_one_after_another(tmp_path: Path) -> None:
    alone = []
    for seed in (1, 2):
        session = noisy(tmp_path / str(seed), seed)
        losses = [train_step(session, [make_batch(), make_batch()]) for _ in range(STEPS)]
        alone.append((losses, copy_weights(session)))
    noisy_session = noisy(tmp_path / "one", 1)
    first = train_step(noisy_session, [make_batch(), make_batch()])
    other = noisy(tmp_path / "other", 2)  # building it draws its weights and seeds the process's generators
    together: list[list[list[float]]] = [[first], []]
    for turn in range(STEPS):
        together[1].append(train_step(other, [make_batch(), make_batch()]))
        if turn < STEPS - 1:
            together[0].append(train_step(noisy_session, [make_batch(), make_batch()]))
    for session, losses, expected in zip((noisy_session, other), together, alone, strict=True):
        assert losses == expected[0]
        assert same(copy_weights(session), expected[1])


def test_what_else_draws_in_the_process_changes_nothing(tmp_path: Path) -> None:
    quiet, disturbed = noisy(tmp_path / "a", 1), noisy(tmp_path / "b", 1)
    expected = [train_step(quiet, [make_batch()]) for _ in range(STEPS)]
    losses = []
    for _ in range(STEPS):
        torch.rand(100)
        disturbed.generate([[1, 2]], Sampling(max_new_tokens=2))
        losses.append(train_step(disturbed, [make_batch()]))
    assert losses == expected


def test_the_generators_of_the_process_are_left_alone(tmp_path: Path) -> None:
    session, before = noisy(tmp_path, 1), torch.get_rng_state()
    train_step(session, [make_batch()])
    session.save("here")
    session.load("here")
    assert torch.equal(before, torch.get_rng_state())


def test_a_saved_session_continues_while_another_one_trains(tmp_path: Path) -> None:
    session = noisy(tmp_path / "a", 1)
    train_step(session, [make_batch()])
    session.save("here")
    expected = train_step(session, [make_batch()])
    again, other = noisy(tmp_path / "a", 1), noisy(tmp_path / "b", 2)
    again.load("here")
    train_step(other, [make_batch()])
    assert train_step(again, [make_batch()]) == expected
