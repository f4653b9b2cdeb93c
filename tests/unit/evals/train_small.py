"""Makes the models that the evaluation tests compare: `train_small(base, folder)`.

It leaves `candidate` (an adapter trained on the answers), `control` (an adapter that changes nothing), `broken`
(weights that are NaN) and `expected.json`: the loss per row of base and candidate by transformers' own loss.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from trainyard.data.rows import SftRow, read_rows
from trainyard.spec.axes.data import Port
from trainyard.stores.models import chat_template_sha256, model_sha256
from trainyard.train.rows.tokens import encode_sft


def losses(model: Any, examples: list[dict[str, list[int]]]) -> list[float]:
    losses = []
    with torch.inference_mode():
        for example in examples:
            batch = {name: torch.tensor([value]) for name, value in example.items()}
            losses.append(float(model(**batch).loss))
    return losses


def train_small(base: Path, folder: Path) -> None:
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(base)
    rows = [row for row in read_rows(folder / "rows.arrow", Port.SFT) if isinstance(row, SftRow)]
    examples, _ = encode_sft(rows, tokenizer, 512)
    model = AutoModelForCausalLM.from_pretrained(base)
    before = losses(model.eval(), examples)
    adapted: Any = get_peft_model(model, LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    adapted.save_pretrained(folder / "control")
    optimizer = torch.optim.AdamW([weight for weight in adapted.parameters() if weight.requires_grad], lr=1e-2)
    for step in range(60):
        example = examples[step % len(examples)]
        adapted(**{name: torch.tensor([value]) for name, value in example.items()}).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    adapted.save_pretrained(folder / "candidate")
    tokenizer.save_pretrained(folder / "candidate" / "tokenizer")
    (folder / "expected.json").write_text(
        json.dumps({"baseline": before, "candidate": losses(adapted.eval(), examples)})
    )
    shutil.copytree(folder / "candidate", folder / "broken")
    weights = load_file(folder / "broken" / "adapter_model.safetensors")
    save_file(
        {name: value * float("nan") for name, value in weights.items()}, folder / "broken/adapter_model.safetensors"
    )
    training = {
        "base_model": "tiny",
        "base_path": str(base),
        "base_sha256": model_sha256(base),
        "chat_template_sha256": chat_template_sha256(base),
        "losses": [[1, 6.0, 0.01], [60, 1.0, 0.0]],
        "tokens": {"read": 10, "trained": 4, "masked": 6, "truncated": 0, "dropped": 0},
    }
    for name in ("candidate", "control", "broken"):
        record = {**training, "control": "shuffled_answers" if name == "control" else None}
        (folder / name / "training.json").write_text(json.dumps(record))
