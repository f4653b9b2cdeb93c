"""The stages' losses against TRL's trainers: the same batch through both, the same value and the same gradient."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_config import KTOConfig
from trl.trainer.kto_trainer import DataCollatorForUnpairedPreference, KTOTrainer
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import DataCollatorForPreference, RewardTrainer
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import SFTTrainer

from trainyard.spec.axes.stages import PreferenceLoss, Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import IGNORED, Batch, Encoded, Head
from trainyard.train.losses.table import STAGES

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
BETA = 0.3
PAIR_LENGTHS = [(5, 4, 7), (3, 9, 2), (8, 6, 6), (2, 1, 5)]
"""(prompt, chosen, rejected) tokens of four pairs."""


def import_trainers() -> tuple[type[Any], ...]:
    """TRL's experimental trainers, which say so with a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.experimental.cpo import CPOConfig, CPOTrainer
        from trl.experimental.orpo import ORPOConfig, ORPOTrainer
    return ORPOTrainer, ORPOConfig, CPOTrainer, CPOConfig


def load_gkd() -> Any:
    """TRL's trainer of on-policy distillation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from trl.experimental.gkd import GKDTrainer
    return GKDTrainer


def load_model(folder: Path, head: str, seed: int = 0) -> Any:
    """The tiny model, moved by noise of its own, so that policy and reference differ."""
    kind = AutoModelForCausalLM if head == "causal" else AutoModelForSequenceClassification
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = kind.from_pretrained(folder, num_labels=1) if head == "reward" else kind.from_pretrained(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.03 * torch.randn_like(parameter)
    return model


def build_trainer(trainer: type[Any], arguments: type[Any], model: Any, data: Any, folder: Path, **options: Any) -> Any:
    """A trainer of TRL's on a CPU in float32, without dropout, checkpoints or reports."""
    config = {name: options.pop(name) for name in list(options) if name not in ("ref_model", "processing_class")}
    common = {"use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        args = arguments(output_dir=str(folder), per_device_train_batch_size=4, **common, **config)
        return trainer(model=model, args=args, train_dataset=data, **options)


def random_ids(count: int) -> list[int]:
    return torch.randint(10, 300, (count,)).tolist()


def random_pairs(*, imitated: bool = False) -> list[Encoded]:
    torch.manual_seed(5)
    names = ("prompt_ids", "chosen_ids", "rejected_ids")
    pairs = [dict(zip(names, map(random_ids, lengths), strict=True)) for lengths in PAIR_LENGTHS]
    return [{**pair, "imitate": []} for pair in pairs] if imitated else pairs


def compute_loss(
    model: Any, reference: Any, config: TrainerConfig, examples: Sequence[Encoded]
) -> tuple[torch.Tensor, Batch]:
    """Our mean loss over a batch, and the batch."""
    stage = STAGES[config.stage.type]
    batch = stage.collate(examples, 0)
    with torch.no_grad():
        against = stage.score(reference, batch, Head.FULL) if stage.needs_reference(config) else None
    total, _ = stage.loss(batch, stage.score(model, batch, Head.FULL), against, config)
    return total / stage.units(batch), batch


def gradient(loss: torch.Tensor, model: Any) -> torch.Tensor:
    model.zero_grad()
    loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def assert_same(our_loss: torch.Tensor, trl_loss: torch.Tensor, model: Any) -> None:
    """Values equal to 1e-6 (relative above 1), gradients to 1e-5."""
    assert our_loss.item() == pytest.approx(trl_loss.item(), abs=1e-6, rel=1e-6)
    torch.testing.assert_close(gradient(our_loss, model), gradient(trl_loss, model), atol=1e-5, rtol=1e-4)


def with_completion_mask(batch: Batch) -> dict[str, torch.Tensor]:
    """Our batch as DPOTrainer and KTOTrainer take it."""
    named = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    return {**named, "completion_mask": (batch["labels"] != IGNORED).long()}


@pytest.fixture(scope="module")
def models(tiny_model: Path) -> tuple[Any, Any]:
    """Policy and reference."""
    return load_model(tiny_model, "causal", 1), load_model(tiny_model, "causal", 2)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Any:
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture(scope="module")
def text_pairs() -> Dataset:
    return Dataset.from_list([{"prompt": "What is a node?", "chosen": "A step.", "rejected": "No idea."}] * 4)


@pytest.fixture(scope="module")
def dpo(models: tuple[Any, Any], tokenizer: Any, text_pairs: Dataset, tmp_path_factory: Any) -> Any:
    folder = tmp_path_factory.mktemp("dpo")
    return build_trainer(
        DPOTrainer, DPOConfig, models[0], text_pairs, folder, ref_model=models[1], processing_class=tokenizer
    )


@pytest.mark.parametrize(
    ("loss", "trl_name", "smoothing"),
    [
        (PreferenceLoss.SIGMOID, "sigmoid", 0.0),
        (PreferenceLoss.SIGMOID, "robust", 0.1),
        (PreferenceLoss.HINGE, "hinge", 0.0),
        (PreferenceLoss.IPO, "ipo", 0.0),
    ],
)
def test_losses_with_a_reference(
    dpo: Any, models: tuple[Any, Any], loss: PreferenceLoss, trl_name: str, smoothing: float
) -> None:
    preference = {"loss": loss, "beta": BETA, "label_smoothing": smoothing}
    config = TrainerConfig(stage={"type": "dpo", **preference})
    our_loss, batch = compute_loss(*models, config, random_pairs())
    dpo.beta, dpo.loss_types, dpo.label_smoothing = BETA, [trl_name], smoothing
    assert_same(our_loss, dpo.compute_loss(models[0], with_completion_mask(batch)), models[0])


def orpo_rows(batch: Batch) -> dict[str, torch.Tensor]:
    """Our batch as ORPOTrainer and CPOTrainer take it."""
    names = {"input_ids": "input_ids", "attention_mask": "attention_mask", "labels": "labels"}
    sides = {name: batch[name].chunk(2) for name in names}
    return {f"{side}_{name}": sides[name][at] for name in names for at, side in enumerate(("chosen", "rejected"))}


def test_orpo(models: tuple[Any, Any], tokenizer: Any, text_pairs: Dataset, tmp_path: Path) -> None:
    """TRL's cross-entropy is a mean over a batch's tokens, ours a mean over rows of their means: per pair the same."""
    trainer_class, config_class, *_ = import_trainers()
    trainer = build_trainer(
        trainer_class, config_class, models[0], text_pairs, tmp_path, processing_class=tokenizer, beta=BETA
    )
    config = TrainerConfig(stage={"type": "dpo", "loss": "orpo", "beta": BETA})
    examples = random_pairs(imitated=True)
    alone = [compute_loss(models[0], None, config, [example]) for example in examples]
    trl_losses = [trainer.get_batch_loss_metrics(models[0], orpo_rows(batch))[0] for _, batch in alone]
    for (our_loss, _), expected in zip(alone, trl_losses, strict=True):
        assert_same(our_loss, expected, models[0])
    together = compute_loss(models[0], None, config, examples)[0]
    assert together.item() == pytest.approx(sum(value.item() for value in trl_losses) / len(trl_losses), abs=1e-5)


@pytest.mark.parametrize("gamma", [0.5, 1.6])
def test_simpo(gamma: float, models: tuple[Any, Any], tokenizer: Any, text_pairs: Dataset, tmp_path: Path) -> None:
    *_, trainer_class, config_class = import_trainers()
    options = {"beta": BETA, "loss_type": "simpo", "cpo_alpha": 0.0, "simpo_gamma": gamma}
    trainer = build_trainer(
        trainer_class, config_class, models[0], text_pairs, tmp_path, processing_class=tokenizer, **options
    )
    config = TrainerConfig(stage={"type": "dpo", "loss": "simpo", "beta": BETA, "gamma": gamma})
    our_loss, batch = compute_loss(models[0], None, config, random_pairs())
    assert_same(our_loss, trainer.get_batch_loss_metrics(models[0], orpo_rows(batch))[0], models[0])


def random_labelled() -> list[Encoded]:
    torch.manual_seed(6)
    lengths, labels = [(5, 4), (3, 9), (8, 6), (2, 1)], [1, 0, 1, 1]
    return [
        {
            "prompt_ids": random_ids(prompt),
            "completion_ids": random_ids(completion),
            "desirable": [label],
            "limit": [14],
        }
        for (prompt, completion), label in zip(lengths, labels, strict=True)
    ]


def kto_batch(examples: list[Encoded]) -> dict[str, torch.Tensor]:
    """What TRL's collator makes of the rows and its rotation of the completions."""
    rotated = [examples[-1]["completion_ids"], *(example["completion_ids"] for example in examples[:-1])]
    rows = [
        {
            "prompt_ids": example["prompt_ids"],
            "completion_ids": example["completion_ids"],
            "KL_completion_ids": other,
            "label": bool(example["desirable"][0]),
        }
        for example, other in zip(examples, rotated, strict=True)
    ]
    return DataCollatorForUnpairedPreference(pad_token_id=0, max_length=14)(rows)


def compute_kl(model: Any, reference: Any, batch: Batch) -> float:
    score = STAGES[Stage.KTO].score
    with torch.no_grad():
        return float((score(model, batch, Head.FULL)["kl_B"] - score(reference, batch, Head.FULL)["kl_B"]).mean())


@pytest.mark.parametrize("moved_up", [True, False])
def test_kto(models: tuple[Any, Any], tokenizer: Any, tmp_path: Path, moved_up: bool) -> None:
    """With policy and reference exchanged the mean log-ratio changes its sign: KL is once positive, once cut at 0."""
    policy, reference = reversed(models) if moved_up else models
    rows = [{"prompt": "What is a node?", "completion": "A step.", "label": label} for label in (True, False) * 2]
    weights = {"desirable_weight": 1.2, "undesirable_weight": 0.7}
    options = {"ref_model": reference, "processing_class": tokenizer, "beta": BETA, **weights}
    trainer = build_trainer(KTOTrainer, KTOConfig, policy, Dataset.from_list(rows), tmp_path, **options)
    config = TrainerConfig(stage={"type": "kto", "beta": BETA, **weights})
    our_loss, batch = compute_loss(policy, reference, config, random_labelled())
    assert (compute_kl(policy, reference, batch) > 0.1) is moved_up
    trl_batch = kto_batch(random_labelled())
    for prefix, name in (("", ""), ("kl_", "KL_")):
        assert torch.equal(batch[f"{prefix}input_ids"], trl_batch[f"{name}input_ids"])
        assert torch.equal(batch[f"{prefix}attention_mask"], trl_batch[f"{name}attention_mask"])
        assert torch.equal((batch[f"{prefix}labels"] != IGNORED).long(), trl_batch[f"{name}completion_mask"])
    assert_same(our_loss, trainer.compute_loss(policy, trl_batch), policy)


@pytest.mark.parametrize("centering", [None, 0.01])
def test_reward(tiny_model: Path, tokenizer: Any, text_pairs: Dataset, tmp_path: Path, centering: float | None) -> None:
    model = load_model(tiny_model, "reward", 3)
    options = {"processing_class": tokenizer, "center_rewards_coefficient": centering}
    trainer = build_trainer(RewardTrainer, RewardConfig, model, text_pairs, tmp_path, **options)
    config = TrainerConfig(stage={"type": "reward", "centering": centering or 0.0})
    pairs = random_pairs()
    our_loss, _ = compute_loss(model, None, config, pairs)
    whole = [
        {f"{side}_ids": pair["prompt_ids"] + pair[f"{side}_ids"] for side in ("chosen", "rejected")} for pair in pairs
    ]
    assert_same(our_loss, trainer.compute_loss(model, DataCollatorForPreference(pad_token_id=0)(whole)), model)


@pytest.mark.parametrize("stage", [Stage.SFT, Stage.CPT])
def test_cross_entropy(models: tuple[Any, Any], tokenizer: Any, tmp_path: Path, stage: Stage) -> None:
    data = Dataset.from_list([{"text": "A node reads documents."}] * 4)
    trainer = build_trainer(SFTTrainer, SFTConfig, models[0], data, tmp_path, processing_class=tokenizer)
    torch.manual_seed(7)
    rows = [random_ids(length) for length in (9, 4, 12, 2)]
    prompt = 3 if stage is Stage.SFT else 1
    examples = [{"input_ids": ids, "labels": [IGNORED] * min(prompt, len(ids)) + ids[prompt:]} for ids in rows]
    our_loss, batch = compute_loss(models[0], None, TrainerConfig(stage=stage), examples)
    assert_same(our_loss, trainer.compute_loss(models[0], dict(batch)), models[0])


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_distill_is_the_divergence_of_trl(beta: float, temperature: float, tiny_model: Path) -> None:
    """The same student, teacher and batch through TRL's function and our stage: value and gradient."""
    stage = Stage.DISTILL.settings(teacher="teacher", beta=beta, temperature=temperature)
    config, spec = TrainerConfig(stage=stage), STAGES[Stage.DISTILL]
    prompts, answers = ([random_ids(length) for length in lengths] for lengths in ((5, 3, 8), (4, 9, 6)))
    rows = [
        {"input_ids": prompt + answer, "labels": [IGNORED] * len(prompt) + answer}
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    batch, teacher = spec.collate(rows, 0), load_model(tiny_model, "causal", seed=2)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        reference, teacher_BTV = spec.score(teacher, batch, Head.FULL), teacher(**inputs).logits
    model = load_model(tiny_model, "causal", seed=1)
    total, _ = spec.loss(batch, spec.score(model, batch, Head.FULL), reference, config)
    (total / spec.units(batch)).backward()
    gradients = [value.grad.clone() for value in model.parameters() if value.grad is not None]
    model.zero_grad()
    trl_loss = load_gkd().generalized_jsd_loss(
        model(**inputs).logits[:, :-1], teacher_BTV[:, :-1], batch["labels"][:, 1:], beta, temperature
    )
    trl_loss.backward()
    assert trl_loss.item() > 1e-3
    torch.testing.assert_close((total / spec.units(batch)).detach(), trl_loss.detach(), atol=1e-6, rtol=1e-5)
    for expected_gradient, value in zip(
        gradients, (parameter for parameter in model.parameters() if parameter.grad is not None), strict=True
    ):
        torch.testing.assert_close(expected_gradient, value.grad, atol=1e-6, rtol=1e-4)
