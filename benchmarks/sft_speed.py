"""How many tokens does SFT train per CPU second, beside TRL and beside a bare PyTorch loop?

Rows have chat lengths (lognormal, mean 128 tokens, at most 512), the second half of each is the answer. The model is a
random Llama of 5.3 M parameters, all of which move. Only real tokens count, padding does not.

    native        our engine as a job has it: length buckets, and bf16 where it was measured to pay on this CPU
    TRL default   SFTConfig as it comes (batches of 8, bf16, gradient checkpointing); its rate needs fewer rows
    TRL packed    the fastest of TRL's documented settings here: packing, bf16 (where the CPU has it), no gradient
                  checkpointing; two blocks of 512 are a step, about the tokens of eight rows
    same batches  fp32, padded, the very same batches: ours, TRL's without gradient checkpointing, and a bare loop that
                  computes no more than we do, so that what is left is the engine's own cost

    python -m benchmarks.sft_speed
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from trl.trainer.sft_config import SFTConfig

from benchmarks.harness import Row, alternate, finish, median, size
from benchmarks.trainers import (
    LIKE_OURS,
    LONGEST,
    assembled,
    build_model,
    build_trl,
    chat_length,
    in_training_order,
    quiet,
    run_ours,
    run_trl,
    steps_of,
    text_of,
)
from trainyard.backends.native.assembly import NativeRun
from trainyard.data.rows import Message, SftRow
from trainyard.spec.axes.data import Port
from trainyard.train.contracts import IGNORED
from trainyard.train.model.precision import cpu_bf16

ROWS, FEW_ROWS = size(192, 8), size(48, 8)
BATCH = 8


def chat_rows(count: int) -> list[SftRow]:
    chance = random.Random(0)
    return [chat_row(chance, chat_length(chance)) for _ in range(count)]


def chat_row(chance: random.Random, length: int) -> SftRow:
    """A question and an answer; the template adds two tokens to each."""
    prompt_length = length // 2
    return SftRow(
        [
            Message("user", text_of(chance, prompt_length - 2)),
            Message("assistant", text_of(chance, length - prompt_length - 2)),
        ]
    )


def config(**hyperparameters: Any) -> dict[str, Any]:
    hyper = {"epochs": 1, "batch_size": BATCH, "learning_rate": 2e-5, "max_length": LONGEST, "warmup_ratio": 0}
    return {"stage": "sft", "method": "full", "hyperparameters": {**hyper, **hyperparameters}}


def tokens(run: NativeRun) -> float:
    return float(sum(run.prepared.widths))


def bare_loop(run: NativeRun) -> Callable[[], float]:
    """The same steps as a person would write them, without an engine: same rows, batches, loss, clip and optimizer."""
    model, hyper = run.policy.model, run.job.config.hyperparameters
    peak = hyper.learning_rate or 0.0
    batches = [[run.feed.examples[row] for row in rows] for step in steps_of(run) for rows in step]

    def variant() -> float:
        torch.use_deterministic_algorithms(False)
        parameters = list(model.parameters())
        optimizer = torch.optim.AdamW(parameters, lr=peak, weight_decay=0.0, fused=True)
        rate = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=len(batches))
        model.train()
        for examples in batches:
            width = max(len(example["input_ids"]) for example in examples)
            ids = torch.tensor([e["input_ids"] + [0] * (width - len(e["input_ids"])) for e in examples])
            labels = torch.tensor([e["labels"] + [IGNORED] * (width - len(e["labels"])) for e in examples])
            mask = torch.tensor([[1] * len(e["input_ids"]) + [0] * (width - len(e["input_ids"])) for e in examples])
            hidden = model.model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
            learned = labels[:, 1:] != IGNORED
            logits = model.lm_head(hidden[:, :-1][learned])
            loss = cross_entropy(logits, labels[:, 1:][learned])
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, hyper.max_grad_norm)
            optimizer.step()
            rate.step()
            optimizer.zero_grad()
            assert loss.item() > 0
        return tokens(run)

    return variant


def variants(folder: Path) -> dict[str, Callable[[], float]]:
    base, rows = build_model(folder / "model"), chat_rows(ROWS)
    native = assembled(folder / "native", base, Port.SFT, rows, config())
    few = {**config(precision="fp32"), "engine": {"batching": "padded"}}
    same = assembled(folder / "same", base, Port.SFT, rows[:FEW_ROWS], few)
    in_order = in_training_order(same)

    def trl(name: str, examples: Sequence[Any], **arguments: Any) -> Any:
        training_arguments = {"num_train_epochs": 1, "max_length": LONGEST, **arguments}
        return build_trl("sft", SFTConfig, base, folder / name, examples, **training_arguments)

    packing = {"packing": True, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    fast = {"gradient_checkpointing": False, "bf16": cpu_bf16() is not None}
    return {
        "native": run_ours(native, tokens(native)),
        "TRL default": run_trl(trl("default", same.feed.examples), tokens(same)),
        "TRL packed": run_trl(trl("packed", native.feed.examples, **packing, **fast), tokens(native)),
        "native, same batches": run_ours(same, tokens(same)),
        "TRL, same batches": run_trl(
            trl("same-trl", in_order, per_device_train_batch_size=BATCH, **LIKE_OURS), tokens(same)
        ),
        "bare, same batches": bare_loop(same),
    }


def main() -> int:
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        samples = alternate(variants(Path(folder)), rounds=5)
    rate = {name: median(variant_samples, "per_cpu_second") for name, variant_samples in samples.items()}
    native, same = rate["native"], rate["native, same batches"]
    metric = "tokens per CPU second"
    rows = [
        Row.ratio_at_least(metric, native, rate["TRL default"], "TRL default", 3),
        Row.ratio_at_least(metric, native, rate["TRL packed"], "TRL packed, no recompute", 1.5),
        Row.ratio_at_least(f"{metric}, same batches", same, rate["TRL, same batches"], "TRL", 1.2),
        Row.ratio_at_least(f"{metric}, same batches", same, rate["bare, same batches"], "bare loop", 0.98),
    ]
    return finish("sft_speed", rows, samples)


if __name__ == "__main__":
    sys.exit(main())
