"""The starter's training program: `python -m trainyard.train.starter.pretrain FOLDER`.

It trains a tokenizer, packs rows, pretrains shortly, and writes the model folder with its card (`README.md`, every
value taken from the manifest). Rows are packed to a token budget: passages follow each other, separated by
`<|endoftext|>`, and are cut every 256 tokens, so that no position is padding. Matrices move by Muon, embeddings and
norms by AdamW: at a million tokens that ends about 0.3 nats lower than AdamW alone. Runs under the contract of a
supervised child: `spec.json` in, `events.jsonl` and `error.json` out.

Shapes: B rows, T tokens, V vocabulary.
"""

from __future__ import annotations

import json
import math
import os
import platform
import random
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trainyard.errors import TrainyardError
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.devices import Precision
from trainyard.stores.whole import write_json_durably
from trainyard.train.model.precision import choose_precision, cpu_bf16
from trainyard.train.optimizers import Muon, scale_by_shape
from trainyard.train.session.determinism import prefer_deterministic
from trainyard.train.starter import corpus as starter
from trainyard.train.starter.corpus import PACKAGES, Passage, StarterRecipe, corpus_sha256, corpus_sources, read_corpus

CARD = """---
license: apache-2.0
language: en
library_name: transformers
tags: [trainyard, starter]
---

# Trainyard's starter model

A Llama with {parameters:,} parameters, trained from random weights by Trainyard itself, so that every chain can be
tried without a hub, an account or a GPU. The weights are stored in bfloat16.

## Use and limits

It is a base for small adapters: after fine-tuning on a small handbook it quotes the handbook's sentences. Without one
it writes short English sentences in the style of documentation and knows hardly any facts. It has had no safety
training: do not use it for anything that a reader should rely on.

## Training data

The docstrings of these packages, as they are installed with Trainyard ({passages:,} passages; corpus digest
`{corpus_sha256}`):

| package | version | licence |
|---|---|---|
{packages}

One passage of a hundred, chosen by its digest, was not trained on.

## Training

| | |
|---|---|
| held-out loss, nats per token | {heldout_loss} |
| training loss, first and last fiftieth of the steps | {first_loss}, {last_loss} |
| tokens | {tokens:,} in {steps:,} steps |
| seed | {seed} |
| precision | {precision} ({precision_why}); Muon's products in {newton_schulz} |
| threads, seconds | {threads}, {seconds} |
| versions | {versions} |
| recipe digest | `{recipe_sha256}` |

`trainyard starter build` trains it again from the same recipe and corpus; the held-out losses differ by less than 2 %.
"""


def model_card(manifest: JsonMapping) -> str:
    """Return the card as Markdown, with the metadata block that the Hub reads."""
    packages = [f"| {name} | {entry['version']} | {entry['license']} |" for name, entry in manifest["packages"].items()]
    return CARD.format(
        **{
            **manifest,
            "packages": "\n".join(packages),
            "first_loss": manifest["losses"][0][1],
            "last_loss": manifest["losses"][-1][1],
            "steps": manifest["recipe"]["steps"],
            "seed": manifest["recipe"]["seed"],
            "versions": ", ".join(f"{name} {version}" for name, version in manifest["versions"].items()),
        }
    )


REPORT_EVERY_S = 1.0
HELD_OUT_BATCHES = 16
"""Of the recipe's rows: 65,536 tokens."""


def main(folder: Path) -> int:
    """Carry out `folder/spec.json`, leave the model in `folder/model`. Returns the exit status."""
    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    try:
        pretrain(folder, spec)
    except (TrainyardError, OSError, RuntimeError, MemoryError) as error:
        problem = error if isinstance(error, TrainyardError) else unforeseen(error)
        (folder / "error.json").write_text(json.dumps(problem.as_dict()), encoding="utf-8")
        return 1
    return 0


def unforeseen(error: Exception) -> TrainyardError:
    return TrainyardError(
        "The starter model could not be trained.",
        why=f"{type(error).__name__}: {error}",
        do="Free memory or disk space and call `trainyard starter build` again.",
        code="E-STARTER",
    )


def pretrain(folder: Path, spec: JsonObject) -> None:
    recipe = StarterRecipe(**spec["recipe"])
    sources = corpus_sources(spec["packages"])
    torch.set_num_threads(spec["threads"])
    prefer_deterministic(strict=True)
    started = time.monotonic()
    passages = list(read_corpus(sources))
    trained_on = [passage for passage in passages if not passage.held_out]
    tokenizer = train_tokenizer(trained_on, recipe)
    rows = pack_rows(trained_on, tokenizer, recipe)
    model = new_model(tokenizer, recipe)
    choice = choose_precision(Precision.AUTO, "cpu", native=cpu_bf16(), hidden=recipe.hidden)
    losses = train(model, rows, recipe, folder, choice.precision)
    target = folder / "model"
    save(model, tokenizer, target)
    heldout = pack_rows([passage for passage in passages if passage.held_out], tokenizer, recipe)
    manifest = {
        "key": spec["key"],
        "recipe": spec["recipe"],
        "recipe_sha256": recipe.sha256,
        "corpus_sha256": corpus_sha256(passages),
        "heldout_loss": round(heldout_loss(model, heldout), 4),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "pre_tokenizer": "byte-level BPE with GPT-2's regular expression",
        "packages": {
            source.name: {"version": source.version, "license": PACKAGES.get(source.name, "unknown")}
            for source in sources
        },
        "passages": len(passages),
        "tokens": recipe.steps * recipe.batch_rows * recipe.row_tokens,
        "losses": losses,
        "precision": choice.precision.value,
        "precision_why": choice.why,
        "newton_schulz": "bf16" if cpu_bf16() else "fp32",
        "threads": spec["threads"],
        "seconds": round(time.monotonic() - started, 1),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__.partition("+")[0],
            "transformers": transformers.__version__,
        },
    }
    (target / starter.CARD_FILE).write_text(model_card(manifest), encoding="utf-8")
    write_json_durably(target / starter.MANIFEST, manifest)


@torch.no_grad()
def heldout_loss(model: LlamaForCausalLM, batches: Iterator[torch.Tensor]) -> float:
    """Mean loss per token of the saved weights on the first held-out batches."""
    model.eval()
    losses = []
    for _ in range(HELD_OUT_BATCHES):
        ids_BT = next(batches)
        logits_BTV = model(input_ids=ids_BT[:, :-1], use_cache=False).logits
        losses.append(torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1), ids_BT[:, 1:].flatten()).item())
    return sum(losses) / len(losses)


def train_tokenizer(passages: list[Passage], recipe: StarterRecipe) -> PreTrainedTokenizerFast:
    """Byte-level BPE whose pre-tokenizer is declared: GPT-2's split, no added space."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocabulary,
        special_tokens=[starter.PAD, starter.END_OF_TEXT, starter.TURN_START, starter.TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator((passage.text for passage in passages), trainer)
    fast: Any = PreTrainedTokenizerFast
    tokenizer: PreTrainedTokenizerFast = fast(
        tokenizer_object=bpe,
        pad_token=starter.PAD,
        eos_token=starter.TURN_END,
        bos_token=None,
        chat_template=starter.CHAT_TEMPLATE,
        model_max_length=recipe.positions,
        clean_up_tokenization_spaces=False,
    )
    return tokenizer


def pack_rows(
    passages: list[Passage], tokenizer: PreTrainedTokenizerFast, recipe: StarterRecipe
) -> Iterator[torch.Tensor]:
    """Batches of token ids (B, T + 1), without end: each pass over the passages has its own order."""
    encoded = tokenizer([render_passage(passage, tokenizer) for passage in passages], add_special_tokens=False)[
        "input_ids"
    ]
    width = recipe.row_tokens + 1
    shuffle = random.Random(recipe.seed)
    pending: list[int] = []
    while True:
        for index in shuffle.sample(range(len(encoded)), len(encoded)):
            pending += encoded[index]
            if len(pending) >= recipe.batch_rows * width:
                batch, pending = pending[: recipe.batch_rows * width], pending[recipe.batch_rows * width :]
                yield torch.tensor(batch).view(recipe.batch_rows, width)


def render_passage(passage: Passage, tokenizer: PreTrainedTokenizerFast) -> str:
    if passage.question is None:
        return passage.text + starter.END_OF_TEXT
    turns = [{"role": "user", "content": passage.question}, {"role": "assistant", "content": passage.text}]
    return str(tokenizer.apply_chat_template(turns, tokenize=False)) + starter.END_OF_TEXT


def new_model(tokenizer: PreTrainedTokenizerFast, recipe: StarterRecipe) -> LlamaForCausalLM:
    torch.manual_seed(recipe.seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=recipe.hidden,
            intermediate_size=recipe.intermediate,
            num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads,
            num_key_value_heads=recipe.heads,
            max_position_embeddings=recipe.positions,
            tie_word_embeddings=True,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            bos_token_id=None,
        )
    )


def train(
    model: LlamaForCausalLM, rows: Iterator[torch.Tensor], recipe: StarterRecipe, folder: Path, precision: Precision
) -> list[list[float]]:
    """Run the recipe's steps; returns [step, mean loss since the last entry] about fifty times."""
    optimizers = new_optimizers(model, recipe)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_multiplier(step, recipe))
        for optimizer in optimizers
    ]
    parent, every, losses, recent = os.getppid(), max(1, recipe.steps // 50), [], []
    last_report, started = 0.0, time.monotonic()
    model.train()
    for step in range(1, recipe.steps + 1):
        ids_BT = next(rows)
        with autocast_bf16(bf16=precision is Precision.BF16):
            logits_BTV = model(input_ids=ids_BT[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits_BTV.flatten(0, 1).float(), ids_BT[:, 1:].flatten())
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        recent.append(loss.item())
        if step % every == 0 or step == recipe.steps:
            losses.append([step, round(sum(recent) / len(recent), 4)])
            recent = []
        if time.monotonic() - last_report > REPORT_EVERY_S or step == recipe.steps:
            last_report = time.monotonic()
            left_s = (time.monotonic() - started) / step * (recipe.steps - step)
            emit(folder, event="progress", step=step, total_steps=recipe.steps, loss=loss.item(), left_s=left_s)
        if os.getppid() != parent:
            raise TrainyardError("The program that asked for the starter model is gone.", code="E-STARTER")
    check_finite(model, losses)
    return losses


def new_optimizers(model: LlamaForCausalLM, recipe: StarterRecipe) -> list[torch.optim.Optimizer]:
    matrices = [parameter for name, parameter in model.model.layers.named_parameters() if parameter.ndim == 2]
    matrix_ids = {id(parameter) for parameter in matrices}
    vectors = [parameter for parameter in model.parameters() if id(parameter) not in matrix_ids]
    return [
        Muon(matrices, lr=recipe.matrix_learning_rate, weight_decay=0.0, scale=scale_by_shape),
        torch.optim.AdamW(vectors, lr=recipe.vector_learning_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]


def learning_rate_multiplier(step: int, recipe: StarterRecipe) -> float:
    """Linear warm-up, a plateau, then linearly to a hundredth over the last half."""
    if step < recipe.warmup_steps:
        return (step + 1) / recipe.warmup_steps
    left = (recipe.steps - step) / (recipe.steps * 0.5)
    return max(0.01, min(1.0, left))


def autocast_bf16(*, bf16: bool) -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16)


def check_finite(model: LlamaForCausalLM, losses: list[list[float]]) -> None:
    finite = all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    if not finite or not all(math.isfinite(loss) for _, loss in losses):
        raise TrainyardError(
            "The starter model's weights are not finite.",
            do="Report this with the manifest of the machine; `trainyard doctor` prints it.",
            code="E-STARTER",
        )


def emit(folder: Path, **event: Any) -> None:
    with (folder / "events.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps({**event, "time": time.time()}) + "\n")


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, target: Path) -> None:
    new_config: Any = GenerationConfig
    model.generation_config = new_config(
        eos_token_id=[tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids(starter.END_OF_TEXT)],
        pad_token_id=tokenizer.pad_token_id,
        do_sample=False,
    )
    model.bfloat16().save_pretrained(target)
    model.float()  # what was rounded stays rounded: the held-out loss is that of the saved weights
    tokenizer.save_pretrained(target)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
