"""A child process that trains a random Llama for three steps on the CPU and prints its peak resident memory.

`python memory_child.py SETTINGS` with JSON settings: method, hidden, layers, feed_forward, vocabulary, rows, length,
rank, dropout, checkpointing, head. Prints {"imports": bytes, "peak": bytes}.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from bitsandbytes.nn import Linear4bit
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from trainyard.train.head import Head, label_logprobs


def peak_bytes() -> int:
    # Not getrusage: its maximum counts what the parent held when it forked.
    with open("/proc/self/status") as status:
        peak = next(line for line in status if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024


def build(given: dict[str, Any]) -> Any:
    model: Any = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=given["hidden"],
            num_hidden_layers=given["layers"],
            intermediate_size=given["feed_forward"],
            vocab_size=given["vocabulary"],
            num_attention_heads=8,
            num_key_value_heads=8,
        )
    )
    if given["method"] == "freeze":
        model.requires_grad_(False)
        for module in (*model.model.layers[-2:], model.model.norm):
            module.requires_grad_(True)
    if given["method"] == "qlora":
        quantise(model)
    if given["method"] in ("lora", "qlora"):
        rank, dropout = given["rank"], given["dropout"]
        model = get_peft_model(model, LoraConfig(r=rank, lora_dropout=dropout, target_modules="all-linear"))
    if given["checkpointing"]:
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


def main(given: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    imports = peak_bytes()
    model = build(given)
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad])
    for _ in range(3):
        ids = torch.randint(0, given["vocabulary"], (given["rows"], given["length"]))
        batch = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
        (-label_logprobs(model, batch, Head(given["head"])).logprobs_N.mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(json.dumps({"imports": imports, "peak": peak_bytes()}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
