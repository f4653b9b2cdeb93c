"""A child process that trains a random Llama for three steps on the CPU and prints its peak resident memory.

`python memory_child.py SETTINGS` with JSON settings: method, hidden, layers, feed_forward, vocabulary, rows, length,
rank, dropout, checkpointing, head, and `latent` with the settings of a technique. Prints {"imports": bytes, "peak":
bytes}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from bitsandbytes.nn import Linear4bit
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from tests.unit.train.losses.stage_rows import TOKENIZER
from trainyard.spec.axes.stages import Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Head
from trainyard.train.latent.rows import ANSWER, LENGTHS, PROMPT, STEPS
from trainyard.train.latent.table import attach
from trainyard.train.losses.table import STAGES
from trainyard.train.model.head import label_logprobs


def peak_bytes() -> int:
    # Not getrusage: its maximum counts what the parent held when it forked.
    with open("/proc/self/status") as status:
        peak = next(line for line in status if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024


def build(sizes: dict[str, Any]) -> Any:
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=sizes["hidden"],
            num_hidden_layers=sizes["layers"],
            intermediate_size=sizes["feed_forward"],
            vocab_size=sizes["vocabulary"],
            num_attention_heads=8,
            num_key_value_heads=8,
        )
    )
    if sizes["method"] == "freeze":
        model.requires_grad_(False)
        for module in (*model.model.layers[-2:], model.model.norm):
            module.requires_grad_(True)
    if sizes["method"] == "qlora":
        quantise(model)
    if sizes["method"] in ("lora", "qlora"):
        rank, dropout = sizes["rank"], sizes["dropout"]
        model = get_peft_model(model, LoraConfig(r=rank, lora_dropout=dropout, target_modules="all-linear"))
    if sizes["checkpointing"]:
        model.gradient_checkpointing_enable()
        model.enable_input_require_grads()
    return model.train()


def quantise(model: Any) -> None:
    for block in model.model.layers:
        for name, layer in list(block.named_modules()):
            if type(layer) is torch.nn.Linear:
                parent, _, leaf = name.rpartition(".")
                held = Linear4bit(layer.in_features, layer.out_features, bias=False, quant_type="nf4")
                held.load_state_dict(layer.state_dict())
                setattr(block.get_submodule(parent), leaf, held.to("cpu"))


def plain_score(model: Any, sizes: dict[str, Any]) -> Callable[[], torch.Tensor]:
    """The loss of random rows."""

    def score() -> torch.Tensor:
        ids = torch.randint(0, sizes["vocabulary"], (sizes["rows"], sizes["length"]))
        batch = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
        return -label_logprobs(model, batch, Head(sizes["head"])).logprobs_N.mean()

    return score


def latent_score(model: Any, sizes: dict[str, Any]) -> Callable[[], torch.Tensor]:
    """The loss of a technique on random rows in the form that it ends with: half of it prompt, four steps."""
    settings = Stage.SFT.settings(latent=sizes["latent"])
    config = TrainerConfig(stage=settings, method="full", hyperparameters={"max_length": sizes["length"]})
    stage, latent = STAGES[Stage.SFT].chosen(config), settings.technique
    assert latent is not None, sizes
    attach(model, TOKENIZER, latent, seed=0)

    def score() -> torch.Tensor:
        examples = [
            make_row(torch.randint(0, sizes["vocabulary"], (sizes["length"],)).tolist()) for _ in range(sizes["rows"])
        ]
        if stage.at_epoch is not None:
            examples = [stage.at_epoch(example, row, 1000) for row, example in enumerate(examples)]
        batch = stage.collate(examples, 0)
        return stage.loss(batch, stage.score(model, batch, Head(sizes["head"])), None, config)[0]

    return score


def make_row(ids: list[int]) -> dict[str, Any]:
    """A row as stage sft and as techniques with steps encode it."""
    half = len(ids) // 2
    prompt, steps, answer = ids[:half], ids[half : half + 4], ids[half + 4 :]
    plain = {"input_ids": ids, "labels": ids}
    return {**plain, PROMPT: prompt, STEPS: steps, LENGTHS: [1] * 4, ANSWER: answer}


def main(sizes: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    imports = peak_bytes()
    model = build(sizes)
    score = latent_score(model, sizes) if sizes.get("latent") else plain_score(model, sizes)
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    for _ in range(3):
        score().backward()
        optimizer.step()
        optimizer.zero_grad()
    print(json.dumps({"imports": imports, "peak": peak_bytes()}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
