"""Fine-tune a chat model in one flat loop: what the engine does, without its verbs, pauses and checkpoints.

    python examples/sft_loop.py MODEL ROWS.jsonl OUT

MODEL is a folder or a name on the Hub; a line of ROWS.jsonl is {"messages": [{"role": ..., "content": ...}, ...]}; OUT
gets the adapter. To be read from top to bottom: plain torch, but for two things that are long and not about training,
the tokens of a conversation (`encode_sft`) and the weights that move (`build`). A test holds this loop to the engine:
on the same rows it gives the same losses and weights, to the last bit.

Shapes: B rows, T positions, N labelled positions, D hidden, V vocabulary.
"""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer

from trainyard.data.rows import Message, SftRow
from trainyard.spec.training import TrainerConfig, resolve_trainer
from trainyard.train.contracts import Encoded
from trainyard.train.methods.contract import Policy, PolicyRequest
from trainyard.train.methods.table import build, parameter_groups, save
from trainyard.train.rows.tokens import encode_sft, require_targets

IGNORED = -100
"""Label of a token that is not learned: the prompt's and the padding's."""


def train(config: TrainerConfig, base: str, rows: list[SftRow], device: str = "cpu") -> tuple[Policy, list[float]]:
    """Train on the assistant's turns; the policy and the loss of each step.

    `config` is a resolved one, for stage sft with AdamW, a linear schedule and fp32.
    """
    hyper = config.hyperparameters

    # Rows become token ids, and labels where the assistant speaks.
    tokenizer = AutoTokenizer.from_pretrained(base)
    examples, ledger = encode_sft(rows, tokenizer, hyper.max_length)
    require_targets(ledger)

    # The base, with an adapter that starts as nothing.
    policy = build(PolicyRequest(config, base, "causal", device), with_reference=False)
    model = policy.model
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {key: group[key] for key in ("params", "lr", "weight_decay")} for group in parameter_groups(policy, config)
    ]
    peaks = [group["lr"] for group in groups]
    optimizer = torch.optim.AdamW(groups, fused=True)

    # How long it goes on. A step is `batch_size * gradient_accumulation` rows.
    rows_per_step = hyper.batch_size * hyper.gradient_accumulation
    steps_per_epoch = math.ceil(len(examples) / rows_per_step)
    total_steps = hyper.max_steps or math.ceil((hyper.epochs or 3.0) * steps_per_epoch)
    warmup_steps = hyper.warmup(total_steps)

    torch.manual_seed(hyper.seed)
    losses = []
    for step in range(total_steps):
        # The rows of this step, out of an order that each epoch shuffles anew.
        epoch, at = divmod(step, steps_per_epoch)
        order = shuffled(len(examples), hyper.seed, epoch)[at * rows_per_step : (at + 1) * rows_per_step]
        step_examples = [examples[row] for row in order]
        targets = sum(label != IGNORED for example in step_examples for label in example["labels"][1:])

        # The learning rate rises in a line to its peak, and falls in a line to zero.
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * multiplier(step, total_steps, warmup_steps)

        # Gradients of the mean over the step's labelled tokens, a micro-batch at a time.
        loss = 0.0
        for start in range(0, len(step_examples), hyper.batch_size):
            batch = collate(step_examples[start : start + hyper.batch_size], tokenizer.pad_token_id)
            batch = {name: value.to(device) for name, value in batch.items()}
            part = cross_entropy_sum(model, batch) / targets
            part.backward()
            loss += part.item()

        torch.nn.utils.clip_grad_norm_(trainable, hyper.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss)
        print(f"step {step + 1}/{total_steps}  loss {loss:.4f}", flush=True)
    return policy, losses


def shuffled(count: int, seed: int, epoch: int) -> list[int]:
    order = list(range(count))
    random.Random(f"{seed}:{epoch}").shuffle(order)
    return order


def multiplier(step: int, total: int, warmup: int) -> float:
    """Factor of the peak learning rate for the step after `step` steps."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return max(0.0, 1.0 - (step - warmup) / max(1, total - warmup))


def collate(examples: list[Encoded], pad_id: int) -> dict[str, torch.Tensor]:
    """Rows filled up to the longest one: (B, T) each."""
    ids = [torch.tensor(example["input_ids"]) for example in examples]
    labels = [torch.tensor(example["labels"]) for example in examples]
    return {
        "input_ids": pad_sequence(ids, batch_first=True, padding_value=pad_id),
        "attention_mask": pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
        "labels": pad_sequence(labels, batch_first=True, padding_value=IGNORED),
    }


def cross_entropy_sum(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """- sum over labelled tokens of log p(token | everything before it).

    Only the positions before a label go through the output layer: most of a chat row is prompt.
    """
    whole = model.get_base_model() if hasattr(model, "get_base_model") else model  # PEFT's layers sit inside of it
    decoder, output_layer = whole.base_model, whole.get_output_embeddings()
    hidden_BTD = decoder(
        input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], use_cache=False
    ).last_hidden_state
    target_BT = batch["labels"][:, 1:]
    rows_N, positions_N = (target_BT != IGNORED).nonzero(as_tuple=True)
    logits_NV = output_layer(hidden_BTD[rows_N, positions_N])
    return functional.cross_entropy(logits_NV.float(), target_BT[rows_N, positions_N], reduction="none").sum()


def read(path: Path) -> list[SftRow]:
    """The conversations of a JSONL file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [SftRow([Message(**message) for message in json.loads(line)["messages"]]) for line in lines if line.strip()]


def main(base: str, rows: str, out: str) -> None:
    config = resolve_trainer(TrainerConfig.model_validate({"hyperparameters": {"precision": "fp32"}}), base)
    policy, _ = train(config, base, read(Path(rows)))
    save(policy, PolicyRequest(config, base, "causal", "cpu"), Path(out))


if __name__ == "__main__":
    main(*sys.argv[1:4])
