"""A whole fine-tuning in one file: plain PyTorch, transformers and peft. Edit it as you like.

    python train.py spec.json

Reads the spec and the rows that it names, trains, and leaves the adapter or the model in `output`. Ctrl-C or SIGTERM
saves a checkpoint and ends with exit code 75; started again, it goes on from there. Stages: cpt, sft, dpo, reward.
Methods: full, lora, dora, lora_plus, oft, freeze.

Shapes: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import peft
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy, logsigmoid, relu
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

IGNORED = -100
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{{ eos_token if message.role == 'assistant' }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
PAIRED = ("dpo", "reward")
Example = dict[str, list[int]]
stop_asked = False


def main(spec_path: str) -> None:
    place = Path(spec_path).resolve()
    os.chdir(place.parent)  # the paths in a spec start where it is
    spec = json.loads(place.read_text(encoding="utf-8"))
    hyper = spec["hyperparameters"]
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask_to_stop)
    torch.set_num_threads(spec["threads"])
    torch.manual_seed(hyper["seed"])
    device = pick_device(spec["device"])
    tokenizer = load_tokenizer(spec)
    examples, account = encode(spec, tokenizer)
    tell("ledger", **account)
    model = build_model(spec, tokenizer).to(device)
    train(spec, model, tokenizer, examples, account)


def ask_to_stop(_signal: int, _frame: object) -> None:
    global stop_asked  # noqa: PLW0603 (a signal handler has nowhere else to write)
    stop_asked = True


def tell(event: str, **fields: Any) -> None:
    """Report: as a line of JSON to the file that a supervisor named, else for a person."""
    path = os.environ.get("TRAINYARD_EVENTS")
    if path is None:
        print(event, " ".join(f"{name}={value}" for name, value in fields.items()), flush=True)
        return
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")


def pick_device(asked: str) -> str:
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return next(name for name, present in here.items() if present) if asked == "auto" else asked


# Rows


def load_tokenizer(spec: dict[str, Any]) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(spec["base"], trust_remote_code=False)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.chat_template = tokenizer.chat_template or PLAIN_TEMPLATE
    return tokenizer


def encode(spec: dict[str, Any], tokenizer: Any) -> tuple[list[Any], dict[str, int]]:
    """Every row as {input_ids, labels}, or as a pair of them; and where every token went."""
    account = dict.fromkeys(("read", "trained", "masked", "truncated", "dropped"), 0)
    longest = spec["hyperparameters"]["max_length"]
    with open(spec["rows"], encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    found: list[Any]
    if spec["stage"] == "cpt":
        found = list(blocks(rows, tokenizer, longest))
    elif spec["stage"] in PAIRED:
        found = [pair(row, tokenizer) for row in rows]
    else:
        found = [conversation(row["messages"], tokenizer, row) for row in rows]
    examples = []
    for given in found:
        sides = [cut(side, longest, account) for side in (given if isinstance(given, list) else [given])]
        if all(any(label != IGNORED for label in side["labels"]) for side in sides):
            examples.append(sides if isinstance(given, list) else sides[0])
        else:
            for side in sides:
                drop(side, account)
    if not examples:
        raise SystemExit("No row has a token to learn.")
    return examples, account


def pair(row: dict[str, Any], tokenizer: Any) -> list[Example]:
    """Chosen and rejected, each after the prompt."""
    first = len(row["prompt"])
    return [conversation([*row["prompt"], *row[side]], tokenizer, row, first) for side in ("chosen", "rejected")]


def conversation(messages: list[dict[str, Any]], tokenizer: Any, row: dict[str, Any], first: int = 0) -> Example:
    """The ids of a conversation; the turns of the assistant from number `first` on are learned."""
    ids: list[int] = []
    labels: list[int] = []
    done = ""
    for at, message in enumerate(messages):
        if message["role"] != "assistant" or at < first:
            continue
        prompt = render(messages[:at], tokenizer, row, add_generation_prompt=True)
        whole = render(messages[: at + 1], tokenizer, row, add_generation_prompt=False)
        if not (prompt.startswith(done) and whole.startswith(prompt)):
            raise SystemExit("The chat template does not keep earlier turns as they are; set your own in this script.")
        answer = whole[len(prompt) :]
        # What follows the end of the turn (a newline, say) is no part of what is learned.
        end = answer.rfind(tokenizer.eos_token) if tokenizer.eos_token else -1
        learned = answer[: end + len(tokenizer.eos_token)] if end >= 0 else answer
        for text, own in ((prompt[len(done) :], False), (learned, True), (answer[len(learned) :], False)):
            more = tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
            ids += more
            labels += more if own and message.get("weight") != 0 else [IGNORED] * len(more)
        done = whole
    if labels:
        labels[0] = IGNORED  # nothing stands before it that could predict it
    return {"input_ids": ids, "labels": labels}


def render(messages: list[dict[str, Any]], tokenizer: Any, row: dict[str, Any], add_generation_prompt: bool) -> str:
    return str(
        tokenizer.apply_chat_template(
            messages, tools=row.get("tools"), tokenize=False, add_generation_prompt=add_generation_prompt
        )
    )


def blocks(rows: list[dict[str, Any]], tokenizer: Any, longest: int) -> Iterator[Example]:
    """Running text, end to end, in blocks of the longest length."""
    stream = [i for row in rows for i in [*tokenizer(row["text"])["input_ids"], tokenizer.eos_token_id]]
    for at in range(0, len(stream), longest):
        block = stream[at : at + longest]
        yield {"input_ids": block, "labels": [IGNORED, *block[1:]]}


def cut(example: Example, longest: int, account: dict[str, int]) -> Example:
    total = len(example["input_ids"])
    kept = {name: values[:longest] for name, values in example.items()}
    learned = sum(label != IGNORED for label in kept["labels"])
    account["read"] += total
    account["trained"] += learned
    account["masked"] += len(kept["labels"]) - learned
    account["truncated"] += total - len(kept["labels"])
    return kept


def drop(example: Example, account: dict[str, int]) -> None:
    """A row without a target teaches nothing."""
    learned = sum(label != IGNORED for label in example["labels"])
    account["trained"] -= learned
    account["masked"] -= len(example["labels"]) - learned
    account["dropped"] += len(example["labels"])


# The model


def build_model(spec: dict[str, Any], tokenizer: Any) -> Any:
    """The base, with an adapter or with the parts that move."""
    reward = spec["stage"] == "reward"
    kind = AutoModelForSequenceClassification if reward else AutoModelForCausalLM
    more: dict[str, Any] = {"num_labels": 1} if reward else {}
    more |= {"trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32}
    model = kind.from_pretrained(spec["base"], **more)
    model.config.use_cache = False
    model.config.pad_token_id = tokenizer.pad_token_id
    method = spec["method"]
    if method == "full":
        return model
    if method == "freeze":
        return freeze(model, spec["engine"])
    if spec["adapter"]:
        return peft.PeftModel.from_pretrained(model, spec["adapter"], is_trainable=True)
    return peft.get_peft_model(model, adapter_config(spec, reward))


def adapter_config(spec: dict[str, Any], reward: bool) -> Any:
    lora, method = spec["lora"], spec["method"]
    targets = lora["target_modules"]
    attention = ["q_proj", "k_proj", "v_proj", "o_proj"]
    common: dict[str, Any] = {
        "task_type": "SEQ_CLS" if reward else "CAUSAL_LM",
        "target_modules": attention if targets == "attention-only" else targets,
        "modules_to_save": list(lora["modules_to_save"]) or None,
        "layers_to_transform": list(lora["layers"]) if lora["layers"] else None,
    }
    if method == "oft":
        size = spec["engine"]["oft_block_size"]
        return peft.OFTConfig(**common, r=0, oft_block_size=size, module_dropout=lora["dropout"])
    return peft.LoraConfig(
        **common,
        r=lora["rank"],
        lora_alpha=lora["alpha"],
        lora_dropout=lora["dropout"],
        use_rslora=lora["rslora"],
        use_dora=method == "dora",
    )


def freeze(model: Any, engine: dict[str, Any]) -> Any:
    """Let the last blocks move, and the output layer if asked."""
    model.requires_grad_(False)
    inner = getattr(model, model.base_model_prefix)
    for block in inner.layers[-engine["freeze_blocks"] :]:
        block.requires_grad_(True)
    for name in ("score", "lm_head" if engine["freeze_head"] else ""):
        if name and hasattr(model, name):
            getattr(model, name).requires_grad_(True)
    return model


def build_optimizer(spec: dict[str, Any], model: Any) -> torch.optim.Optimizer:
    hyper = spec["hyperparameters"]
    rate, decay = hyper["learning_rate"], hyper["weight_decay"]
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    groups: list[dict[str, Any]] = [{"params": [weight for _, weight in trained], "lr": rate}]
    if spec["method"] == "lora_plus":  # B learns faster than A (arXiv 2402.12354)
        fast = [weight for name, weight in trained if "lora_B" in name]
        slow = [weight for name, weight in trained if "lora_B" not in name]
        groups = [{"params": slow, "lr": rate}, {"params": fast, "lr": rate * spec["lora"]["lora_plus_ratio"]}]
    kinds = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD, "adafactor": torch.optim.Adafactor}
    return kinds[hyper["optimizer"]](groups, lr=rate, weight_decay=decay)


def rate_factor(name: str, step: int, total: int, warmup: int) -> float:
    """What the peak learning rate is multiplied with at a step, counted from 0."""
    if name != "constant" and step < warmup:
        return step / max(1, warmup)
    part = (step - warmup) / max(1, total - warmup)
    return {"linear": 1 - part, "cosine": 0.5 * (1 + math.cos(math.pi * part))}.get(name, 1.0)


# Training


def train(spec: dict[str, Any], model: Any, tokenizer: Any, examples: list[Any], account: dict[str, int]) -> None:
    hyper, started = spec["hyperparameters"], time.monotonic()
    per_epoch = math.ceil(len(examples) / (hyper["batch_size"] * hyper["gradient_accumulation"]))
    total = hyper["max_steps"] or max(1, math.ceil((hyper["epochs"] or 3.0) * per_epoch))
    save_steps = hyper["save_steps"] or max(50, math.ceil(total / 5))
    optimizer = build_optimizer(spec, model)
    peaks = [group["lr"] for group in optimizer.param_groups]
    reference = copy.deepcopy(model).requires_grad_(False) if needs_copy(spec) else None
    at, losses = resume(spec, model, optimizer)
    warmup = math.ceil(hyper["warmup_ratio"] * total)
    device = next(model.parameters()).device.type
    moving = [weight for weight in model.parameters() if weight.requires_grad]
    tell("begin", total_steps=total, total_epochs=total / per_epoch, device=device, precision="fp32",
         threads=torch.get_num_threads(), restarted_from={"step": at} if at else None)  # fmt: skip
    model.train()
    for step in range(at, total):
        factor = rate_factor(hyper["schedule"], step, total, warmup)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * factor
        loss = one_step(spec, model, reference, batches_of(spec, examples, step, per_epoch), tokenizer.pad_token_id)
        norm = torch.nn.utils.clip_grad_norm_(moving, hyper["max_grad_norm"])
        if not math.isfinite(loss):
            raise SystemExit(f"The loss of step {step + 1} is {loss}: lower the learning rate.")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append([step + 1, loss, peaks[0] * factor])
        tell("progress", step=step + 1, total_steps=total, epoch=(step + 1) / per_epoch, total_epochs=total / per_epoch,
             loss=loss, learning_rate=peaks[0] * factor, grad_norm=float(norm))  # fmt: skip
        stop, last = stop_asked, step + 1 == total  # read once: the signal may arrive at any moment
        if not last and (stop or (step + 1) % save_steps == 0):
            save_checkpoint(spec, model, optimizer, step + 1, losses)
        if stop and not last:
            raise SystemExit(75)
    save_result(spec, model, tokenizer, {
        "steps": total, "epochs": total / per_epoch, "losses": losses, "device": device,
        **counted(spec, examples, total, per_epoch), "data": {"tokens": account, "rows": {"trained": len(examples)}},
        "precision": "fp32", "threads": torch.get_num_threads(), "seconds": round(time.monotonic() - started, 3),
        "chat_template": tokenizer.chat_template,
        "versions": {module.__name__: module.__version__ for module in (torch, transformers, peft)},
    })  # fmt: skip


def counted(spec: dict[str, Any], examples: list[Any], total: int, per_epoch: int) -> dict[str, Any]:
    """What the steps were trained on: whole epochs take every row, the last one those of its steps."""
    last = range(total // per_epoch * per_epoch, total)
    rows = (total // per_epoch) * examples
    rows = rows + [row for step in last for micro in batches_of(spec, examples, step, per_epoch) for row in micro]
    sides = [side for row in rows for side in (row if isinstance(row, list) else [row])]
    trained = sum(label != IGNORED for side in sides for label in side["labels"][1:])
    tokens = {"trained": trained, "masked": sum(len(side["labels"]) for side in sides) - trained}
    return {"tokens": tokens, "rows": {"trained": len(rows)}, "counted": "batches"}


def batches_of(spec: dict[str, Any], examples: list[Any], step: int, per_epoch: int) -> list[list[Any]]:
    """The micro-batches of a step: a pure function of seed and step, so that a restart sees the same rows."""
    hyper = spec["hyperparameters"]
    order = list(range(len(examples)))
    random.Random(f"{hyper['seed']}:{step // per_epoch}").shuffle(order)
    size = hyper["batch_size"]
    start = (step % per_epoch) * size * hyper["gradient_accumulation"]
    rows = [examples[at] for at in order[start : start + size * hyper["gradient_accumulation"]]]
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def one_step(spec: dict[str, Any], model: Any, reference: Any, micro: list[list[Any]], pad: int) -> float:
    """Forward and backward of all micro-batches; returns the mean loss of the step."""
    batches = [collate(rows, pad, next(model.parameters()).device) for rows in micro]
    imitates = spec["stage"] in ("cpt", "sft")
    units = sum(int((b["labels"][:, 1:] != IGNORED).sum()) for b in batches) if imitates else sum(map(len, micro))
    total = 0.0
    for batch in batches:
        loss = LOSSES[spec["stage"]](spec, model, reference, batch) / units
        loss.backward()
        total += float(loss.detach())
    return total


def collate(rows: list[Any], pad: int, device: Any) -> dict[str, torch.Tensor]:
    """(B, T) tensors, padded on the right; of pairs first all chosen rows, then all rejected ones."""
    if isinstance(rows[0], list):
        rows = [row[0] for row in rows] + [row[1] for row in rows]
    longest = max(len(row["input_ids"]) for row in rows)
    fill = {"input_ids": pad, "labels": IGNORED}
    tensors = {
        name: torch.tensor([row[name] + [value] * (longest - len(row[name])) for row in rows], device=device)
        for name, value in fill.items()
    }
    width = torch.tensor([len(row["input_ids"]) for row in rows], device=device)
    mask_BT = torch.arange(longest, device=device)[None, :] < width[:, None]
    return {**tensors, "attention_mask": mask_BT.long()}


def imitation_loss(spec: dict[str, Any], model: Any, _reference: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Cross-entropy, summed over the labelled tokens."""
    logits_BTV = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten(), reduction="sum")


def logps(model: Any, batch: dict[str, torch.Tensor], mean: bool) -> torch.Tensor:
    """(B,) log-probability of each row's answer; per token if `mean`."""
    logits_BTV = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, :-1].float()
    target_BT = batch["labels"][:, 1:]
    kept_BT = target_BT != IGNORED
    chosen_BT = logits_BTV.log_softmax(-1).gather(2, target_BT.clamp(min=0)[..., None])[..., 0] * kept_BT
    return chosen_BT.sum(-1) / kept_BT.sum(-1) if mean else chosen_BT.sum(-1)


def dpo_loss(spec: dict[str, Any], model: Any, reference: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """DPO (arXiv 2305.18290), its hinge form, and IPO (arXiv 2310.12036), summed over the pairs."""
    given = spec["preference"]
    ipo = given["loss"] == "ipo"
    with torch.no_grad():
        if reference is None:
            with model.disable_adapter():
                before = logps(model, batch, ipo)
        else:
            before = logps(reference, batch, ipo)
    ratio = logps(model, batch, ipo) - before
    margin = ratio[: len(ratio) // 2] - ratio[len(ratio) // 2 :]
    if ipo:
        return ((margin - 1 / (2 * given["beta"])) ** 2).sum()
    if given["loss"] == "hinge":
        return relu(1 - given["beta"] * margin).sum()
    smooth, scaled = given["label_smoothing"], given["beta"] * margin
    return -((1 - smooth) * logsigmoid(scaled) - smooth * logsigmoid(-scaled)).sum() / (1 - 2 * smooth)


def reward_loss(spec: dict[str, Any], model: Any, _reference: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Bradley-Terry on the scores of chosen and rejected rows, summed over the pairs."""
    scores = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, 0].float()
    chosen, rejected = scores.chunk(2)
    centred = spec["engine"]["reward_centering"] * (chosen + rejected) ** 2
    return (centred - logsigmoid(chosen - rejected)).sum()


LOSSES = {"cpt": imitation_loss, "sft": imitation_loss, "dpo": dpo_loss, "reward": reward_loss}


def needs_copy(spec: dict[str, Any]) -> bool:
    """DPO compares with the model as it was; without a new adapter to switch off, that is a copy."""
    return spec["stage"] == "dpo" and (spec["method"] in ("full", "freeze") or bool(spec["adapter"]))


# Checkpoints: whole or not there; a digest of each file is checked before it is believed


def trained_weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: w.detach().contiguous().clone() for name, w in model.named_parameters() if w.requires_grad}


def save_checkpoint(spec: dict[str, Any], model: Any, optimizer: Any, step: int, losses: list[Any]) -> None:
    root = Path(spec["checkpoints"])
    temporary, final = root / f".step-{step:08d}.tmp", root / f"step-{step:08d}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_file(trained_weights(model), temporary / "trained.safetensors")
    torch.save({"optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}, temporary / "optimizer.pt")
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in temporary.iterdir()}
    (temporary / "state.json").write_text(json.dumps({"step": step, "losses": losses, "files": files}))
    for path in temporary.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    tell("checkpoint", step=step, path=str(final.resolve()))
    for old in sorted(root.glob("step-*"))[:-2]:
        shutil.rmtree(old)


def resume(spec: dict[str, Any], model: Any, optimizer: Any) -> tuple[int, list[Any]]:
    """Load the newest checkpoint that is whole. Returns its step and the losses so far."""
    for place in sorted(Path(spec["checkpoints"]).glob("step-*"), reverse=True):
        try:
            state = json.loads((place / "state.json").read_text())
            whole = all(hashlib.sha256((place / n).read_bytes()).hexdigest() == d for n, d in state["files"].items())
        except (OSError, ValueError, KeyError):
            whole = False
        if not whole:
            tell("warning", code="E-CHECKPOINT-CORRUPT", text=f"{place.name} is damaged and is not used")
            continue
        weights = load_file(place / "trained.safetensors")
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.data.copy_(weights[name])
        kept = torch.load(place / "optimizer.pt", weights_only=True)
        optimizer.load_state_dict(kept["optimizer"])
        torch.set_rng_state(kept["random"])
        return state["step"], state["losses"]
    return 0, []


def save_result(spec: dict[str, Any], model: Any, tokenizer: Any, report: dict[str, Any]) -> None:
    """The weights, the tokenizer, and last of all `report.json`."""
    output = Path(spec["output"])
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    model.save_pretrained(output, safe_serialization=True)
    adapter = (output / "adapter_config.json").is_file()
    tokenizer.save_pretrained(output / "tokenizer" if adapter else output)
    (output / "report.json").write_text(json.dumps(report))
    tell("metrics", steps=report["steps"], first_loss=report["losses"][0][1], final_loss=report["losses"][-1][1],
         seconds=report["seconds"])  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "spec.json")
