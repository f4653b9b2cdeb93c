"""Our SFT against TRL's own: the same loss on the same batch, the same tokens for the same conversation."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from tests.small_jobs import Jobs, conversation, write_data
from trainyard.backends.trl.data import prepare
from trainyard.backends.trl.loading import load_base, with_adapter
from trainyard.backends.trl.program import build_trainer
from trainyard.backends.trl.trainer import OurSFTTrainer
from trainyard.compute.child import Events
from trainyard.spec.axes.devices import Precision
from trainyard.train.rows.tokens import IGNORED, encode_sft


@pytest.fixture(scope="module")
def trainer(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> OurSFTTrainer:
    folder = tmp_path_factory.mktemp("parity")
    job = Jobs(tiny_model, write_data(folder / "data"), folder / "locks")()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepared = prepare(job, "cpu", Events(folder / "events.jsonl"))
        built = build_trainer(prepared, with_adapter(load_base(job, "cpu"), job), folder, Precision.FP32)
    assert isinstance(built, OurSFTTrainer)
    return built


def get_batch(trainer: OurSFTTrainer) -> dict[str, Any]:
    return next(iter(trainer.get_train_dataloader()))


@pytest.mark.parametrize("num_items_in_batch", [None, 777])
def test_loss_and_gradient_are_trls(trainer: OurSFTTrainer, num_items_in_batch: int | None) -> None:
    """TRL computes the head in chunks and again in the backward pass; ours holds the logits. Same numbers."""
    batch = get_batch(trainer)
    results = []
    for takes_positions in (True, False):
        trainer.takes_positions = takes_positions
        trainer.model.zero_grad()
        loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=num_items_in_batch)
        loss.backward()
        gradients = [parameter.grad.flatten() for parameter in trainer.model.parameters() if parameter.grad is not None]
        results.append((loss.item(), torch.cat(gradients)))
    assert results[0][0] == pytest.approx(results[1][0], abs=1e-5)
    torch.testing.assert_close(results[0][1], results[1][1], atol=1e-6, rtol=1e-4)


def test_labels_are_those_of_the_templates_generation_marks(tiny_model: Path) -> None:
    """The template marks what the assistant says; we find the same tokens without the marks."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    row = conversation("What is a node?", "A node reads documents.")
    ((example,), _) = encode_sft([row], tokenizer, 512)
    turns = [{"role": message.role, "content": message.content} for message in row.messages]
    templated = tokenizer.apply_chat_template(turns, return_dict=True, return_assistant_tokens_mask=True)
    length = len(example["input_ids"])
    assert example["input_ids"] == templated["input_ids"][:length]
    assert [int(label != IGNORED) for label in example["labels"]] == templated["assistant_masks"][:length]
    assert tokenizer.decode(templated["input_ids"][length:]) == "\n"
