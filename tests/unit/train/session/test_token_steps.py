"""Rows with explicit targets next to the native SFT loop, and adapters that take turns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.backends.session_host import make_record
from tests.unit.backends.session_in_process import open_here
from trainyard.backends.sessions.records import write_record
from trainyard.settings import load_settings
from trainyard.train.session.session import Session
from trainyard.train.session.slots import AdapterSlots
from trainyard.train.session.token_steps import TokenRow, run_token_step

STEPS, RATE = 20, 3e-3
ROWS = [[7 + start + step for step in range(length)] for start, length in ((0, 12), (5, 7), (30, 9), (60, 12))]


@pytest.fixture
def session(home: Path, tiny_model: Path) -> Session:
    record = make_record(tiny_model, method={"type": "lora", "rank": 8, "dropout": 0.0})
    write_record(load_settings(home=home, threads=1), record)
    return open_here(home, record.id, home / "work")


def rows_of_tokens() -> list[TokenRow]:
    return [
        TokenRow(torch.tensor(row[:-1]), torch.tensor(row[1:]), {"weights": torch.ones(len(row) - 1)}) for row in ROWS
    ]


def native_batch(session: Session) -> Any:
    examples = [{"input_ids": row, "labels": row} for row in ROWS]
    return session.engine.stage.collate(examples, session.pad_id)


def move(session: Session) -> None:
    session.step(learning_rate=RATE, max_grad_norm=float("inf"), options={"betas": (0.9, 0.95), "eps": 1e-12})
    session.zero_grad()


def test_twenty_steps_have_the_losses_of_the_native_loop(session: Session) -> None:
    slots, tokens = AdapterSlots(session), sum(len(row) - 1 for row in ROWS)
    slots.open("native", seed=3)
    native = []
    for _ in range(STEPS):
        forward = session.forward(native_batch(session), normalizer=1.0)
        session.backward(forward.forward_id, measure=False)
        native.append(float(forward.loss) / tokens)
        move(session)
    slots.open("wire", seed=3)
    wire = []
    for _ in range(STEPS):
        wire.append(run_token_step(session, rows_of_tokens(), "cross_entropy", {}, backward=True).loss / tokens)
        move(session)
    assert wire == pytest.approx(native, abs=1e-5)
    assert wire[-1] < wire[0] - 0.5


def test_adapters_in_turns_come_to_the_bits_of_one_alone(session: Session) -> None:
    slots = AdapterSlots(session)

    def train(name: str) -> float:
        slots.enter(name)
        loss = run_token_step(session, rows_of_tokens(), "cross_entropy", {}, backward=True).loss
        slots.enter("alone")  # between a backward and its step, too
        slots.enter(name)
        move(session)
        return loss

    slots.open("alone", seed=1)
    alone = [train("alone") for _ in range(3)]
    slots.open("first", seed=1)
    slots.open("second", seed=2)
    turns = [(train("first"), train("second")) for _ in range(3)]
    assert [first for first, _ in turns] == alone
    assert [second for _, second in turns] != alone


def test_targets_with_several_candidates_are_scored_one_by_one(session: Session) -> None:
    row = ROWS[0]
    targets = torch.tensor([[token, token + 1] for token in row[1:]])
    weights = torch.tensor([[0.25, 0.75]] * (len(row) - 1))
    several = run_token_step(
        session, [TokenRow(torch.tensor(row[:-1]), targets, {"weights": weights})], "cross_entropy", {}, backward=False
    )
    one = run_token_step(session, rows_of_tokens()[:1], "cross_entropy", {}, backward=False)
    assert several.logprobs[0][:, 0].tolist() == pytest.approx(one.logprobs[0].tolist(), abs=1e-5)
    assert several.loss == pytest.approx(float(-(several.logprobs[0] * weights).sum()), rel=1e-5)
