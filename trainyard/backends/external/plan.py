"""`python -m trainyard.backends.external.plan FOLDER DEVICE [first-weights]`: what our packages decide of a job.

A process of its own, because it imports transformers (six seconds, 400 MB) and the runner that waits for the tool
should not keep that in memory. Leaves `plan/plan.json`, written last; an error is left as `plan/error.json`.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from trainyard.backends import frame
from trainyard.backends.external.runner import record_plan_errors
from trainyard.backends.job import TrainingJob
from trainyard.backends.rows import TOKENS_FILE, read_rows, write_lines
from trainyard.backends.trl.loading import config_facts, load_tokenizer, template_sha256
from trainyard.data.renderers.rendering import Renderer, build_turn
from trainyard.data.renderers.spans import remove_marks
from trainyard.data.rows import TRAIN, PreferenceRow
from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.spec.axes.methods import adapter_settings
from trainyard.spec.axes.stages import Stage
from trainyard.spec.estimate.timing import save_steps
from trainyard.spec.rates import SCHEDULES
from trainyard.stores.models import base_modules, check_adapter_folder
from trainyard.stores.whole import write_json_durably
from trainyard.train.losses import kto, pairs, sft
from trainyard.train.losses.table import STAGES
from trainyard.train.methods.loading import ADAPTER_WEIGHTS, default_attention, require_same_base
from trainyard.train.methods.lora import adapter_shape
from trainyard.train.methods.targets import list_adapted, targets
from trainyard.train.model.sampling import find_pad_id
from trainyard.train.progress import Counted, Origin, account_fields
from trainyard.train.rows.batching import BatchPlan, Cut
from trainyard.train.rows.prompts import TokenShare
from trainyard.train.rows.tokens import TokenLedger, encode_preference, require_accepted, require_targets
from trainyard.workers.trainyard_worker import names


def write_plan(folder: Path, device: str, *, first_weights: bool) -> None:
    """Fill `folder/plan`. Raises what the data, the template or the adapter's shape raise."""
    job = frame.read_job(folder)
    plan_folder = folder / names.PLAN_FOLDER
    plan_folder.mkdir(exist_ok=True)
    tokenizer = load_tokenizer(job)
    tokenizer.save_pretrained(plan_folder / names.TOKENIZER_FOLDER)
    if job.config.stage.type in (Stage.SFT, Stage.CPT):
        ledger, shares = write_tokens(job, tokenizer, folder / TOKENS_FILE)
        widths = [share.trained + share.masked for share in shares]
    else:
        ledger, shares = write_texts(job, tokenizer, plan_folder / names.TEXTS_FILE)
        widths = [1] * len(shares)
    plan = plan_batches(job, widths)
    total = frame.total_steps(job.config.hyperparameters, plan.steps_per_epoch)
    frame.require_steps(job, total)
    lines, planned = list(islice(steps(job, plan, total), total)), Counted()
    write_lines(plan_folder / names.STEPS_FILE, lines)
    for row in (row for line in lines for rows in line["rows"] for row in rows):
        planned.add(Counted(shares[row].trained, shares[row].masked, 1))
    value = {
        "device": device,
        "attention": default_attention(job.base),
        "total_steps": total,
        "steps_per_epoch": plan.steps_per_epoch,
        "save_steps": save_steps(job.config.hyperparameters, total),
        "pad_id": find_pad_id(tokenizer),
        "lora": adapter(job, plan_folder, first_weights=first_weights),
        "ledger": ledger,
        "account": account_fields(asdict(planned), Origin.PLAN),
    }
    write_json_durably(plan_folder / names.PLAN_FILE, value)


def write_tokens(job: TrainingJob, tokenizer: Any, path: Path) -> tuple[dict[str, object], list[TokenShare]]:
    """Write the rows of sft or cpt as token ids, the same as in the native engine, and return their token counts.

    A line is {"input_ids", "labels"}; a label is the id itself or -100 where no loss is taken, not shifted.
    Raises what the data and the template raise (`E-DATA-EMPTY` …).
    """
    examples, account = STAGES[job.config.stage.type].encode(read_rows(job), tokenizer, job.config)
    require_accepted(account, job.config.refusal_limit)
    require_targets(account)
    write_lines(path, ({name: example[name] for name in ("input_ids", "labels")} for example in examples))
    return build_account(account, tokenizer), [sft.share(example) for example in examples]


def build_account(account: TokenLedger, tokenizer: Any) -> JsonObject:
    """{tokens: {read, trained, masked, truncated, dropped}, rows, line, chat_template_sha256} of the rows."""
    counts: JsonObject = {"tokens": account.tokens(), "rows": dict(account.rows), "line": account.line()}
    if account.refused:
        counts["refused"] = {message: counted._asdict() for message, counted in account.refused.items()}
    return {**counts, "chat_template_sha256": template_sha256(tokenizer)}


def write_texts(job: TrainingJob, tokenizer: Any, path: Path) -> tuple[dict[str, object], list[TokenShare]]:
    """Return the rows of a preference stage as rendered text, for a trainer that tokenises itself.

    Returns the ledger, and the tokens of each row. A row that Trainyard's ledger drops (nothing is left of it within
    max_length) is not written.
    """
    rows, hyper = list(read_rows(job)), job.config.hyperparameters
    examples, account = STAGES[job.config.stage.type].encode(rows, tokenizer, job.config)
    require_accepted(account, job.config.refusal_limit)
    require_targets(account)
    one_sided = job.config.stage.type is Stage.KTO
    share, encode = (kto.share, kto.encode_labelled) if one_sided else (pairs.share, encode_preference)
    require_whole_answers(examples)
    renderer = Renderer(tokenizer)
    whole = account.rows["trained"] == account.rows["read"]
    learned = (
        row
        for row in rows
        if getattr(row, "split", TRAIN) == TRAIN and (whole or encode([row], tokenizer, hyper.max_length)[0])
    )
    write_lines(path, (render_row(renderer, row) for row in learned))
    return build_account(account, tokenizer), [share(example) for example in examples]


def require_whole_answers(examples: Sequence[Mapping[str, object]]) -> None:
    """Raise `InvalidInput` (`E-DATA-FORMAT`) for answers of which a part is not learned: a text has no labels."""
    partly = sum(any(name.endswith("_labels") for name in example) for example in examples)
    if partly:
        raise InvalidInput(
            f"{partly} of {len(examples)} rows have answers with results of tools, or with turns of weight 0.",
            why="This backend takes answers as text and would learn all of it.",
            do="Use backend native or trl, or give the row the conversation before the last answer as its prompt.",
            code="E-DATA-FORMAT",
        )


def render_row(renderer: Renderer, row: Any) -> JsonObject:
    """{prompt, chosen, rejected} or {prompt, completion, label}, and the turns of the prompt separately.

    Raises `InvalidInput` (`E-DATA-FORMAT`) for a row with control tokens in its texts: as text they would be tokens.
    """
    answers = [row.chosen, row.rejected] if isinstance(row, PreferenceRow) else [row.completion]
    prompt = [build_turn(message) for message in row.prompt]
    prompt_text, answer_texts = renderer.answered(
        prompt, [list(map(build_turn, answer)) for answer in answers], row.tools
    )
    if any(text != remove_marks(text) for text in (prompt_text, *answer_texts)):
        raise InvalidInput(
            f"The row {row.source or '(without a place)'} contains the text of a control token of the base, such as "
            f"{next(iter(renderer.stops), '<|im_end|>')}.",
            why="This backend takes rows as text, and its tokenizer would read a control token there.",
            do="Use backend native or trl, where it stays text, or take it out of the row.",
            code="E-DATA-FORMAT",
        )
    plain = {"messages": [{"role": message.role, "content": message.content} for message in row.prompt]}
    if isinstance(row, PreferenceRow):
        last = {"chosen_turn": row.chosen[-1].content, "rejected_turn": row.rejected[-1].content}
        return {"prompt": prompt_text, "chosen": answer_texts[0], "rejected": answer_texts[1], **plain, **last}
    return {"prompt": prompt_text, "completion": answer_texts[0], "label": row.label, **plain}


def plan_batches(job: TrainingJob, widths: list[int]) -> BatchPlan:
    """The rows of each step, drawn as the native engine draws them: one step is what all processes do together."""
    hyper = job.config.hyperparameters
    rows = hyper.batch_size * hyper.gradient_accumulation * job.config.launch.processes
    return BatchPlan(widths, Cut("padded", "as asked for", rows, hyper.batch_size, 0, hyper.seed), STAGES[Stage.SFT])


def steps(job: TrainingJob, plan: BatchPlan, total: int) -> Iterator[JsonObject]:
    """Yield one line a step: its learning rate, and its rows by micro-batch."""
    hyper = job.config.hyperparameters
    warmup = hyper.warmup(total)
    number = count()
    for epoch in count():
        for rows in plan.steps(epoch):
            factor = SCHEDULES[hyper.schedule](next(number), total, warmup)
            yield {"rate": (hyper.learning_rate or 0.0) * factor, "rows": rows}


def adapter(job: TrainingJob, plan_folder: Path, *, first_weights: bool) -> JsonObject | None:
    """Write the adapter's config as PEFT reads it; returns its facts. A continued adapter keeps its own.

    The names of the modules come from the model built on the meta device: its shape without its weights.
    """
    if not job.config.method.facts.adapter:
        return None
    modules: list[str] | None = None
    if job.adapter is not None:
        require_same_base(Path(job.adapter), job.base_sha256, job.node or None)
        check_adapter_folder(Path(job.adapter), base_modules(Path(job.base)))
        config: object = LoraConfig.from_pretrained(job.adapter)
    else:
        with torch.device("meta"):
            shape = AutoConfig.from_pretrained(job.base, trust_remote_code=False)
            model = AutoModelForCausalLM.from_config(shape, attn_implementation="eager")
        named = targets(model, adapter_settings(job.config.method))
        modules = sorted({name.rpartition(".")[2] for name, _ in list_adapted(model, named.modules)})
        config = adapter_shape(job.config, TaskType.CAUSAL_LM, named)
        config.base_model_name_or_path = job.base
        config.save_pretrained(str(plan_folder / names.ADAPTER_FOLDER))
        plain = job.config.stage.facts.head == "causal" and not config.use_dora and not config.modules_to_save
        if first_weights and plain:  # a magnitude or a copied module would need the base's own weights
            write_first_weights(model, config, job.config.hyperparameters.seed, plan_folder / names.ADAPTER_FOLDER)
    write_json_durably(plan_folder / names.MODULES_FILE, modules)
    return config_facts(config, job)


def write_first_weights(model: Any, config: LoraConfig, seed: int, folder: Path) -> None:
    """The weights that a new adapter begins with: PEFT's distribution, drawn from the job's seed.

    For tools that draw them before they set their seed. The model is on the meta device, so only shapes are taken.
    """
    shapes = get_peft_model_state_dict(get_peft_model(model, config))
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for name in sorted(shapes):
        weight = torch.zeros(shapes[name].shape)
        if "lora_A" in name:
            torch.nn.init.kaiming_uniform_(weight, a=math.sqrt(5), generator=generator)
        weights[name] = weight
    save_file(weights, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})


if __name__ == "__main__":
    with record_plan_errors(Path(sys.argv[1])):
        write_plan(Path(sys.argv[1]), sys.argv[2], first_weights="first-weights" in sys.argv[3:])
