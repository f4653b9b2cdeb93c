"""Latent techniques on a card: the first loss of a CPU, losses that fall, and selected tokens that are gathered."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import latent
from benchmarks.gpu.dsa_decode import setting_of
from benchmarks.gpu.engine import config, train_steps
from benchmarks.gpu.latent_rows import FIRST_EDGE, GRAPH_POSITIONS, NODES, draw_graph, graph_row, product_row
from benchmarks.gpu.models import chat_rows
from benchmarks.gpu.platform import Platform
from benchmarks.latent.dsa_decode import decode
from trainyard.backends.native.assembly import NativeRun
from trainyard.data.rows import Message, SftRow
from trainyard.train.latent.dsa.indexer import best_places, select_tokens

pytestmark = pytest.mark.gpu
Build = Callable[..., NativeRun]
STEPS, CLOSE = 8, 1e-3
TECHNIQUES: dict[str, dict[str, Any]] = {
    "pause": {"type": "pause", "count": 2},
    "coconut": {"type": "coconut", "max_stage": 1, "epochs_per_stage": 8, "first_stage": 1},
    "hidden_cot": {"type": "hidden_cot", "whole_epochs": 8},
    "codi": {"type": "codi", "thoughts": 2},
    "tokens": {"type": "dsa", "granularity": {"type": "token", "top_k": 8, "warmup": 0}},
    "heads": {"type": "dsa", "granularity": {"type": "head", "active": 2}},
    "quiet_star": {"type": "quiet_star", "thought_tokens": 2, "ahead": 2, "embedding_scale": 1.0},
}


def rows_with_steps() -> list[SftRow]:
    """Chat rows whose answers have a reasoning of two steps."""
    new_rows = []
    for row in chat_rows(8, 48, mean=30):
        question, answer = row.messages
        more = '{"reasoning_content":"w1 w2 w3\\nw4 w5"}'
        new_rows.append(SftRow([question, Message("assistant", answer.content, None, more)]))
    return new_rows


def build_run(build: Build, platform: Platform, name: str, **options: Any) -> NativeRun:
    settings = config(platform, "sft", "full", precision="fp32", batch_size=8, max_length=96, max_steps=STEPS)
    hyper = {**settings["hyperparameters"], "learning_rate": 2e-3}
    stage = {"type": "sft", "latent": TECHNIQUES[name]}
    return build({**settings, "stage": stage, "hyperparameters": hyper}, rows=rows_with_steps(), **options)


@pytest.mark.parametrize("name", [name for name in TECHNIQUES if name != "quiet_star"])
def test_the_first_loss_is_that_of_a_cpu(name: str, card: Platform, build: Build) -> None:
    """Quiet-STaR draws its thoughts, from another generator on a card."""
    there, here = (train_steps(build_run(build, card, name, device=device))[0] for device in ("cuda", "cpu"))
    assert there == pytest.approx(here, rel=CLOSE)


@pytest.mark.parametrize("name", list(TECHNIQUES))
def test_each_technique_lowers_its_loss(name: str, platform: Platform, build: Build) -> None:
    losses = train_steps(build_run(build, platform, name))
    assert losses[-1] < losses[0]


def test_gathered_attention_is_the_masked_one(platform: Platform) -> None:
    decoding = decode(setting_of(platform, rows=2), 256 if platform.rehearsal else 8192)
    assert decoding.difference <= (1e-6 if platform.rehearsal else 1e-2)


@pytest.mark.parametrize(
    ("rows", "length", "k"), [(3, 5000, 64), (2, 8192, 2048), (8, 65_536, 2048), (1, 131_072, 100)]
)
@pytest.mark.parametrize("values", [3, 1000, 10**7])
def test_best_places_are_the_selected_tokens(rows: int, length: int, k: int, values: int, platform: Platform) -> None:
    """Of equal scores the earlier ones, which torch's `topk` does not promise."""
    if platform.rehearsal:
        pytest.skip("topk of a CPU takes any of equal scores")
    scores = torch.randint(0, values, (rows, 1, length), device=platform.device).float()
    visible = torch.rand(rows, 1, length, device=platform.device) < 0.9
    selected = select_tokens(scores, visible, k)
    positions, filled = best_places(scores, visible, k)
    assert bool(filled.all())
    assert torch.equal(torch.zeros_like(selected).scatter_(-1, positions, True), selected)


# The courses that are too long for one run


def small_courses(platform: Platform) -> list[latent.Course]:
    return [latent.rehearsed(course) for course in [*latent.graph_courses(), *latent.product_courses(2)]]


def test_a_course_in_pieces_ends_like_one_without_a_break(
    platform: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clocks: one never stops the training, the other one stops it after each step."""
    course = small_courses(platform)[0]
    whole = latent.Training(course, platform, tmp_path / "whole")
    whole.continue_until(float("inf"))
    pieces, rounds = latent.Training(course, platform, tmp_path / "pieces"), 0
    ticks = iter(range(10_000))
    monkeypatch.setattr(latent.time, "monotonic", lambda: float(next(ticks)))
    while not pieces.done:
        pieces = latent.Training(course, platform, tmp_path / "pieces")
        pieces.continue_until(latent.time.monotonic() + 4)
        rounds += 1
    assert rounds > course.epochs
    assert pieces.accuracy == whole.accuracy
    close = {"rtol": 0, "atol": 0.0 if platform.rehearsal else 1e-4}
    for whole_value, pieces_value in zip(whole.model.parameters(), pieces.model.parameters(), strict=True):
        torch.testing.assert_close(whole_value, pieces_value, **close)


def test_every_course_is_trained_and_evaluated(platform: Platform, tmp_path: Path) -> None:
    for course in small_courses(platform):
        training = latent.Training(course, platform, tmp_path)
        training.continue_until(float("inf"))
        assert 0 <= training.accuracy <= 1
        assert len(training.losses) == course.epochs


def test_rows_of_graphs_and_products_are_what_they_say() -> None:
    dice = random.Random(0)
    for _ in range(20):
        row = graph_row(dice)
        *table, _, first, second, root = row["prompt_ids"]
        edges = {divmod(token - FIRST_EDGE, NODES) for token in table}
        steps = [row["step_ids"][at : at + 5] for at in range(0, len(row["step_ids"]), 5)]
        path = [root, *(step[4] for step in steps)]
        assert [(step[2], step[0]) for step in steps] == list(itertools.pairwise(path))
        assert all((start - 1, end - 1) in edges for start, end in itertools.pairwise(path))
        assert row["answer_ids"][1] == path[-1]
        assert path[-1] in (first, second)
        assert len(row["prompt_ids"]) + len(row["step_ids"]) + latent.LONGEST + 5 <= GRAPH_POSITIONS
    graph = draw_graph(dice)
    assert not set(graph.paths) & set(graph.others)
    assert product_row(12, 34, 2)["answer_ids"][1:-1] == [1 + int(digit) for digit in "8040"]
