"""Thoughts at all positions at once: equal to one by one, no look at later tokens, and an exact loss and gradient."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from trainyard.train.contracts import IGNORED, Head
from trainyard.train.latent.quiet_star import compute_gain, policy_loss, quiet_loss, quiet_scores, talk
from trainyard.train.latent.quiet_star_thoughts import (
    Columns,
    Positions,
    Thinker,
    ThoughtHead,
    ThoughtSettings,
    diagonal_mask,
    find_positions,
)
from trainyard.train.model.head import label_logprobs

WORDS, SIZE = 11, 16
GREEDY = ThoughtSettings(num_tokens=4, num_ahead=3, num_thoughts=1, temperature=0)


def llama(vocab_size: int = WORDS, layers: int = 2, attention: str = "sdpa") -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size, hidden_size=SIZE, intermediate_size=32, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.3,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).eval()
    model.set_attn_implementation(attention)
    return model


def gpt2() -> Any:
    torch.manual_seed(0)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=WORDS, n_embd=SIZE, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3)
    ).eval()


def eager() -> Any:
    return llama(attention="eager")


def new_head(seed: int = 0) -> ThoughtHead:
    """A head whose mixing weight is not zero any more."""
    torch.manual_seed(seed)
    head = ThoughtHead(SIZE)
    for weight in head.parameters():
        torch.nn.init.normal_(weight, std=0.5)
    return head


def make_batch(*rows: list[int], first_label: int = 1) -> dict[str, torch.Tensor]:
    """Rows of token ids filled up on the right; labels from a position on."""
    length = max(map(len, rows))
    ids = torch.tensor([[*row, *[0] * (length - len(row))] for row in rows])
    mask = torch.tensor([[*[1] * len(row), *[0] * (length - len(row))] for row in rows])
    labels = ids.masked_fill(mask == 0, IGNORED)
    labels[:, :first_label] = IGNORED
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def think_alone(model: Any, head: ThoughtHead, prefix: list[int], settings: ThoughtSettings, true: list[int]) -> Any:
    """One greedy thought after a prefix, recomputed from the first token for every step."""
    embed = model.get_input_embeddings()
    inputs = [*embed(torch.tensor(prefix)), head.start]
    tokens: list[int] = []
    with torch.no_grad():
        for _ in range(settings.num_tokens):
            hidden = model.model(inputs_embeds=torch.stack(inputs)[None]).last_hidden_state
            tokens.append(int(model.lm_head(hidden[0, -1]).argmax()))
            inputs.append(embed(torch.tensor(tokens[-1])))
        inputs = [*inputs, head.end, *embed(torch.tensor(true[: settings.num_ahead - 1]))]
        hidden = model.model(inputs_embeds=torch.stack(inputs)[None]).last_hidden_state[0]
    return tokens, hidden[-settings.num_ahead :]


@pytest.mark.parametrize("make", [llama, eager])
def test_thoughts_at_once_are_the_thoughts_one_by_one(make: Any) -> None:
    model, head = make(), new_head()
    row = [5, 9, 3, 7, 1, 8, 2, 6, 4, 10]
    batch = make_batch(row)
    positions = find_positions(batch["labels"], GREEDY.num_ahead)
    thoughts = Thinker(model, head, GREEDY).think(batch, positions)
    assert positions.at_BN[0].tolist() == list(range(9))
    for at in range(len(row) - GREEDY.num_ahead):
        tokens, hidden = think_alone(model, head, row[: at + 1], GREEDY, row[at + 1 :])
        assert thoughts.tokens_QNJ[0, at].tolist() == tokens
        assert torch.allclose(thoughts.ahead_QNAD[0, at], hidden, atol=1e-5)


@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_thought_does_not_see_later_tokens(make: Any) -> None:
    model, head = make(), new_head()
    settings = replace(GREEDY, num_ahead=1)
    before, after = make_batch([5, 9, 3, 7, 1, 8]), make_batch([5, 9, 3, 2, 4, 6])
    first, second = (
        Thinker(model, head, settings).think(batch, find_positions(batch["labels"], 1)) for batch in (before, after)
    )
    assert torch.equal(first.tokens_QNJ[:, :3], second.tokens_QNJ[:, :3])
    assert torch.allclose(first.ahead_QNAD[:, :3], second.ahead_QNAD[:, :3], atol=1e-6)
    assert not torch.allclose(first.ahead_QNAD[:, 3:], second.ahead_QNAD[:, 3:], atol=1e-3)


def test_the_mask_shows_the_row_so_far_and_the_own_thought() -> None:
    seen = diagonal_mask(torch.tensor([[1, 1, 1, 0]]), torch.tensor([[0, 2]]), 2)[0, 0].int().tolist()
    assert seen == [[1, 0, 0, 0, 1, 0, 1, 0], [1, 1, 1, 0, 0, 1, 0, 1]]


def test_padding_changes_no_thought() -> None:
    model, head = llama(), new_head()
    row = [5, 9, 3, 7]
    alone, padded = make_batch(row), make_batch(row, [4, 4, 2, 9, 9, 1, 3])
    thoughts = [
        Thinker(model, head, GREEDY).think(batch, find_positions(batch["labels"], 3)) for batch in (alone, padded)
    ]
    assert torch.equal(thoughts[0].tokens_QNJ[0], thoughts[1].tokens_QNJ[0, :3])
    assert torch.allclose(thoughts[0].ahead_QNAD[0, :, 0], thoughts[1].ahead_QNAD[0, :3, 0], atol=1e-5)


def test_only_positions_with_labels_ahead_think() -> None:
    labels = torch.full((2, 6), IGNORED)
    labels[0, 4], labels[1, 1:3] = 7, torch.tensor([3, 5])
    positions = find_positions(labels, 2)
    assert positions.at_BN.tolist() == [[2, 3], [0, 1]]
    assert positions.thinks_BN.tolist() == [[True, True], [True, True]]
    assert positions.target_BNA.tolist() == [[[IGNORED, 7], [7, IGNORED]], [[3, 5], [5, IGNORED]]]


@pytest.mark.parametrize("make", [llama, eager, gpt2])
@pytest.mark.parametrize("ahead", [1, 3])
def test_a_mixing_weight_of_zero_gives_the_loss_of_the_base(make: Any, ahead: int) -> None:
    model, settings = make(), ThoughtSettings(num_tokens=2, num_ahead=ahead, policy_weight=5.0)
    batch = make_batch([5, 9, 3, 7, 1], [4, 4, 2, 9, 9, 1, 3], first_label=2)
    expected = -label_logprobs(model, batch).logprobs_N.sum()
    scores = quiet_scores(model, ThoughtHead(SIZE), batch, settings, Head.FULL)
    assert scores["base"].item() == pytest.approx(expected.item(), rel=5e-7)
    assert scores["mixed"].item() == pytest.approx(expected.item(), abs=2e-5)
    assert scores["gain"].item() == pytest.approx(0.0, abs=2e-5)
    assert quiet_loss(scores, settings).item() == pytest.approx(expected.item(), abs=1e-3)
    assert quiet_loss(scores, replace(settings, policy_weight=0.0)).item() == pytest.approx(expected.item(), abs=2e-5)


def test_each_label_counts_once_with_all_that_predict_it() -> None:
    model, head = llama(), new_head()
    settings = ThoughtSettings(num_tokens=2, num_ahead=2, num_thoughts=2, temperature=0)
    batch = make_batch([5, 9, 3, 7])
    positions = find_positions(batch["labels"], 2)
    talk_scores = talk(
        thinker := Thinker(model, head, settings),
        batch["labels"],
        positions,
        thinker.think(batch, positions),
        Head.FULL,
    )
    greedy = talk_scores.mixed_QNA[0]  # both thoughts are the same
    expected = -(greedy[0, 0] + (greedy[1, 0] + greedy[0, 1]) / 2 + (greedy[2, 0] + greedy[1, 1]) / 2)
    scores = quiet_scores(model, head, batch, settings, Head.FULL)
    assert scores["mixed"].item() == pytest.approx(expected.item(), abs=1e-5)
    assert scores["policy"].item() == pytest.approx(0.0, abs=1e-5)  # equal thoughts have equal rewards


def test_rewards_carry_no_gradient() -> None:
    model, head = llama(), new_head()
    settings = ThoughtSettings(num_tokens=1, num_ahead=1, policy_temperature=1.0)
    torch.manual_seed(3)
    quiet_scores(model, head, make_batch([5, 9, 3, 7, 1, 8, 2]), settings, Head.FULL)["policy"].backward()
    assert all(weight.grad is None or not weight.grad.any() for weight in head.mixing.parameters())
    assert head.start_D.grad is not None
    assert head.start_D.grad.any()
    assert head.end_D.grad is None or not head.end_D.grad.any()


def test_the_loss_reaches_every_weight_of_the_technique() -> None:
    model, head = llama(), new_head()
    scores = quiet_scores(model, head, make_batch([5, 9, 3, 7, 1, 8, 2]), ThoughtSettings(num_tokens=2), Head.FULL)
    quiet_loss(scores, ThoughtSettings(num_tokens=2)).backward()
    assert all(weight.grad is not None and weight.grad.any() for weight in head.parameters())


def test_gradients_through_the_cache_are_those_of_a_pass_without_one() -> None:
    model, head = llama(), new_head()
    settings = replace(GREEDY, num_ahead=1)
    row, at = [5, 9, 3, 7, 1, 8], 3
    batch = make_batch(row)
    positions = find_positions(batch["labels"], 1)
    thoughts = Thinker(model, head, settings).think(batch, positions)
    thoughts.ahead_QNAD[0, at, 0].square().sum().backward()
    cached = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    embed = model.get_input_embeddings()
    parts = [embed(torch.tensor(row[: at + 1])), head.start[None], embed(thoughts.tokens_QNJ[0, at]), head.end[None]]
    model.model(inputs_embeds=torch.cat(parts)[None]).last_hidden_state[0, -1].square().sum().backward()
    for name, weight in model.named_parameters():
        if name in cached:
            assert torch.allclose(weight.grad, cached[name], atol=1e-4), name


@pytest.mark.parametrize("num_thoughts", [2, 4])
def test_reinforce_is_the_exact_gradient_times_the_share_of_the_baseline(num_thoughts: int) -> None:
    """Over all tuples of thoughts, weighted by their probability, the policy loss has (P - 1) / P of the gradient."""
    logits = torch.tensor([0.3, -0.2, 0.8], requires_grad=True)
    gain = torch.tensor([1.0, -2.0, 0.5])
    settings = ThoughtSettings(num_thoughts=num_thoughts, only_positive=False)
    logprobs = logits.log_softmax(0)
    expected = torch.zeros(3)
    for sampled in itertools.product(range(3), repeat=num_thoughts):
        index = torch.tensor(sampled)
        loss = policy_loss(gain[index][:, None], logits.log_softmax(0)[index][:, None, None], settings)
        (slope,) = torch.autograd.grad(loss, logits)
        expected += slope * logprobs.detach()[index].sum().exp()
    (exact,) = torch.autograd.grad(-(logprobs.exp() * gain).sum(), logits)
    assert torch.allclose(expected, exact * (num_thoughts - 1) / num_thoughts, atol=1e-5)


def test_reinforce_of_a_model_is_within_three_sigma_of_enumeration() -> None:
    """Vocabulary 4, one thought token: sampled gradients against the sum over the four thoughts."""
    model, head = llama(vocab_size=4, layers=1), new_head()
    settings = ThoughtSettings(num_tokens=1, num_ahead=1, num_thoughts=2, policy_temperature=1.0, only_positive=False)
    row = [1, 3, 2]
    direction, exact = enumerate_thoughts(model, head, row, settings)
    torch.manual_seed(0)
    slopes = []
    for _ in range(40):
        rows = make_batch(*[row] * 64, first_label=2)
        loss = quiet_scores(model, head, rows, settings, Head.FULL)["policy"] / 64
        grads = torch.autograd.grad(loss, list(direction), allow_unused=True)
        slopes.append(inner(grads, list(direction.values())))
    slopes_N = torch.stack(slopes)
    sigma = slopes_N.std() / len(slopes_N) ** 0.5
    assert abs(slopes_N.mean() - exact / 2) < 3 * sigma
    assert abs(exact / 2) > 5 * sigma  # so that a gradient of zero or of the wrong sign is found


def inner(first: Any, second: Any) -> torch.Tensor:
    return sum(((a * b).sum() for a, b in zip(first, second, strict=True) if a is not None), start=torch.tensor(0.0))


def enumerate_thoughts(
    model: Any, head: ThoughtHead, row: list[int], settings: ThoughtSettings
) -> tuple[dict[torch.nn.Parameter, torch.Tensor], torch.Tensor]:
    """The exact gradient of minus the mean gain after the second token, and its squared norm."""
    batch = make_batch(row, first_label=2)
    positions = find_positions(batch["labels"], 1)
    assert positions.at_BN.tolist() == [[1]]
    single_thought = replace(settings, num_thoughts=1)
    thinker = Thinker(model, head, single_thought)
    weights = [weight for weight in [*model.parameters(), head.start_D] if weight.requires_grad]
    base = thinker._read(batch)[0]
    total = torch.tensor(0.0)
    for token in range(4):
        _, cache = thinker._read(batch)
        columns = Columns(model, batch, positions, 1, cache)
        start_states = columns.run(head.start.expand(1, 1, -1))
        logprob = thinker.output(start_states).log_softmax(-1)[0, 0, token]
        columns.run(model.get_input_embeddings()(torch.tensor([[token]])))
        mixed = head.mix(base[0, 1], columns.run(head.end.expand(1, 1, -1))[0, 0])
        both = (thinker.output(state[None]).log_softmax(-1)[0, row[2]] for state in (mixed, base[0, 1]))
        gain = next(both) - next(both)
        total = total - logprob.exp() * gain.detach()
    grads = torch.autograd.grad(total, weights, allow_unused=True)
    gradients = {weight: grad for weight, grad in zip(weights, grads, strict=True) if grad is not None}
    return gradients, inner(gradients.values(), gradients.values())


def test_gains_are_measured_against_the_same_token_without_a_thought() -> None:
    model, head = llama(), new_head()
    settings = replace(GREEDY, num_thoughts=2)
    batch = make_batch([5, 9, 3, 7, 1])
    positions: Positions = find_positions(batch["labels"], 3)
    thinker = Thinker(model, head, settings)
    talk_scores = talk(thinker, batch["labels"], positions, thinker.think(batch, positions), Head.FULL)
    base = label_logprobs(model, batch).logprobs_N
    assert torch.allclose(talk_scores.base_BT[0, 1:], base, atol=1e-6)
    gain = compute_gain(talk_scores, positions, 2)
    assert gain[0, 1, 2].item() == pytest.approx((talk_scores.mixed_QNA[0, 1, 2] - base[3]).item(), abs=1e-6)
    assert gain[0, 3, 1].item() == 0.0  # beyond the end
