"""The loops of `examples/` that drive a session teach what they say, on a session of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from examples import rl_session, sft_session
from tests.session_surface import make_surface
from tests.unit.backends.session_host import ROWS, HostedSession, host_session, make_record
from trainyard.settings import load_settings

pytestmark = pytest.mark.slow


@pytest.fixture
def session(tmp_path: Path, tiny_model: Path) -> Iterator[HostedSession]:
    settings = load_settings(home=tmp_path / "home", threads=1)
    record = make_record(tiny_model, method="full", hyperparameters={"learning_rate": 3e-3})
    with host_session(settings, record) as session:
        yield session


def test_the_sft_loop_learns_its_rows(session: HostedSession) -> None:
    surface: Any = make_surface(session.settings)
    losses = sft_session.train(surface, session.record.id, ROWS, steps=15)
    assert losses[-1] < 0.6 * losses[0]
    saved = surface.sessions.save(session=session.record.id, name="adapter", kind="result")
    assert (Path(saved.path) / "model.safetensors").is_file()


def test_the_rl_loop_earns_more_reward(session: HostedSession) -> None:
    means = rl_session.train(make_surface(session.settings), session.record.id)
    assert len(means) == rl_session.STEPS
    assert fmean(means[-5:]) > 3 * fmean(means[:5])


def test_an_advantage_is_over_the_same_prompt_alone() -> None:
    class Drawn:
        def __init__(self, prompt: int) -> None:
            self.prompt = prompt

    advantages = rl_session.advantages([Drawn(0), Drawn(0), Drawn(1), Drawn(1)], [1.0, 0.0, 0.5, 0.5])
    assert advantages == [0.5, -0.5, 0.0, 0.0]
