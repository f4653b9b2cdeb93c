"""LISA: which blocks are trained at a step, what happens to optimizer states, and that a restored session continues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.train.session.engines import copy_weights, make_batch, make_config, make_session, same, train_step
from trainyard.spec.training import TrainerConfig
from trainyard.train.methods.full import RandomBlocks
from trainyard.train.session.session import Session

INTERVAL = 2


def rotating(folder: Path, **hyperparameters: Any) -> tuple[Session, RandomBlocks]:
    """A session on two blocks, one of which is trained at a time."""
    session = make_session(folder, make_config(**hyperparameters))
    blocks = RandomBlocks(session.engine.model.model.layers, 1, INTERVAL, seed=4)
    session.engine.rotation = blocks
    return session, blocks


def copy_block(session: Session, index: int) -> list[torch.Tensor]:
    return [value.detach().clone() for value in session.engine.model.model.layers[index].parameters()]


def test_only_the_drawn_blocks_and_what_is_no_block_moves(tmp_path: Path) -> None:
    session, blocks = rotating(tmp_path, warmup_ratio=0.0)
    for step in range(6):
        (block,) = blocks.sample_blocks(step)
        before = [copy_block(session, index) for index in range(2)]
        embeddings = session.engine.model.get_input_embeddings().weight.detach().clone()
        train_step(session, [make_batch(), make_batch()])
        assert [same(before[index], copy_block(session, index)) for index in range(2)] == [block != 0, block != 1]
        assert not torch.equal(embeddings, session.engine.model.get_input_embeddings().weight)
    assert {blocks.sample_blocks(step) for step in range(6)} == {frozenset({0}), frozenset({1})}


def test_a_choice_lasts_for_its_interval_and_follows_from_seed_and_step() -> None:
    layers = [torch.nn.Linear(2, 2) for _ in range(8)]
    blocks, again, other = (RandomBlocks(layers, 3, 5, seed) for seed in (1, 1, 2))
    choices = [blocks.sample_blocks(step) for step in range(50)]
    assert all(len(choice) == 3 for choice in choices)
    assert all(choices[step] == choices[step - step % 5] for step in range(50))
    assert choices == [again.sample_blocks(step) for step in range(50)]
    assert choices != [other.sample_blocks(step) for step in range(50)]


def test_states_of_a_block_that_goes_out_are_dropped(tmp_path: Path) -> None:
    session, blocks = rotating(tmp_path)
    for step in range(6):
        train_step(session, [make_batch()])
        layers, (block_index,) = session.engine.model.model.layers, blocks.sample_blocks(step)
        with_state = [
            index for index in range(2) if any(p in session.engine.optimizer.state for p in layers[index].parameters())
        ]
        assert with_state == [block_index]
        counts = {int(session.engine.optimizer.state[p]["step"]) for p in layers[block_index].parameters()}
        since = next(
            back for back in range(step + 2) if back > step or blocks.sample_blocks(step - back) != {block_index}
        )
        assert counts == {since}  # begun again when it was drawn


@pytest.mark.parametrize("after", range(1, 6))
def test_a_restored_session_goes_on_to_the_same_bits(after: int, tmp_path: Path) -> None:
    session, _ = rotating(tmp_path)
    losses = []
    for step in range(6):
        if step == after:
            first = session.forward(make_batch())  # inside an accumulation
            session.backward(first.forward_id)
            session.save("here")
            forward = session.forward(make_batch())
            session.backward(forward.forward_id)
            session.step()
            session.zero_grad()
            losses.append([float(forward.loss)])
        else:
            losses.append(train_step(session, [make_batch(), make_batch()]))
    again, _ = rotating(tmp_path)
    again.load("here")
    forward = again.forward(make_batch())
    again.backward(forward.forward_id)
    again.step()
    again.zero_grad()
    assert [float(forward.loss)] == losses[after]
    for step in range(after + 1, 6):
        assert train_step(again, [make_batch(), make_batch()]) == losses[step]
    assert same(copy_weights(again), copy_weights(session))


def test_an_interval_is_not_written_where_there_is_none() -> None:
    config = TrainerConfig.model_validate({"method": "freeze"})
    assert config.method.model_dump(mode="json") == {"type": "freeze", "blocks": 2, "head": False}
