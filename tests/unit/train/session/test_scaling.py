"""fp16 with its loss scale, on a CPU: gradients carry the scale until the step, and a state says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.train.session.engines import (
    accumulate,
    copy_gradients,
    copy_weights,
    make_batch,
    make_config,
    make_session,
    same,
    train_step,
)
from trainyard.spec.axes.devices import Precision
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.train.session.session import FIRST_SCALE, Session

OVERFLOW = 1e38
"""A factor for `backward` at which every gradient is infinite."""


def half_session(folder: Path, **hyper: Any) -> Session:
    config = make_config(warmup_ratio=0.0, schedule="cosine", **hyper)
    return make_session(folder, config, precision=Precision.FP16)


def overflow(session: Session) -> None:
    reply = session.backward(session.forward(make_batch()).forward_id, scale=OVERFLOW)
    assert reply.overflow


def finish(session: Session) -> list[Any]:
    """The second half of an accumulation, its step, and two more steps: everything that they give."""
    losses = [accumulate(session, make_batch())]
    stepped = session.step()
    session.zero_grad()
    for _ in range(2):
        losses += train_step(session, [make_batch(), make_batch()])
    return [losses, stepped.skipped, stepped.global_step, float(stepped.grad_norm), session.scaler.state_dict()]


def test_gradients_carry_the_first_scale_and_their_norm_does_not(tmp_path: Path) -> None:
    session = half_session(tmp_path)
    reply = session.backward(session.forward(make_batch()).forward_id)
    assert session.scaler.get_scale() == FIRST_SCALE == 1024
    norm = float(torch.nn.utils.get_total_norm(copy_gradients(session)))
    assert norm / 1024 == pytest.approx(reply.grad_norm)
    assert session.step(max_grad_norm=1e6).grad_norm == pytest.approx(reply.grad_norm)
    assert float(torch.nn.utils.get_total_norm(copy_gradients(session))) == pytest.approx(
        reply.grad_norm
    )  # unscaled now


def test_fp16_computes_what_fp32_does_but_for_rounding(tmp_path: Path) -> None:
    norms = []
    for precision in (Precision.FP32, Precision.FP16, Precision.BF16):
        session = make_session(tmp_path, precision=precision, dropout=0.0)
        forward = session.forward(make_batch())
        norms.append((float(forward.loss), session.backward(forward.forward_id).grad_norm))
    assert norms[1] == pytest.approx(norms[0], rel=2e-3)
    assert norms[2] == pytest.approx(norms[0], rel=2e-2)
    assert len(set(norms)) == 3


@pytest.mark.parametrize("optimizer", [Optimizer.ADAMW, Optimizer.MUON, Optimizer.ADAMW_8BIT, Optimizer.SGD])
def test_an_overflow_skips_the_step_and_halves_the_scale(optimizer: Optimizer, tmp_path: Path) -> None:
    session = half_session(tmp_path, optimizer=optimizer)
    train_step(session, [make_batch()])
    tensors, _ = session.snapshot().flat()
    before = {name: value.clone() for name, value in tensors.items() if not name.startswith("state/random")}
    rate = session.engine.rate.state_dict()
    overflow(session)
    skipped = session.step()
    assert (skipped.skipped, skipped.global_step, session.global_step, session.skipped) == (True, 1, 1, 1)
    assert session.scaler.get_scale() == FIRST_SCALE / 2
    assert session.engine.rate.state_dict() == rate
    session.zero_grad()
    after, _ = session.snapshot().flat()
    assert all(torch.equal(after[name], value) for name, value in before.items())
    accumulate(session, make_batch())
    again = session.step()
    assert (again.skipped, again.global_step, session.engine.rate.steps) == (False, 2, 2)
    assert again.learning_rate == skipped.learning_rate


def test_a_skipped_step_forgets_the_rate_of_its_own(tmp_path: Path) -> None:
    session = half_session(tmp_path)
    overflow(session)
    assert session.step(learning_rate=0.5).learning_rate == 0.5
    assert [group["lr"] for group in session.engine.optimizer.param_groups] == session.engine.rate.last == [1e-3, 1e-3]


@pytest.mark.parametrize("first", [lambda session: accumulate(session, make_batch()), overflow], ids=["finite", "inf"])
def test_saved_inside_an_accumulation_it_goes_on_to_the_same_bits(first: Any, tmp_path: Path) -> None:
    session = half_session(tmp_path)
    overflow(session)  # so that the scale is not the first one any more
    session.step()
    session.zero_grad()
    train_step(session, [make_batch()])
    first(session)
    saved = session.save("between")
    expected, weights = finish(session), copy_weights(session)

    other = half_session(tmp_path)
    torch.manual_seed(77)
    assert other.load("between")["sha256"] == saved["sha256"]
    assert other.scaler.get_scale() == FIRST_SCALE / 2
    assert json.dumps(finish(other)) == json.dumps(expected)  # as text, because NaN is not itself
    assert same(copy_weights(other), weights)


def test_a_state_says_whether_its_gradients_carry_the_scale(tmp_path: Path) -> None:
    session = half_session(tmp_path)
    accumulate(session, make_batch())
    session.save("carrying")
    session.step()
    session.save("done")
    flags = {}
    for name in ("carrying", "done"):
        values = json.loads((tmp_path / "saved" / name / "state.json").read_text())
        flags[name] = values["parts"]["scaler"]["deferred_unscale"]
    assert flags == {"carrying": True, "done": False}


def test_the_scale_grows_as_if_it_had_not_been_saved(tmp_path: Path) -> None:
    session = half_session(tmp_path)
    session.scaler.set_growth_interval(3)
    for _ in range(2):
        train_step(session, [make_batch()])
    session.save("before")
    other = half_session(tmp_path)
    other.load("before")
    train_step(other, [make_batch()])
    assert other.scaler.get_scale() == 2 * FIRST_SCALE
