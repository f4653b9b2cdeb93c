"""Losses of the stages that learn from preferences: where they start, which way they push, and golden values."""

from __future__ import annotations

import math

import pytest
import torch

from tests.unit.train.losses.stage_rows import (
    PAD,
    TOKENIZER,
    assistant,
    make_labelled,
    make_model,
    pairs,
    settings,
    user,
)
from trainyard.data.rows import LabelledRow
from trainyard.errors import InvalidInput
from trainyard.spec.axes.stages import PreferenceLoss, Stage
from trainyard.train.contracts import IGNORED, Head, Scores
from trainyard.train.losses.dpo import LOSSES, log1mexp
from trainyard.train.losses.table import STAGES

DPO, KTO, REWARD = STAGES[Stage.DPO], STAGES[Stage.KTO], STAGES[Stage.REWARD]
BETA = 0.25
AT_THE_START = {
    PreferenceLoss.SIGMOID: math.log(2),
    PreferenceLoss.HINGE: 1.0,
    PreferenceLoss.IPO: 1 / (4 * BETA**2),
    PreferenceLoss.KTO_PAIR: 0.5,
}
GOLDEN = {
    PreferenceLoss.SIGMOID: 0.5981389,
    PreferenceLoss.HINGE: 0.8000000,
    PreferenceLoss.IPO: 3.4596000,
    PreferenceLoss.KTO_PAIR: 0.4563681,
    PreferenceLoss.ORPO: 1.1172258,
    PreferenceLoss.SIMPO: 0.9432489,
}
"""Of one pair, by hand, at beta 0.25: see `make_pair`."""


def scores(chosen: float, rejected: float, nll: float = 1.0) -> Scores:
    """One pair whose answers have 5 and 10 tokens."""
    values = {"chosen_P": chosen, "rejected_P": rejected, "chosen_count_P": 5.0, "rejected_count_P": 10.0}
    return {name: torch.tensor([value]) for name, value in {**values, "chosen_nll_P": nll}.items()}


def make_pair() -> tuple[Scores, Scores]:
    """Log-ratios 0.6 (chosen) and -0.2 (rejected); mean log-probabilities -0.4 and -0.6."""
    return scores(-2.0, -6.0), scores(-2.6, -5.8)


def test_the_table_has_every_loss() -> None:
    assert set(LOSSES) == set(PreferenceLoss)


@pytest.mark.parametrize("loss", AT_THE_START)
def test_a_policy_that_is_its_reference_has_the_loss_of_no_preference(loss: PreferenceLoss) -> None:
    """Exactly: another first loss means that the reference is not the policy that the run started from."""
    config = settings(Stage.DPO, preference={"loss": loss, "beta": BETA})
    examples, _ = DPO.encode(pairs(), TOKENIZER, config)
    batch, model = DPO.collate(examples, PAD), make_model("causal")
    reference = {name: value.detach() for name, value in DPO.score(model, batch, Head.FULL).items()}
    total, metrics = DPO.loss(batch, DPO.score(model, batch, Head.FULL), reference, config)
    assert total.item() / DPO.units(batch) == pytest.approx(AT_THE_START[loss], abs=1e-7)
    assert metrics["reward_margin"] == 0


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_gamma_is_the_margin_that_simpo_asks_for(gamma: float) -> None:
    """Mean log-probabilities -0.4 and -0.6, so the margin that is there is 0.2 beta."""
    stage = settings(Stage.DPO, preference={"loss": "simpo", "beta": BETA, "simpo_gamma": gamma}).stage
    value = LOSSES[PreferenceLoss.SIMPO](*make_pair(), stage).item()
    assert value == pytest.approx(math.log1p(math.exp(gamma - 0.2 * BETA)), abs=1e-6)


@pytest.mark.parametrize("loss", GOLDEN)
def test_golden_values(loss: PreferenceLoss) -> None:
    policy, reference = make_pair()
    config = settings(Stage.DPO, preference={"loss": loss, "beta": BETA})
    value, metrics = DPO.loss({}, policy, reference, config)
    assert value.item() == pytest.approx(GOLDEN[loss], abs=1e-6)
    assert {name: round(metric.item(), 5) for name, metric in metrics.items()} == {
        "reward_accuracy": 1.0,
        "reward_margin": 0.2,
        "reward_chosen": 0.15,
        "reward_rejected": -0.05,
        "logprobs_chosen": -2.0,
        "logprobs_rejected": -6.0,
    }


def test_label_smoothing_is_the_unbiased_one() -> None:
    """The mean over labels that are wrong with probability e is the clean loss (Chowdhury et al. 2024, lemma 3.1)."""
    policy, reference = make_pair()
    flipped = [{**side, "chosen_P": side["rejected_P"], "rejected_P": side["chosen_P"]} for side in (policy, reference)]
    clean, smooth = (settings(Stage.DPO, preference={"beta": BETA, "label_smoothing": noise}) for noise in (0.0, 0.2))
    expected = DPO.loss({}, policy, reference, clean)[0]
    right, wrong = DPO.loss({}, policy, reference, smooth)[0], DPO.loss({}, flipped[0], flipped[1], smooth)[0]
    assert (0.8 * right + 0.2 * wrong).item() == pytest.approx(expected.item(), abs=1e-6)


@pytest.mark.parametrize("loss", PreferenceLoss)
def test_every_loss_pushes_the_chosen_answer_up_and_the_rejected_one_down(loss: PreferenceLoss) -> None:
    policy, reference = make_pair()
    for name in ("chosen_P", "rejected_P"):
        policy[name].requires_grad_()
    DPO.loss({}, policy, reference, settings(Stage.DPO, preference={"loss": loss}))[0].backward()
    chosen, rejected = policy["chosen_P"].grad, policy["rejected_P"].grad
    assert chosen is not None
    assert rejected is not None
    assert chosen.item() < 0 < rejected.item()


def test_no_gradient_goes_through_the_reference_point_of_kto_pair() -> None:
    policy, reference = make_pair()
    policy["chosen_P"].requires_grad_()
    DPO.loss({}, policy, reference, settings(Stage.DPO, preference={"loss": "kto_pair", "beta": BETA}))[0].backward()
    value = 1 / (1 + math.exp(-BETA * 0.6))
    assert policy["chosen_P"].grad is not None
    assert policy["chosen_P"].grad.item() == pytest.approx(-BETA * value * (1 - value) / 2, abs=1e-6)


def test_only_orpo_and_simpo_do_without_a_reference() -> None:
    needs = {loss: DPO.needs_reference(settings(Stage.DPO, preference={"loss": loss})) for loss in PreferenceLoss}
    assert {loss for loss, needed in needs.items() if not needed} == {PreferenceLoss.ORPO, PreferenceLoss.SIMPO}
    with pytest.raises(AssertionError):
        DPO.loss({}, make_pair()[0], None, settings(Stage.DPO))


@pytest.mark.parametrize("x", [0.0, -1e-9, -1e-6, -0.1, -math.log(2), -1.0, -20.0, -200.0])
def test_log1mexp_keeps_its_digits_and_its_gradient(x: float) -> None:
    value_of_x = torch.tensor(x, requires_grad=True)
    value = log1mexp(value_of_x)
    value.backward()
    assert value_of_x.grad is not None
    assert torch.isfinite(value_of_x.grad)
    assert value.item() == pytest.approx(math.log(-math.expm1(min(x, -1e-7))), rel=1e-5, abs=1e-38)


def test_orpo_imitates_the_chosen_row_from_its_first_prediction_on() -> None:
    config = settings(Stage.DPO, preference={"loss": "orpo"})
    examples, _ = DPO.encode(pairs(4), TOKENIZER, config)
    batch, model = DPO.collate(examples, PAD), make_model("causal")
    policy = DPO.score(model, batch, Head.FULL)
    plain = DPO.score(model, {name: value for name, value in batch.items() if name != "row_labels"}, Head.FULL)
    for name in plain:
        torch.testing.assert_close(policy[name], plain[name])
    row = torch.tensor([examples[1]["prompt_ids"] + examples[1]["chosen_ids"]])
    assert policy["chosen_nll_P"][1].item() == pytest.approx(model(input_ids=row, labels=row).loss.item(), abs=1e-5)


def test_swapping_a_pair_mirrors_the_rewards() -> None:
    """-log s(x) - -log s(-x) = -x: the two orders of a pair differ by the gap of their rewards."""
    config = settings(Stage.REWARD)
    policy = {"rewards_B": torch.tensor([1.0, 0.25])}
    swapped = {"rewards_B": policy["rewards_B"].flip(0)}
    right, wrong = (REWARD.loss({}, policy_scores, None, config)[0].item() for policy_scores in (policy, swapped))
    assert right == pytest.approx(math.log1p(math.exp(-0.75)), abs=1e-6)
    assert right - wrong == pytest.approx(-0.75, abs=1e-6)


def test_centering_and_margin_of_a_reward() -> None:
    policy = {"rewards_B": torch.tensor([1.0, 0.5])}
    plain = REWARD.loss({}, policy, None, settings(Stage.REWARD))[0].item()
    centred, metrics = REWARD.loss({}, policy, None, settings(Stage.REWARD, engine={"reward_centering": 0.5}))
    assert centred.item() - plain == pytest.approx(0.5 * 1.5**2, abs=1e-6)
    margin = REWARD.loss({"margin_P": torch.tensor([0.5])}, policy, None, settings(Stage.REWARD))[0].item()
    assert margin == pytest.approx(math.log(2), abs=1e-6)
    assert metrics["reward_accuracy"] == 1


def test_a_reward_is_read_off_the_last_token_whatever_the_padding() -> None:
    examples, _ = REWARD.encode(pairs(), TOKENIZER, settings(Stage.REWARD))
    model = make_model("reward")
    whole = REWARD.score(model, REWARD.collate(examples, PAD), Head.FULL)["rewards_B"].view(2, -1)
    for index, example in enumerate(examples):
        alone = REWARD.score(model, REWARD.collate([example], PAD), Head.FULL)["rewards_B"]
        torch.testing.assert_close(alone, whole[:, index], atol=1e-5, rtol=1e-4)


def test_kto_starts_at_a_half_of_each_weight() -> None:
    config = settings(Stage.KTO, preference={"desirable_weight": 1.5, "undesirable_weight": 0.5})
    examples, _ = KTO.encode(make_labelled(6), TOKENIZER, config)
    batch, model = KTO.collate(examples, PAD), make_model("causal")
    reference = {name: value.detach() for name, value in KTO.score(model, batch, Head.FULL).items()}
    total, metrics = KTO.loss(batch, KTO.score(model, batch, Head.FULL), reference, config)
    assert total.item() == pytest.approx((4 * 1.5 + 2 * 0.5) / 2, abs=1e-6)
    assert metrics["desirable"] == 4
    assert metrics["kl"] == 0


def test_kto_by_hand() -> None:
    policy = {"logprobs_B": torch.tensor([-2.0, -5.0], requires_grad=True), "kl_B": torch.tensor([-7.0, -8.0])}
    reference = {"logprobs_B": torch.tensor([-2.5, -5.5]), "kl_B": torch.tensor([-7.2, -8.4])}
    batch = {"desirable_B": torch.tensor([True, False])}
    total, metrics = KTO.loss(batch, policy, reference, settings(Stage.KTO, preference={"beta": 0.5}))

    def compute_value(gain: float) -> float:
        return 1 - 1 / (1 + math.exp(-0.5 * gain))

    assert total.item() == pytest.approx(compute_value(0.5 - 0.3) + compute_value(0.3 - 0.5), abs=1e-6)
    assert {name: round(metric.item(), 5) for name, metric in metrics.items()} == {
        "reward_accuracy": 1.0,
        "reward_desirable": 0.25,
        "reward_undesirable": 0.25,
        "desirable": 1.0,
        "kl": 0.6,
    }
    total.backward()
    gradient = policy["logprobs_B"].grad
    assert gradient is not None
    assert gradient[0] < 0 < gradient[1]


def test_mismatched_rows_pair_each_prompt_with_the_completion_before_it() -> None:
    examples, _ = KTO.encode(make_labelled(3), TOKENIZER, settings(Stage.KTO))
    batch = KTO.collate(examples, PAD)
    for index, example in enumerate(examples):
        real = batch["kl_attention_mask"][index] == 1
        expected = example["prompt_ids"] + examples[index - 1]["completion_ids"]
        assert batch["kl_input_ids"][index][real].tolist() == expected
        labels = batch["kl_labels"][index][real]
        assert labels[labels != IGNORED].tolist() == examples[index - 1]["completion_ids"]


def test_mismatched_rows_have_no_graph_and_keep_to_the_limit() -> None:
    rows = [
        LabelledRow([user("What is a node? " * 4)], [assistant("a")], label=True),
        LabelledRow([user("b")], [assistant("It counts every token. " * 4)], label=False),
    ]
    examples, _ = KTO.encode(rows, TOKENIZER, settings(Stage.KTO, max_length=40))
    batch = KTO.collate(examples, PAD)
    assert batch["kl_input_ids"].shape[1] == 40
    policy = KTO.score(make_model("causal"), batch, Head.FULL)
    assert policy["logprobs_B"].requires_grad
    assert not policy["kl_B"].requires_grad


@pytest.mark.parametrize("label", [True, False])
def test_labels_of_one_kind_are_refused(label: bool) -> None:
    rows = [LabelledRow([user(f"{n}?")], [assistant("yes")], label=label) for n in range(3)]
    kind = "desirable" if label else "undesirable"
    with pytest.raises(InvalidInput, match=f"All 3 rows are {kind}") as caught:
        KTO.encode(rows, TOKENIZER, settings(Stage.KTO))
    assert caught.value.code == "E-BATCH"


def test_a_batch_of_one_is_refused() -> None:
    examples, _ = KTO.encode(make_labelled(4), TOKENIZER, settings(Stage.KTO))
    with pytest.raises(InvalidInput, match="this batch has one") as caught:
        KTO.collate(examples[:1], PAD)
    assert caught.value.code == "E-BATCH"
    assert KTO.facts.smallest_batch == 2


def test_a_completion_without_room_is_dropped_and_one_without_text_still_learns_to_stop() -> None:
    rows = [
        LabelledRow([user("What is a node? " * 9)], [assistant("a")], label=True),
        LabelledRow([user("b")], [assistant("")], label=False),
        *make_labelled(3),
    ]
    examples, ledger = KTO.encode(rows, TOKENIZER, settings(Stage.KTO, max_length=40))
    assert len(examples) == 4
    assert examples[0]["completion_ids"] == [TOKENIZER.eos_token_id]
    assert ledger.rows["dropped_truncated"] == 1
