"""A whole fine-tuning in one file: plain PyTorch, transformers and peft. Edit it as you like.

    python train.py spec.json

Reads the spec and its rows, trains, and leaves the adapter or the model in `output`. Ctrl-C or SIGTERM saves a
checkpoint and ends with code 75; it continues when started again. Stages: cpt sft dpo reward. Methods: full lora dora
lora_plus oft freeze. It computes in float32; on a CPU its losses are, step by step, those of the training that it was
written from, in float32 too. Different are packed rows, padded here, and CUDA kernels: those of transformers.

Shapes: B rows, T positions, V vocabulary.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import random
import re
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
from jinja2.exceptions import TemplateError
from safetensors.torch import load_file, save_file
from torch.nn.functional import cross_entropy, logsigmoid, relu
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer
from transformers.optimization import Adafactor
from transformers.pytorch_utils import Conv1D
from transformers.utils.chat_template_utils import encode_marked_chat, mark_control_tokens

IGNORED = -100
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{{ eos_token if message.role == 'assistant' }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
PAIRED = ("dpo", "reward")
REFUSALS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""What a chat template raises for a conversation that it does not take."""
GROUP_STEPS = 50  # steps' worth of rows that are sorted by length together
EMBEDDING_RATE = 1e-6  # of adapted embeddings in LoRA+
CONTINUES = "\U000f0000"  # before a text that is not the beginning of a row
Example = dict[str, list[int]]
Fields = dict[str, Any]  # a JSON object: the spec, a part of it, or a row
stop_asked = False


def main(spec_path: str) -> None:
    path = Path(spec_path).resolve()
    os.chdir(path.parent)  # the paths in a spec start where it is
    spec = json.loads(path.read_text(encoding="utf-8"))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ask_to_stop)
    torch.set_num_threads(spec["threads"])
    torch.manual_seed(spec["hyperparameters"]["seed"])
    tokenizer = load_tokenizer(spec)
    examples, data = encode(spec, tokenizer)
    emit("ledger", **data["tokens"], rows=data["rows"])
    model = build_model(spec, tokenizer).to(pick_device(spec["device"]))
    train(spec, model, tokenizer, examples, data)


def ask_to_stop(_signal: int, _frame: object) -> None:
    global stop_asked  # noqa: PLW0603 (a signal handler has nowhere else to write)
    stop_asked = True


def emit(event: str, **fields: Any) -> None:
    """Report: as a line of JSON to the file that a supervisor named, else for a person."""
    path = os.environ.get("TRAINYARD_EVENTS")
    if path is None:
        print(event, " ".join(f"{name}={value}" for name, value in fields.items()), flush=True)
        return
    with open(path, "a", encoding="utf-8") as stream:
        stream.write(json.dumps({"event": event, "time": time.time(), **fields}) + "\n")


def pick_device(device: str) -> str:
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    return next(name for name, present in here.items() if present) if device == "auto" else device


def load_tokenizer(spec: Fields) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(spec["base"], trust_remote_code=False)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.chat_template = spec["chat_template"] or tokenizer.chat_template or PLAIN_TEMPLATE
    return tokenizer


def encode(spec: Fields, tokenizer: Any) -> tuple[list[Any], dict[str, dict[str, int]]]:
    """Every row as {input_ids, labels}, or as a pair of them; and where every token and row went."""
    account = dict.fromkeys(("read", "trained", "masked", "truncated", "dropped"), 0)
    longest, paired = spec["hyperparameters"]["max_length"], spec["stage"] in PAIRED
    with open(spec["rows"], encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    counts = {"read": len(rows)}
    if spec["stage"] == "cpt":
        row_sides = [[block] for block in blocks(rows, tokenizer, longest)]
    else:
        chat = Chat(tokenizer)
        row_sides = [sides for row in rows if (sides := chat.sides(row, paired))]
        require_accepted(chat.refused, len(rows), spec["max_bad_fraction"])
        counts |= {"dropped_template": len(chat.refused)} if chat.refused else {}
    admitted = [admit(sides, longest, spec["engine"]["too_long"], account) for sides in row_sides]
    examples = [sides if paired else sides[0] for sides in admitted if sides]
    if not examples:
        raise SystemExit("No row has a token to learn.")
    return examples, {"tokens": account, "rows": {**counts, "trained": len(examples)}}


def require_accepted(refused: list[str], count: int, limit: float) -> None:
    """Report the rows that the chat template refuses; end the run where that is a larger share than the limit."""
    text = f"The chat template refuses {len(refused)} of {count} rows: {'; '.join(sorted(set(refused))[:3])}"
    if len(refused) > limit * count:
        raise SystemExit(f"{text}. At most {limit:.1%} may be lost (max_bad_fraction).")
    if refused:
        emit("warning", text=text)


def admit(sides: list[Example], longest: int, too_long: str, account: dict[str, int]) -> list[Example]:
    """A row within its length, entered in the account; empty if it teaches nothing: no target, or two equal answers."""
    total = sum(len(side["input_ids"]) for side in sides)
    limit = longest if too_long == "cut" else None
    cut_sides = [{name: values[:limit] for name, values in side.items()} for side in sides]
    learned = [sum(label != IGNORED for label in side["labels"]) for side in cut_sides]
    teaches = all(learned) and (len(cut_sides) == 1 or cut_sides[0] != cut_sides[1])
    wide = max(len(side["input_ids"]) for side in cut_sides)
    if teaches and wide > longest and too_long == "refuse":
        raise SystemExit(f"A row has {wide} tokens, and max_length is {longest}.")
    account["read"] += total
    if not teaches or wide > longest:
        account["dropped"] += total
        return []
    remaining = sum(len(side["input_ids"]) for side in cut_sides)
    account["trained"] += sum(learned)
    account["masked"] += remaining - sum(learned)
    account["truncated"] += total - remaining
    return cut_sides


class Chat:
    """A tokenizer with its chat template: what it writes, what of that is learned, and the ids of both.

    Control tokens that a user writes stay text, so that `<|im_end|>` in a question ends no turn.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        added = [token for token in tokenizer.added_tokens_decoder.values() if token.content.strip()]
        special = {token.content for token in added if token.special}
        written = {token.content for token in added if token.content in tokenizer.chat_template}
        self.special, self.control, self.refused = token_pattern(special), token_pattern(special | written), list[str]()
        self.ends = {tokenizer.convert_tokens_to_ids(token) for token in special | written}
        newline, word = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in ("\n", "a"))
        self.keeps_start = tokenizer("\na", add_special_tokens=False)["input_ids"] == newline + word

    def sides(self, row: Fields, paired: bool) -> list[Example]:
        """A pair, or a conversation as the only side; empty for a row that the template refuses."""
        try:
            return self.pair(row) if paired else [self.conversation(row)]
        except REFUSALS as error:
            self.refused.append(str(error))
            return []

    def render(self, messages: list[Fields], row: Fields, *, ask: bool = False) -> str:
        marked = []
        for message in messages:
            control = self.special if message["role"] == "assistant" else self.control
            texts = {name: value for name, value in message.items() if name not in ("role", "weight")}
            marked.append({"role": message["role"], **mark_control_tokens(texts, control)})
        tools = mark_control_tokens(row.get("tools"), self.control)
        return str(self.tokenizer.apply_chat_template(marked, tools=tools, tokenize=False, add_generation_prompt=ask))

    def turn_end(self, text: str) -> int:
        """Where the last turn of a text ends: after the first of the control tokens at its end."""
        tail = re.search(rf"(?:(?:{self.control.pattern})\s*)+\Z", text)
        first = self.control.match(tail.group()) if tail else None
        return tail.start() + first.end() if tail and first else len(text.rstrip())

    def ids(self, text: str, *, start: bool) -> list[int]:
        if CONTINUES in text or not (start or self.keeps_start):
            return list(encode_marked_chat(self.tokenizer, text if start else CONTINUES + text))
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def encode_answer(self, text: str) -> list[int]:
        """Ids of an answer; one without an end gets the end of text, or the model would not learn to stop."""
        ids = self.ids(text, start=False)
        return ids if not ids or ids[-1] in self.ends else [*ids, self.tokenizer.eos_token_id]

    def conversation(self, row: Fields, *, first: int = 0) -> Example:
        """The ids of a conversation; the turns of the assistant from `first` on are learned if they say something."""
        messages, whole, done = row["messages"], self.render(row["messages"], row), 0
        ids, labels = list[int](), list[int]()
        for at in (at for at, message in enumerate(messages) if message["role"] == "assistant" and at >= first):
            prompt = self.render(messages[:at], row, ask=True) if at else self.opening(whole)
            upto = self.render(messages[: at + 1], row)
            end = self.turn_end(upto)
            if not (whole.startswith(upto[:end]) and upto.startswith(prompt)):
                raise SystemExit("The chat template changes earlier turns; set one of your own in spec.json.")
            prompt_ids = self.ids(whole[done : len(prompt)], start=not ids) if len(prompt) > done else []
            reply = whole[len(prompt) : end]
            answer = self.encode_answer(reply)
            counts = messages[at].get("weight") != 0 and bool(self.control.sub("", reply).strip())
            ids += prompt_ids + answer
            labels += [IGNORED] * len(prompt_ids) + (answer if counts else [IGNORED] * len(answer))
            done = end
        if done < len(whole.rstrip()):  # what ends the row is shown; a last line end is left out
            rest = self.ids(whole[done:], start=not ids)
            ids, labels = ids + rest, labels + [IGNORED] * len(rest)
        return {"input_ids": ids, "labels": [IGNORED, *labels[1:]]}  # nothing is before the first one to predict it

    def opening(self, whole: str) -> str:
        """What the template writes before the text of an assistant that speaks first."""
        asked = [{"role": "user", "content": "melon"}]
        header = self.render(asked, {}, ask=True).removeprefix(self.render(asked, {})).lstrip()
        return whole[: whole.index(header) + len(header)]

    def pair(self, row: Fields) -> list[Example]:
        """Chosen and rejected, each after the prompt; of one with several turns those of the assistant are learned."""
        if any(len(row[side]) > 1 for side in ("chosen", "rejected")):
            whole = [{**row, "messages": [*row["prompt"], *row[side]]} for side in ("chosen", "rejected")]
            return [self.conversation(conversation, first=len(row["prompt"])) for conversation in whole]
        prompt_text = self.render(row["prompt"], row, ask=True)
        texts = [self.render([*row["prompt"], *row[side]], row) for side in ("chosen", "rejected")]
        if not all(text.startswith(prompt_text) for text in texts):
            raise SystemExit("The chat template writes the prompt differently once it is answered; set your own.")
        prompt = self.ids(prompt_text, start=True)
        answers = [self.encode_answer(text[len(prompt_text) : self.turn_end(text)]) for text in texts]
        return [{"input_ids": prompt + ids, "labels": [IGNORED] * len(prompt) + ids} for ids in answers]


def token_pattern(tokens: set[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(tokens, key=lambda token: (-len(token), token)))) or "(?!)")


def blocks(rows: list[Fields], tokenizer: Any, longest: int) -> Iterator[Example]:
    """Running text, end to end, in blocks of the longest length."""
    stream: list[int] = []
    for text in (row["text"] for row in rows if row["text"]):
        ids = list(tokenizer(text, split_special_tokens=True, verbose=False)["input_ids"])
        stream += ids if ids and ids[-1] == tokenizer.eos_token_id else [*ids, tokenizer.eos_token_id]
    for at in range(0, len(stream), longest):
        block = stream[at : at + longest]
        yield {"input_ids": block, "labels": [IGNORED, *block[1:]]}


def build_model(spec: Fields, tokenizer: Any) -> Any:
    """The base, with an adapter or with the parts that move. The same seed gives the same first weights."""
    reward, method, seed = spec["stage"] == "reward", spec["method"], spec["hyperparameters"]["seed"]
    kind = AutoModelForSequenceClassification if reward else AutoModelForCausalLM
    more: Fields = {"num_labels": 1} if reward else {}
    more |= {"trust_remote_code": False, "use_safetensors": True, "dtype": torch.float32}
    torch.manual_seed(seed)
    model_class: Any = kind._model_mapping[type(AutoConfig.from_pretrained(spec["base"], trust_remote_code=False))]
    attention = "sdpa" if model_class._supports_sdpa else "eager"
    model = kind.from_pretrained(spec["base"], attn_implementation=attention, **more)
    model.config.update({"use_cache": False, "pad_token_id": model.config.pad_token_id or tokenizer.pad_token_id})
    if method == "freeze":
        freeze(model, spec["engine"], reward)
    elif method != "full" and spec["adapter"]:
        model = peft.PeftModel.from_pretrained(model, spec["adapter"], is_trainable=True)
    elif method != "full":
        config = adapter_config(spec, model, reward)
        torch.manual_seed(seed)
        model = peft.get_peft_model(model, config)
    if spec["hyperparameters"]["gradient_checkpointing"]:
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
        model.disable_input_require_grads()  # asked for along with it, and needed by re-entrant checkpoints alone
    return model


def adapter_config(spec: Fields, model: Any, reward: bool) -> Any:
    lora, method = spec["lora"], spec["method"]
    common: Fields = {
        "task_type": "SEQ_CLS" if reward else "CAUSAL_LM",
        "target_modules": target_modules(lora, model),
        "modules_to_save": list(lora["modules_to_save"]) or None,
        "layers_to_transform": list(lora["layers"]) if lora["layers"] is not None else None,
    }
    if method == "oft":
        size = spec["engine"]["oft_block_size"]
        return peft.OFTConfig(**common, r=0, oft_block_size=size, module_dropout=lora["dropout"] or 0.0)
    common |= {"r": lora["rank"], "lora_alpha": lora["alpha"], "lora_dropout": lora["dropout"] or 0.0}
    return peft.LoraConfig(**common, use_rslora=lora["rslora"], use_dora=method == "dora")


def target_modules(lora: Fields, model: Any) -> str | list[str]:
    """The modules that get an adapter, as PEFT takes them: with chosen blocks it wants names."""
    targets = lora["target_modules"]
    heads = {id(model.get_output_embeddings()), id(getattr(model, "score", None))}
    linear = {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear | Conv1D)}
    if targets == "attention-only":
        roots = [name for name, module in model.named_modules() if "attention" in type(module).__name__.lower()]
        inside = [name for name in linear if any(name.startswith(f"{root}.") for root in roots)]
        other_names = {name.rpartition(".")[2] for name in linear if name not in inside}
        parts = [name.split(".") for name in inside]
        return sorted({part[-1] if part[-1] not in other_names else ".".join(part[-2:]) for part in parts})
    if isinstance(targets, str) and lora["layers"] is not None:
        return sorted({name.rpartition(".")[2] for name, module in linear.items() if id(module) not in heads})
    return targets if isinstance(targets, str) else list(targets)


def freeze(model: Any, engine: Fields, reward: bool) -> None:
    """Let the last blocks and the final norm move; the score of a reward model too, the output layer if asked."""
    model.requires_grad_(False)
    count = model.config.get_text_config().num_hidden_layers
    lists = (
        (part, child) for part in model.modules() for child in part.children() if isinstance(child, torch.nn.ModuleList)
    )
    decoder, layers = next((parent, child) for parent, child in lists if len(child) == count)
    trainable = [*layers[-engine["freeze_blocks"] :]]
    trainable += [child for name, child in decoder.named_children() if "norm" in name or "ln_" in name]
    trainable += [model.score] if reward else [model.get_output_embeddings()] if engine["freeze_head"] else []
    for module in trainable:
        module.requires_grad_(True)


def build_optimizer(spec: Fields, model: Any) -> torch.optim.Optimizer:
    hyper, groups = spec["hyperparameters"], list(parameter_groups(spec, model))
    if hyper["optimizer"] == "sgd":
        return torch.optim.SGD(groups, momentum=0.9)
    if hyper["optimizer"] == "adafactor":
        return Adafactor(groups, scale_parameter=False, relative_step=False)
    return torch.optim.AdamW(groups, fused=True)


def parameter_groups(spec: Fields, model: Any) -> Iterator[Fields]:
    """Weight decay on matrices alone; with LoRA+ (arXiv 2402.12354) B learns faster than A."""
    hyper = spec["hyperparameters"]
    rate = hyper["learning_rate"]
    rates = {"A": rate, "B": rate * spec["lora"]["lora_plus_ratio"], "embedding": EMBEDDING_RATE}
    groups: dict[tuple[str, bool], list[Any]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            kind = "A"
            if spec["method"] == "lora_plus":
                fast = "lora_B" in name or weight.ndim == 1
                kind = "embedding" if "lora_embedding_" in name else "B" if fast else "A"
            groups.setdefault((kind, weight.ndim > 1), []).append(weight)
    for (kind, matrix), weights in sorted(groups.items(), key=lambda item: (item[0][0], not item[0][1])):
        yield {"params": weights, "lr": rates[kind], "weight_decay": hyper["weight_decay"] if matrix else 0.0}


def rate_factor(name: str, step: int, total: int, warmup: int) -> float:
    """What the peak learning rate is multiplied with at a step, counted from 0."""
    if name != "constant" and step < warmup:
        return (step + 1) / (warmup + 1)
    part = (step - warmup) / max(1, total - warmup)
    return {"linear": 1 - part, "cosine": 0.5 * (1 + math.cos(math.pi * part))}.get(name, 1.0)


def train(spec: Fields, model: Any, tokenizer: Any, examples: list[Any], data: Fields) -> None:
    hyper, started = spec["hyperparameters"], time.monotonic()
    device = next(model.parameters()).device.type
    plan = Plan(spec, examples, device)
    per_epoch = math.ceil(len(examples) / plan.rows_per_step)
    total = hyper["max_steps"] or max(1, math.ceil((hyper["epochs"] or 3.0) * per_epoch))
    save_steps = hyper["save_steps"] or max(50, math.ceil(total / 5))
    optimizer = build_optimizer(spec, model)
    peaks = [group["lr"] for group in optimizer.param_groups]
    # DPO compares with the model as it was; without a new adapter to switch off, that is a copy.
    copied = spec["stage"] == "dpo" and (spec["method"] in ("full", "freeze") or spec["adapter"])
    reference = copy.deepcopy(model).requires_grad_(False).eval() if copied else None
    torch.manual_seed(hyper["seed"])  # what is dropped out depends on nothing that was drawn before
    at, losses = resume(spec, model, optimizer)
    usual = min(math.ceil(hyper["warmup_ratio"] * total), total - 1)
    warmup = usual if hyper.get("warmup_steps") is None else hyper["warmup_steps"]
    trainable = [weight for weight in model.parameters() if weight.requires_grad]
    emit("begin", total_steps=total, total_epochs=total / per_epoch, device=device, precision="fp32",
         threads=torch.get_num_threads(), restarted_from={"step": at} if at else None)  # fmt: skip
    model.train()
    for step in range(at, total):
        factor = rate_factor(hyper["schedule"], step, total, warmup)
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * factor
        micro = [[examples[row] for row in rows] for rows in plan.at(step, per_epoch)]
        loss = run_step(spec, model, reference, micro, tokenizer.pad_token_id or 0)
        norm = torch.nn.utils.clip_grad_norm_(trainable, hyper["max_grad_norm"])
        if not math.isfinite(loss):
            raise SystemExit(f"The loss of step {step + 1} is {loss}: lower the learning rate.")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append([step + 1, loss, peaks[0] * factor])
        emit("progress", step=step + 1, total_steps=total, epoch=(step + 1) / per_epoch, total_epochs=total / per_epoch,
             loss=loss, learning_rate=peaks[0] * factor, grad_norm=float(norm))  # fmt: skip
        stop, last = stop_asked, step + 1 == total  # read once: the signal may arrive at any moment
        if not last and (stop or (step + 1) % save_steps == 0):
            save_checkpoint(spec, model, optimizer, step + 1, losses)
        if stop and not last:
            raise SystemExit(75)
    save_result(spec, model, tokenizer, {
        "steps": total, "epochs": total / per_epoch, "losses": losses, "device": device,
        **count_steps(plan, examples, total, per_epoch), "data": data,
        "precision": "fp32", "threads": torch.get_num_threads(), "seconds": round(time.monotonic() - started, 3),
        "chat_template": tokenizer.chat_template,
        "versions": {module.__name__: module.__version__ for module in (torch, transformers, peft)},
    })  # fmt: skip


class Plan:
    """Batch plan: a function of seed and step, so a restart sees the same rows."""

    def __init__(self, spec: Fields, examples: list[Any], device: str) -> None:
        hyper, batching = spec["hyperparameters"], spec["engine"]["batching"]
        self.sides = 2 if spec["stage"] in PAIRED else 1
        self.widths = [max(len(side["input_ids"]) for side in (row if self.sides == 2 else [row])) for row in examples]
        packed = device == "cuda" and self.sides == 1  # drawn as packed rows are
        self.buckets = batching == "buckets" or (batching == "auto" and not packed)
        self.seed, self.rows, processes = hyper["seed"], hyper["batch_size"], spec["processes"]
        self.rows_per_step = self.rows * hyper["gradient_accumulation"] * processes
        usual = max(hyper["max_length"], self.rows * hyper["max_length"] // 2)
        self.budget = (spec["engine"]["token_budget"] or usual) * processes
        self.epoch, self.steps = -1, list[list[int]]()

    def at(self, step: int, per_epoch: int) -> list[list[int]]:
        """The rows of a step, by micro-batch."""
        if self.epoch != step // per_epoch:
            self.epoch, self.steps = step // per_epoch, self.draw(step // per_epoch)
        return self.cut(self.steps[step % per_epoch])

    def draw(self, epoch: int) -> list[list[int]]:
        generator, size = random.Random(f"{self.seed}:{epoch}"), self.rows_per_step
        rows = list(range(len(self.widths)))
        generator.shuffle(rows)
        if not self.buckets:
            return [rows[at : at + size] for at in range(0, len(rows), size)]
        group = size * GROUP_STEPS
        parts = [sorted(rows[at : at + group], key=self.widths.__getitem__) for at in range(0, len(rows), group)]
        steps = [part[at : at + size] for part in parts for at in range(0, len(part), size)]
        generator.shuffle(steps)
        return steps

    def cut(self, rows: list[int]) -> list[list[int]]:
        if not self.buckets:
            return [rows[at : at + self.rows] for at in range(0, len(rows), self.rows)]
        micro: list[list[int]] = [[]]
        for row in sorted(rows, key=lambda row: (-self.widths[row], row)):
            if micro[-1] and (len(micro[-1]) + 1) * self.widths[micro[-1][0]] * self.sides > self.budget:
                micro.append([])
            micro[-1].append(row)
        return micro


def count_steps(plan: Plan, examples: list[Any], total: int, per_epoch: int) -> Fields:
    """What the steps were trained on: whole epochs take every row, the last one those of its steps."""
    last = range(total // per_epoch * per_epoch, total)
    rows = (total // per_epoch) * examples + [
        examples[row] for step in last for micro in plan.at(step, per_epoch) for row in micro
    ]
    sides = [side for row in rows for side in (row if isinstance(row, list) else [row])]
    trained = sum(label != IGNORED for side in sides for label in side["labels"][1:])
    tokens = {"trained": trained, "masked": sum(len(side["labels"]) for side in sides) - trained}
    return {"tokens": tokens, "rows": {"trained": len(rows)}, "counted": "batches"}


def run_step(spec: Fields, model: Any, reference: Any, micro: list[list[Any]], pad: int) -> float:
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
    rows = [{**row, "attention_mask": [1] * len(row["input_ids"])} for row in rows]
    fill = {"input_ids": pad, "labels": IGNORED, "attention_mask": 0}
    return {
        name: pad_sequence([torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=value).to(device)
        for name, value in fill.items()
    }


def imitation_loss(spec: Fields, model: Any, _reference: object, batch: dict[str, torch.Tensor]) -> torch.Tensor:
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


def dpo_loss(spec: Fields, model: Any, reference: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """DPO (arXiv 2305.18290), its hinge form, and IPO (arXiv 2310.12036), summed over the pairs."""
    preference = spec["preference"]
    ipo = preference["loss"] == "ipo"
    with torch.no_grad():
        if reference is None:
            model.eval()  # a reference drops nothing out
            with model.disable_adapter():
                before = logps(model, batch, ipo)
            model.train()
        else:
            before = logps(reference, batch, ipo)
    ratio = logps(model, batch, ipo) - before
    margin = ratio[: len(ratio) // 2] - ratio[len(ratio) // 2 :]
    if ipo:
        return ((margin - 1 / (2 * preference["beta"])) ** 2).sum()
    if preference["loss"] == "hinge":
        return relu(1 - preference["beta"] * margin).sum()
    smooth, scaled = preference["label_smoothing"], preference["beta"] * margin
    return -((1 - smooth) * logsigmoid(scaled) - smooth * logsigmoid(-scaled)).sum() / (1 - 2 * smooth)


def reward_loss(spec: Fields, model: Any, _reference: object, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Bradley-Terry on the scores of chosen and rejected rows, summed over the pairs."""
    inner: Any = model.get_base_model() if isinstance(model, peft.PeftModel) else model
    states_BTD = inner.base_model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])[0]
    last_B1 = batch["attention_mask"].sum(1, keepdim=True) - 1  # transformers takes the last token that is not padding
    chosen, rejected = inner.score(states_BTD)[:, :, 0].float().gather(1, last_B1)[:, 0].chunk(2)
    centred = spec["engine"]["reward_centering"] * (chosen + rejected) ** 2
    return (centred - logsigmoid(chosen - rejected)).sum()


LOSSES = {"cpt": imitation_loss, "sft": imitation_loss, "dpo": dpo_loss, "reward": reward_loss}


# Checkpoints: whole or not there; a digest of each file is checked before it is believed
def save_checkpoint(spec: Fields, model: Any, optimizer: Any, step: int, losses: list[Any]) -> None:
    root = Path(spec["checkpoints"])
    temporary, final = root / f".step-{step:08d}.tmp", root / f"step-{step:08d}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    trained = {name: w.detach().contiguous().clone() for name, w in model.named_parameters() if w.requires_grad}
    save_file(trained, temporary / "trained.safetensors")
    torch.save({"optimizer": optimizer.state_dict(), "random": torch.get_rng_state()}, temporary / "optimizer.pt")
    files = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in temporary.iterdir()}
    (temporary / "state.json").write_text(json.dumps({"step": step, "losses": losses, "files": files}))
    for path in temporary.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    shutil.rmtree(final, ignore_errors=True)
    temporary.rename(final)
    emit("checkpoint", step=step, path=str(final.resolve()))
    for old in sorted(root.glob("step-*"))[:-2]:
        shutil.rmtree(old)


def resume(spec: Fields, model: Any, optimizer: Any) -> tuple[int, list[Any]]:
    """Load the newest checkpoint that is whole. Returns its step and the losses so far."""
    for folder in sorted(Path(spec["checkpoints"]).glob("step-*"), reverse=True):
        try:
            state = json.loads((folder / "state.json").read_text())
            whole = all(hashlib.sha256((folder / n).read_bytes()).hexdigest() == d for n, d in state["files"].items())
        except (OSError, ValueError, KeyError):
            whole = False
        if not whole:
            emit("warning", code="E-CHECKPOINT-CORRUPT", text=f"{folder.name} is damaged and is not used")
            continue
        weights = load_file(folder / "trained.safetensors")
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.data.copy_(weights[name])
        optimizer_state = torch.load(folder / "optimizer.pt", weights_only=True)
        optimizer.load_state_dict(optimizer_state["optimizer"])
        torch.set_rng_state(optimizer_state["random"])
        return state["step"], state["losses"]
    return 0, []


def save_result(spec: Fields, model: Any, tokenizer: Any, report: Fields) -> None:
    """The weights, the tokenizer, and last of all `report.json`."""
    output = Path(spec["output"])
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    model.save_pretrained(output, safe_serialization=True)
    adapter = (output / "adapter_config.json").is_file()
    tokenizer.save_pretrained(output / "tokenizer" if adapter else output)
    (output / "report.json").write_text(json.dumps(report))
    emit("metrics", steps=report["steps"], first_loss=report["losses"][0][1], final_loss=report["losses"][-1][1],
         seconds=report["seconds"])  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "spec.json")
