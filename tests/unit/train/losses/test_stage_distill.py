"""Distillation: its divergences, what it draws, and what it learns."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from benchmarks.distill import compare
from tests.conftest import REPOSITORY
from tests.unit.train.losses.stage_rows import PAD, TOKENIZER, conversations, make_model, settings
from tests.unit.train.session.engines import encode_examples, make_config, make_session
from trainyard.errors import InvalidInput, Unavailable
from trainyard.spec.axes.stages import DistillSettings, Stage
from trainyard.testing.vllm_server import vllm_server
from trainyard.train.contracts import IGNORED, Generated, Head, Sampling, StopReason
from trainyard.train.losses import distill, sft
from trainyard.train.losses.served_teacher import ServedTeacher
from trainyard.train.losses.table import STAGES
from trainyard.train.methods.loading import require_same_vocabulary
from trainyard.train.rows.batching import pad

GOLDEN_LOSSES = REPOSITORY / "tests" / "golden" / "distill.txt"
P_V, Q_V = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([[0.25, 0.25, 0.5]])
"""Teacher and student over three tokens: KL(p || q) = KL(q || p) = 0.25 ln 2."""


def with_settings(**fields: Any) -> Any:
    return settings(Stage.DISTILL.settings(teacher="teacher", **fields))


@pytest.mark.parametrize(
    ("beta", "expected"),
    [
        (0.0, 0.25 * math.log(2)),
        (1.0, 0.25 * math.log(2)),
        # m = (3/8, 1/4, 3/8), so each side is 1/2 ln(4/3) + 1/4 ln(2/3)
        (0.5, 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3)),
    ],
)
def test_divergences_are_those_worked_out_by_hand(beta: float, expected: float) -> None:
    divergence = distill.divergence(Q_V.log(), P_V.log(), beta=beta)
    assert divergence.tolist() == pytest.approx([expected], abs=1e-7)


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
def test_gradients_are_those_of_finite_differences(beta: float) -> None:
    torch.manual_seed(0)
    student, teacher = (torch.randn(3, 7, dtype=torch.float64) for _ in range(2))
    distill_settings = DistillSettings(type=Stage.DISTILL, teacher="t", beta=beta, temperature=1.7)
    assert torch.autograd.gradcheck(
        lambda logits: distill.divergence_by_chunk(logits, teacher, distill_settings),
        (student.requires_grad_(),),
        atol=1e-6,
    )


def test_chunks_change_nothing() -> None:
    torch.manual_seed(0)
    student, teacher, stage = torch.randn(9, 11), torch.randn(9, 11), with_settings().stage
    results = []
    for size in (1 << 25, 22):
        logits = student.clone().requires_grad_()
        value = distill.divergence_by_chunk(logits, teacher, stage, chunk_logits=size)
        value.sum().backward()
        results.append((value.detach(), logits.grad))
    torch.testing.assert_close(results[0], results[1])


def test_tokens_that_only_one_output_layer_has_are_left_out() -> None:
    stage = with_settings(beta=0.0).stage
    wide = torch.cat([P_V.log(), torch.full((1, 2), 3.0)], dim=1)
    assert distill.divergence_by_chunk(Q_V.log(), wide, stage).tolist() == pytest.approx([0.25 * math.log(2)], abs=1e-6)


def test_a_student_that_is_its_teacher_has_no_loss_and_no_gradient() -> None:
    config, stage = with_settings(), STAGES[Stage.DISTILL]
    batch = stage.collate(stage.encode(conversations(), TOKENIZER, config)[0], PAD)
    model = make_model("causal")
    scores = stage.score(model, batch, Head.FULL)
    with torch.no_grad():
        teacher = stage.score(model, batch, Head.FULL)
    total, metrics = stage.loss(batch, scores, teacher, config)
    total.backward()
    assert total.item() == pytest.approx(0, abs=1e-4)
    assert max(value.grad.abs().max().item() for value in model.parameters() if value.grad is not None) < 1e-5
    assert metrics["teacher_agreement"].item() == stage.units(batch)


# A teacher behind a server


def make_served_teacher(model: Any, top_k: int, url: str = "http://teacher/v1", **options: Any) -> Any:
    return ServedTeacher(url, "teacher", top_k, TOKENIZER, **options)


def logprobs_by(model: Any) -> Any:
    def logprobs(ids: list[int]) -> list[list[float]]:
        with torch.no_grad():
            logprobs: list[list[float]] = model(torch.tensor([ids])).logits[0].double().log_softmax(-1).tolist()
        return logprobs

    return logprobs


@pytest.fixture
def pair() -> tuple[Any, Any]:
    torch.manual_seed(1)
    student = make_model("causal")
    teacher = make_model("causal")
    with torch.no_grad():
        for value in teacher.parameters():
            value.add_(torch.randn_like(value) * 0.05)
    return student, teacher


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_a_served_teacher_is_the_local_one_where_all_tokens_are_asked_for(beta: float, pair: tuple[Any, Any]) -> None:
    (student, teacher), stage = pair, STAGES[Stage.DISTILL]
    config = with_settings(beta=beta, label_weight=0.3)
    batch = stage.collate(stage.encode(conversations(), TOKENIZER, config)[0], PAD)
    with torch.no_grad():
        local = stage.score(teacher, batch, Head.FULL)
    vocabulary = local["logits_NV"].shape[1]
    with vllm_server("teacher") as server:
        server.logprobs, server.max_logprobs = logprobs_by(teacher), vocabulary
        served_scores = stage.score(make_served_teacher(teacher, vocabulary, f"{server.url}/v1"), batch, Head.FULL)
    results = []
    for reference in (local, served_scores):
        student.zero_grad()
        total, metrics = stage.loss(batch, stage.score(student, batch, Head.FULL), reference, config)
        total.backward()
        gradients = torch.cat([value.grad.flatten() for value in student.parameters() if value.grad is not None])
        results.append((total.detach(), gradients, metrics["teacher_agreement"]))
    assert results[0][0] > 1e-2
    torch.testing.assert_close(results[0][:2], results[1][:2], rtol=1e-4, atol=1e-6)
    assert results[0][2] == results[1][2]


def test_few_tokens_are_a_lower_bound_that_rises_with_their_number(pair: tuple[Any, Any]) -> None:
    (student, teacher), stage, config = pair, STAGES[Stage.DISTILL], with_settings(beta=0.0)
    batch = stage.collate(stage.encode(conversations(), TOKENIZER, config)[0], PAD)
    with torch.no_grad():
        scores, local = (stage.score(model, batch, Head.FULL) for model in (student, teacher))
        whole = stage.loss(batch, scores, local, config)[0].item()
    losses = []
    with vllm_server("teacher") as server:
        server.logprobs = logprobs_by(teacher)
        for top_k in (1, 5, 20):
            reference = stage.score(make_served_teacher(teacher, top_k, f"{server.url}/v1"), batch, Head.FULL)
            losses.append(stage.loss(batch, scores, reference, config)[0].item())
        assert losses == sorted(losses)
        assert 0 < losses[0] < losses[-1] < whole
        with pytest.raises(Unavailable, match=r"E-SERVER-UNREACHABLE.*max allowed: 20.*--max-logprobs 21"):
            make_served_teacher(teacher, 21, f"{server.url}/v1").scores(batch)


@pytest.mark.filterwarnings("ignore")  # of the library's experimental modules
def test_the_bucket_of_all_others_is_the_one_of_trl() -> None:
    add_tail_bucket = import_module("trl.experimental.server_distillation.server_distillation_trainer")._add_tail_bucket
    torch.manual_seed(0)
    log_p = torch.randn(4, 9).log_softmax(-1)[:, :3]
    torch.testing.assert_close(
        distill.with_rest(log_p), add_tail_bucket(log_p, torch.ones_like(log_p, dtype=torch.bool))[0]
    )


def answering(choices: Any, status: int = 200) -> httpx.MockTransport:
    return httpx.MockTransport(lambda _request: httpx.Response(status, json={"choices": choices}))


@pytest.mark.parametrize(
    ("transport", "error"),
    [
        (answering([{"index": 0, "text": ""}]), r"E-SERVER-REFUSED: .*does not answer `prompt_logprobs`"),
        (answering([], 503), r"E-SERVER-UNREACHABLE: .*It answered 503.*resume"),
    ],
)
def test_a_server_that_cannot_teach_says_so(transport: httpx.MockTransport, error: str) -> None:
    batch = pad([{"input_ids": [5, 6, 7], "labels": [IGNORED, 6, 7]}], PAD)
    with pytest.raises(Unavailable, match=error):
        make_served_teacher(None, 1, transport=transport).scores(batch)


def test_other_words_for_the_same_ids_are_another_vocabulary() -> None:
    ids = TOKENIZER("chain of nodes", add_special_tokens=False)["input_ids"]
    batch = pad([{"input_ids": ids, "labels": [IGNORED, *ids[1:]]}], PAD)

    def answer_with(decode: Callable[[int], str]) -> Any:
        prompt_logprobs = [
            {str(token): {"logprob": -1.0, "rank": 1, "decoded_token": decode(token)}} for token in ids[1:]
        ]
        return answering([{"index": 0, "prompt_logprobs": [None, *prompt_logprobs]}])

    scores = make_served_teacher(None, 1, transport=answer_with(lambda token: TOKENIZER.decode([token]))).scores(batch)
    assert scores["teacher_ids_NK"][:, 0].tolist() == ids[1:]
    with pytest.raises(InvalidInput, match=r"E-MODEL-INVALID: Teacher and student do not have the same vocabulary"):
        make_served_teacher(None, 1, transport=answer_with(lambda token: "other")).scores(batch)


@pytest.mark.parametrize(
    "fields",
    [
        {"teacher": "t", "endpoint": "e"},
        {"endpoint": "e", "temperature": 2.0},
        {"endpoint": "e", "seq_kd": True},
        {"teacher": "t", "top_k": 5},
    ],
)
def test_settings_that_a_server_cannot_follow_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"server|not both|top_k"):
        DistillSettings(type=Stage.DISTILL, **fields)
    assert "top_k" not in DistillSettings(type=Stage.DISTILL, teacher="t").model_dump()


def list_losses(config: Any, student: Any, ask: Callable[[Any], Any]) -> list[float]:
    """The loss of each of five steps on the same rows, in nats a token."""
    stage = STAGES[Stage.DISTILL]
    batch = stage.collate(stage.encode(conversations(), TOKENIZER, config)[0], PAD)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        total, _ = stage.loss(batch, stage.score(student, batch, Head.FULL), ask(batch), config)
        mean = total / stage.units(batch)
        mean.backward()
        optimizer.step()
        losses.append(mean.item())
    return losses


def test_losses_of_five_steps_are_the_known_ones(pair: tuple[Any, Any]) -> None:
    """`GOLDEN=write` writes the file again, for a person to read."""
    (first, teacher), lines = pair, []

    def local(batch: Any) -> Any:
        with torch.no_grad():
            return STAGES[Stage.DISTILL].score(teacher, batch, Head.FULL)

    with vllm_server("teacher") as server:
        server.logprobs = logprobs_by(teacher)
        remote = make_served_teacher(teacher, 20, f"{server.url}/v1")
        for name, ask in (("loaded", local), ("served top 20", remote.scores)):
            for beta in (0.0, 0.5, 1.0):
                config = with_settings(beta=beta, label_weight=0.1)
                losses = list_losses(config, copy.deepcopy(first), ask)
                assert losses[-1] < losses[0]
                lines.append(f"{name}, beta {beta}: {' '.join(f'{loss:.5f}' for loss in losses)}")
    text = "\n".join(lines) + "\n"
    if os.environ.get("GOLDEN") == "write":
        GOLDEN_LOSSES.write_text(text, encoding="utf-8")
    assert text == GOLDEN_LOSSES.read_text(encoding="utf-8")


# What is drawn


class Scripted:
    """Writes the same two tokens for every prompt, and remembers who was asked."""

    def __init__(self, context: int | None = None) -> None:
        self.context = context
        self.requests: list[tuple[str, int, Sampling]] = []

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling | None = None) -> list[Generated]:
        return self.write("student", [7, 8], prompts, sampling)

    def generate_by_reference(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        return self.write("teacher", [9], prompts, sampling)

    def write(
        self, writer_name: str, ids: list[int], prompts: Sequence[Sequence[int]], sampling: Sampling | None
    ) -> list[Generated]:
        assert sampling is not None
        self.requests.append((writer_name, len(prompts), sampling))
        return [Generated(ids, "", [], [], StopReason.END) for _ in prompts]


def draw_completions(config: Any, writer: Scripted, position: str = "0:0:0", count: int = 8) -> tuple[Any, Any]:
    stage = STAGES[Stage.DISTILL]
    batch = stage.collate(stage.encode(conversations(count), TOKENIZER, config)[0], PAD)
    return batch, distill.draw(writer, batch, config, PAD, position)


def test_nothing_is_drawn_without_a_share() -> None:
    writer = Scripted()
    before, after = draw_completions(with_settings(lmbda=0.0), writer)
    assert after is before
    assert not writer.requests


def test_the_student_writes_every_row_where_the_share_is_one() -> None:
    writer = Scripted()
    before, after = draw_completions(
        with_settings(lmbda=1.0, max_completion_length=5, sampling_temperature=0.7), writer
    )
    ((writer_name, rows, sampling),) = writer.requests
    assert (writer_name, rows, sampling.max_new_tokens, sampling.temperature) == ("student", 8, 5, 0.7)
    assert after[distill.DRAWN].all()
    assert sft.units(after) == 16
    for row, old in zip(distill.unpad_rows(after), distill.unpad_rows(before), strict=True):
        prompt = distill.cut_prompt(old)
        assert row["input_ids"] == [*prompt, 7, 8]
        assert row["labels"] == [IGNORED] * len(prompt) + [7, 8]


def test_the_share_is_kept_and_the_teacher_writes_the_rest() -> None:
    writer = Scripted()
    _, after = draw_completions(with_settings(lmbda=0.5, seq_kd=True), writer, count=200)
    by_student = int(after[distill.DRAWN].sum())
    assert 70 < by_student < 130
    assert [(writer_name, rows) for writer_name, rows, _ in writer.requests] == [
        ("student", by_student),
        ("teacher", 200 - by_student),
    ]


def test_the_place_in_the_run_decides_what_is_drawn() -> None:
    config = with_settings(lmbda=0.5)
    first, again, later = (
        draw_completions(config, Scripted(), position)[1] for position in ("0:3:0", "0:3:0", "0:3:1")
    )
    assert torch.equal(first[distill.DRAWN], again[distill.DRAWN])
    assert not torch.equal(first[distill.DRAWN], later[distill.DRAWN])


def test_a_prompt_that_fills_the_context_keeps_its_answer() -> None:
    config = with_settings(lmbda=1.0)
    lengths = [
        len(distill.cut_prompt(row))
        for row in distill.unpad_rows(draw_completions(with_settings(lmbda=0.0), Scripted())[0])
    ]
    context = min(lengths) + 1
    assert max(lengths) > context
    writer = Scripted(context)
    before, after = draw_completions(config, writer)
    assert after[distill.DRAWN].tolist() == [length < context for length in lengths]
    assert writer.requests[0][2].max_new_tokens == 1
    full_rows = [at for at, length in enumerate(lengths) if length >= context]
    assert [distill.unpad_rows(after)[at] for at in full_rows] == [distill.unpad_rows(before)[at] for at in full_rows]


def test_labels_count_for_rows_that_the_student_did_not_write() -> None:
    config, stage = with_settings(label_weight=2.0), STAGES[Stage.DISTILL]
    batch = stage.collate(stage.encode(conversations(2), TOKENIZER, config)[0], PAD)
    model = make_model("causal")
    scores = {"logits_NV": stage.score(model, batch, Head.FULL)["logits_NV"].detach()}
    logprobs = STAGES[Stage.SFT].score(model, batch, Head.FULL)["logprobs_N"].detach()
    first = int((batch["labels"][0, 1:] != IGNORED).sum())
    marked = {**batch, distill.DRAWN: torch.tensor([True, False])}
    total, metrics = stage.loss(marked, scores, scores, config)
    assert metrics["label_loss"].item() == pytest.approx(-logprobs[first:].sum().item(), rel=1e-5)
    assert total.item() == pytest.approx(2 * metrics["label_loss"].item(), rel=1e-4)
    assert metrics["drawn"].item() == first


def test_another_vocabulary_is_refused() -> None:
    require_same_vocabulary({"a": 0, "b": 1}, {"b": 1, "a": 0})
    with pytest.raises(InvalidInput, match=r"E-MODEL-INVALID: .*2 tokens differ, such as 'b'"):
        require_same_vocabulary({"a": 0, "b": 1}, {"a": 0, "b": 2, "c": 1})


# In a session


def test_a_session_draws_the_same_again_and_training_draws_the_same_with_it(tmp_path: Path) -> None:
    config = make_config(Stage.DISTILL.settings(teacher="t", lmbda=1.0, max_completion_length=6))
    session = make_session(tmp_path, config)
    assert session.context == 256
    batch = STAGES[Stage.DISTILL].collate(encode_examples(config, 4), PAD)
    before = torch.get_rng_state()
    first, again = (distill.draw(session, batch, config, PAD, "0:0:0") for _ in range(2))
    other = distill.draw(session, batch, config, PAD, "0:0:1")
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(first["input_ids"], again["input_ids"])
    assert not torch.equal(first["input_ids"], other["input_ids"])
    taught = session.generate_by_reference([[5, 6, 7]], Sampling(max_new_tokens=3))
    assert taught == session.generate([[5, 6, 7]], Sampling(max_new_tokens=3))


@pytest.mark.slow
def test_the_student_comes_nearer_to_its_teacher_than_by_imitation_with_the_same_budget() -> None:
    """GKD against SFT: the same first weights, rows, order and steps; KL(teacher || student) in nats per token."""
    results = compare(seed=0, steps=150)
    for where in ("held_out", "own_text"):
        assert results["gkd"][where] < 0.8 * results["sft"][where] < results["untrained"][where], results
