"""Sampling and scoring: the same tokens as transformers, and log-probabilities of the distribution that was used."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel

from tests.unit.train.losses.stage_rows import PAD, TOKENIZER, make_model
from tests.unit.train.session.engines import make_batch, make_config, make_session, train_step
from trainyard.errors import InvalidInput
from trainyard.spec.axes.stages import Stage
from trainyard.train.contracts import Generated, Sampling, StopReason
from trainyard.train.methods.table import checkpoint_activations
from trainyard.train.model.sampling import nucleus, pad_rows, sample
from trainyard.train.session.session import Session

PROMPTS = [[40, 41, 42, 43, 44], [50, 51], [60, 61, 62]]
NEW = 12


@pytest.fixture
def session(tmp_path: Path) -> Session:
    """One that has learned a little, so that its distributions are not flat."""
    session = make_session(tmp_path, make_config(learning_rate=2e-2, schedule="constant"))
    for _ in range(5):
        train_step(session, [make_batch()])
    return session


def logprobs_given(session: Session, prompt: list[int], reply: Generated, temperature: float = 1.0) -> list[float]:
    """What the model gives to each token of a reply, by one plain pass over the unpadded row."""
    ids = torch.tensor([[*prompt, *reply.ids]])
    with torch.no_grad():
        logits_TV = session.engine.model.eval()(ids).logits[0, len(prompt) - 1 : -1] / temperature
    session.engine.model.train()
    found_TV = torch.log_softmax(logits_TV, dim=-1)
    return [float(found_TV[at, token]) for at, token in enumerate(reply.ids)]


def positional_model() -> Any:
    """GPT-2 adds its positions to the words, so a wrong one shows, which rotary positions would hide."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(TOKENIZER), n_embd=32, n_layer=2, n_head=2, n_positions=64))
    with torch.no_grad():
        model.transformer.wpe.weight.mul_(50)
    return model


@pytest.mark.parametrize("family", ["rotary", "absolute"])
def test_greedy_is_what_transformers_generates(family: str, session: Session) -> None:
    if family == "absolute":
        session.engine.model = positional_model()
    model = session.engine.model.eval()
    ids_BT, mask_BT = pad_rows(PROMPTS, "left", PAD, model.device)
    settings_ = GenerationConfig(
        do_sample=False, max_new_tokens=NEW, pad_token_id=PAD, eos_token_id=TOKENIZER.eos_token_id
    )
    expected = model.generate(ids_BT, attention_mask=mask_BT, generation_config=settings_)[:, ids_BT.shape[1] :]
    stop = (TOKENIZER.eos_token_id,)
    replies = session.generate(PROMPTS, Sampling(max_new_tokens=NEW, temperature=0, stop_ids=stop))
    for row, reply in zip(expected.tolist(), replies, strict=True):
        assert row[: len(reply.ids)] == reply.ids
        assert set(row[len(reply.ids) :]) <= {PAD}
        assert reply.text == TOKENIZER.decode(reply.ids, skip_special_tokens=True)
        assert reply.logprobs == [0.0] * len(reply.ids)


def test_prompts_do_not_influence_each_other(session: Session) -> None:
    greedy = Sampling(max_new_tokens=NEW, temperature=0)
    together = session.generate(PROMPTS, greedy)
    alone = [session.generate([prompt], greedy)[0] for prompt in PROMPTS]
    assert [reply.ids for reply in together] == [reply.ids for reply in alone]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
def test_logprobs_are_those_of_the_sampling_distribution_and_of_temperature_one(
    temperature: float, session: Session
) -> None:
    replies = session.generate(PROMPTS, Sampling(max_new_tokens=NEW, temperature=temperature, seed=3))
    for prompt, reply in zip(PROMPTS, replies, strict=True):
        assert reply.logprobs == pytest.approx(logprobs_given(session, prompt, reply, temperature), abs=1e-5)
        assert reply.logprobs_at_one == pytest.approx(logprobs_given(session, prompt, reply), abs=1e-5)


def test_top_p_samples_from_the_nucleus_and_says_its_probabilities(session: Session) -> None:
    replies = session.generate(PROMPTS, Sampling(max_new_tokens=NEW, top_p=0.5, seed=1))
    for prompt, reply in zip(PROMPTS, replies, strict=True):
        plain = logprobs_given(session, prompt, reply)
        assert reply.logprobs_at_one == pytest.approx(plain, abs=1e-5)
        gains = [logprob - all_ for logprob, all_ in zip(reply.logprobs, plain, strict=True)]
        assert all(-1e-5 <= gain <= math.log(2) + 1e-5 for gain in gains)  # the nucleus holds at least a half
        assert max(gains) > 0.05


@given(st.lists(st.floats(-8, 8, width=32), min_size=2, max_size=12), st.floats(0.01, 1.0))
@settings(deadline=None)
def test_the_nucleus_is_the_smallest_set_of_its_mass(logits: list[float], top_p: float) -> None:
    logits_BV = torch.tensor([logits], dtype=torch.float64)
    nucleus_V = torch.isfinite(nucleus(logits_BV, top_p))[0]
    shares = logits_BV.softmax(-1)[0]
    assert nucleus_V.any()
    assert float(shares[nucleus_V].sum()) >= min(top_p, 1.0) - 1e-9
    assert shares[nucleus_V].min() >= (shares[~nucleus_V].max() if (~nucleus_V).any() else 0)
    if int(nucleus_V.sum()) > 1:  # without its least likely token it would be too small
        assert float(shares[nucleus_V].sum() - shares[nucleus_V].min()) < top_p + 1e-9


def test_tokens_come_as_often_as_their_probabilities_say() -> None:
    model, prompts = make_model("causal"), [[40, 41]] * 2000
    with torch.no_grad():
        model.lm_head.weight[4:] = 0  # four tokens to tell apart, the others rare
        model.lm_head.weight.mul_(40)
        probabilities_V = model(torch.tensor([[40, 41]])).logits[0, -1].div(2.0).softmax(-1)
        counts = Counter(
            reply.ids[0] for reply in sample(model, TOKENIZER, prompts, Sampling(max_new_tokens=1, temperature=2.0))
        )
    for token in range(4):
        expected = float(probabilities_V[token])
        assert abs(counts[token] / 2000 - expected) < 4 * math.sqrt(expected * (1 - expected) / 2000) + 1e-4


def test_the_seed_alone_decides(session: Session) -> None:
    settings_ = Sampling(max_new_tokens=NEW, seed=11)
    first = session.generate(PROMPTS, settings_)
    torch.manual_seed(99)
    torch.rand(7)
    assert session.generate(PROMPTS, settings_) == first
    assert session.generate(PROMPTS, Sampling(max_new_tokens=NEW, seed=12)) != first


def test_an_end_token_ends_a_row_and_belongs_to_it(session: Session) -> None:
    free = session.generate(PROMPTS, Sampling(max_new_tokens=NEW, temperature=0, stop_ids=()))
    assert {reply.stop_reason for reply in free} == {StopReason.LENGTH}
    assert {len(reply.ids) for reply in free} == {NEW}
    stop = free[0].ids[2]
    ended = session.generate(PROMPTS, Sampling(max_new_tokens=NEW, temperature=0, stop_ids=(stop,)))
    for before, after in zip(free, ended, strict=True):
        end = before.ids.index(stop) + 1 if stop in before.ids else NEW
        assert after.ids == before.ids[:end]
        assert len(after.logprobs) == len(after.logprobs_at_one) == end
        assert after.stop_reason is (StopReason.END if stop in before.ids else StopReason.LENGTH)


def test_end_tokens_are_the_models_own(session: Session) -> None:
    greedy = Sampling(max_new_tokens=NEW, temperature=0)
    first = session.generate(PROMPTS, Sampling(max_new_tokens=NEW, temperature=0, stop_ids=()))[0].ids
    session.engine.model.generation_config.eos_token_id = [first[1], 9999]
    assert session.generate(PROMPTS[:1], greedy)[0].ids == first[: first.index(first[1]) + 1]


def test_checkpointed_activations_do_not_change_what_is_sampled(session: Session) -> None:
    settings_ = Sampling(max_new_tokens=NEW, temperature=0)
    before = session.generate(PROMPTS, settings_)
    checkpoint_activations(session.engine.model)
    assert session.generate(PROMPTS, settings_) == before


def test_logprobs_of_given_tokens_know_no_padding_and_no_dropout(session: Session) -> None:
    rows = [[40, 41, 42, 43], [50], [60, 61]]
    logprobs = session.logprobs(rows)
    assert [row[0] for row in logprobs] == [None, None, None]
    with torch.no_grad():
        for row, values in zip(rows, logprobs, strict=True):
            logits_TV = session.engine.model.eval()(torch.tensor([row])).logits[0].log_softmax(-1)
            expected = [float(logits_TV[at, token]) for at, token in enumerate(row[1:])]
            assert values[1:] == pytest.approx(expected, abs=1e-5)


def test_sampled_tokens_get_the_same_logprobs_when_they_are_scored(session: Session) -> None:
    (reply,) = session.generate(PROMPTS[:1], Sampling(max_new_tokens=NEW, seed=4))
    (scored,) = session.logprobs([[*PROMPTS[0], *reply.ids]])
    assert scored[len(PROMPTS[0]) :] == pytest.approx(reply.logprobs_at_one, abs=1e-5)


@pytest.mark.parametrize("prompts", [[], [[5], []]])
def test_an_empty_prompt_is_refused(prompts: list[list[int]], session: Session) -> None:
    with pytest.raises(InvalidInput, match="E-SAMPLING: A prompt has no tokens"):
        session.generate(prompts)
    with pytest.raises(InvalidInput, match="E-SAMPLING"):
        session.logprobs(prompts)


@pytest.mark.parametrize("wrong", [{"max_new_tokens": 0}, {"temperature": -1.0}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_settings_without_a_meaning_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput, match=r"E-SAMPLING: .*temperature >= 0, 0 < top_p <= 1 and top_k >= 1"):
        Sampling(**wrong)  # type: ignore[arg-type]


def test_a_reward_model_says_no_tokens(tmp_path: Path) -> None:
    session = make_session(tmp_path, make_config(Stage.REWARD))
    with pytest.raises(InvalidInput, match="E-STEP: A reward model gives a number to a row"):
        session.generate(PROMPTS)
    with pytest.raises(InvalidInput, match="E-STEP"):
        session.logprobs(PROMPTS)
    rewards = session.forward(make_batch(Stage.REWARD), outputs=["logits"], inline=True).outputs["logits"]
    assert rewards["shape"] == [8, 1]


def test_a_prompt_that_occurs_several_times_is_read_once_and_answered_as_often(session: Session) -> None:
    model = session.engine.model.eval()
    read: list[int] = []
    handle = model.register_forward_pre_hook(
        lambda _module, _args, inputs: read.append(inputs["input_ids"].shape[0]), with_kwargs=True
    )
    sampling = Sampling(max_new_tokens=4, temperature=0, stop_ids=())
    with torch.no_grad():
        together = sample(model, TOKENIZER, [PROMPTS[0], PROMPTS[1], PROMPTS[0], PROMPTS[0]], sampling)
        handle.remove()
        alone = [sample(model, TOKENIZER, [prompt], sampling)[0] for prompt in PROMPTS[:2]]
    assert read == [2, 4, 4, 4]
    assert [completion.ids for completion in together] == [alone[0].ids, alone[1].ids, alone[0].ids, alone[0].ids]
    assert together[2].logprobs_at_one == pytest.approx(alone[0].logprobs_at_one, abs=1e-5)


def test_rows_that_have_ended_leave_a_large_batch(session: Session) -> None:
    model = session.engine.model.eval()
    prompts = [[40 + at, 50 + at % 7] for at in range(40)]
    free = Sampling(max_new_tokens=6, temperature=0, stop_ids=())
    with torch.no_grad():
        expected = sample(model, TOKENIZER, prompts, free)
        stop = Counter(completion.ids[0] for completion in expected).most_common(1)[0][0]
        read: list[int] = []
        handle = model.register_forward_pre_hook(
            lambda _module, _args, inputs: read.append(inputs["input_ids"].shape[0]), with_kwargs=True
        )
        completions = sample(model, TOKENIZER, prompts, Sampling(max_new_tokens=6, temperature=0, stop_ids=(stop,)))
        handle.remove()
    assert read[0] == 40
    assert read == sorted(read, reverse=True)
    cut = [
        completion.ids[: completion.ids.index(stop) + 1] if stop in completion.ids else completion.ids
        for completion in expected
    ]
    assert [completion.ids for completion in completions] == cut
    if sum(completion.ids[0] == stop for completion in expected) >= 10:
        assert read[1] < 40
