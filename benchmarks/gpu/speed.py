"""How many tokens a second does a LoRA or QLoRA training of a 4 billion Qwen3 shape reach, next to TRL?

Chat rows of lognormal length (mean 300 tokens, at most 1,024), eight a step; only real tokens count. Random weights
take the same time as trained ones. Both sides begin with tokens and keep the model loaded.

    ours             the engine as a job has it: packed rows, bf16, the best attention that is installed
    TRL default      SFTConfig as it comes: batches of 8, bf16, gradient checkpointing
    TRL packed       packing, Liger's kernels where they are installed, no gradient checkpointing

    python -m benchmarks.gpu speed
"""

from __future__ import annotations

import gc
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.gpu.engine import assembled, config, train_steps
from benchmarks.gpu.models import chat_rows, write_base
from benchmarks.gpu.platform import PLATFORM, WHY, Platform, result_name
from benchmarks.harness import OK, Row, Sample, alternate, finish, median
from trainyard.backends.native.assembly import NativeRun, set_determinism
from trainyard.loading import load_object
from trainyard.spec.axes.data import Port
from trainyard.train.methods.table import parameter_groups
from trainyard.train.optimizers import make_optimizer
from trainyard.train.progress import SavedProgress
from trainyard.train.schedules import LearningRate
from trainyard.train.session.session import Session

BATCH, RANK, ROUNDS = 8, 32, 5
LONGEST = {False: 1024, True: 64}
ROWS = {False: 96, True: 16}
"""Rehearsal or not -> what is trained in a round."""
PACKAGES = {"lora": ("trl", "datasets"), "qlora": ("trl", "datasets", "bitsandbytes")}


def has_liger(platform: Platform) -> bool:
    """Liger's kernels need a card."""
    return platform.has("liger_kernel") and not platform.rehearsal


def our_run(platform: Platform, base: Path, folder: Path, method: str) -> NativeRun:
    longest = LONGEST[platform.rehearsal]
    rows = chat_rows(ROWS[platform.rehearsal], longest, mean=300 if not platform.rehearsal else 30)
    method_settings = {"type": method, "rank": RANK}
    settings: dict[str, Any] = {
        "batch_size": BATCH,
        "max_length": longest,
        "learning_rate": 1e-4,
        "max_steps": None,
        "epochs": 1,
    }
    return assembled(
        folder / f"ours-{method}",
        base,
        {Port.SFT: rows},
        config(platform, "sft", method_settings, **settings),
        platform,
    )


def tokens(run: NativeRun) -> float:
    return float(sum(run.prepared.widths))


def run_ours(run: NativeRun, platform: Platform) -> Callable[[], float]:
    """Train the rows once more, with an optimizer and a schedule that have done nothing yet."""

    def variant() -> float:
        set_determinism(run.job)
        settings = run.job.config
        optimizer = make_optimizer(parameter_groups(run.policy, settings), settings)
        rate = LearningRate(optimizer, settings, run.total_steps)
        run.session = Session(replace(run.session.engine, optimizer=optimizer, rate=rate), run.session.folder)
        run.progress = SavedProgress()
        train_steps(run)
        platform.synchronize()
        return tokens(run)

    return variant


def build_trl(platform: Platform, base: Path, folder: Path, method: str, rows: Sequence[Any], **arguments: Any) -> Any:
    """TRL's trainer over tokenised rows with its defaults, but for `arguments`."""
    peft, quantised = load_object("peft"), method == "qlora"
    adapter = peft.LoraConfig(
        r=RANK, lora_alpha=2 * RANK, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    half = torch.bfloat16 if not platform.rehearsal else torch.float32
    options: dict[str, Any] = {"dtype": half, "attn_implementation": "sdpa", "device_map": {"": platform.device}}
    if quantised:
        options["quantization_config"] = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True, bnb_4bit_compute_dtype=half
        )
    settings = load_object("trl.trainer.sft_config").SFTConfig(
        output_dir=str(folder), report_to="none", save_strategy="no", disable_tqdm=True, num_train_epochs=1,
        max_length=LONGEST[platform.rehearsal], use_cpu=platform.rehearsal, **arguments,
    )  # fmt: skip
    trainer = load_object("trl.trainer.sft_trainer").SFTTrainer(
        model=transformers.AutoModelForCausalLM.from_pretrained(base, **options),
        args=settings,
        train_dataset=load_object("datasets").Dataset.from_list(list(rows)),
        processing_class=transformers.AutoTokenizer.from_pretrained(base),
        peft_config=adapter,
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def run_trl(trainer: Any, units: float, platform: Platform) -> Callable[[], float]:
    """Train once more with TRL, which does not ask for deterministic kernels."""

    def variant() -> float:
        torch.use_deterministic_algorithms(False)
        trainer.train()
        platform.synchronize()
        return units

    return variant


def measure(platform: Platform, base: Path, folder: Path, method: str) -> dict[str, list[Sample]]:
    """Every variant in turn; all three models are on the card at once."""
    run = our_run(platform, base, folder, method)
    examples, units = run.feed.examples, tokens(run)
    bf16 = {} if not platform.rehearsal else {"bf16": False}
    packed = {"packing": True, "per_device_train_batch_size": 2, "gradient_checkpointing": False}
    packed |= {"use_liger_kernel": has_liger(platform)}

    def trl(name: str, **arguments: Any) -> Any:
        return build_trl(platform, base, folder / name, method, examples, **arguments, **bf16)

    variants = {
        "ours": run_ours(run, platform),
        "TRL default": run_trl(trl("default"), units, platform),
        "TRL packed": run_trl(trl("packed", **packed), units, platform),
    }
    samples = alternate(variants, rounds=ROUNDS)
    del run, variants
    gc.collect()
    if not platform.rehearsal:
        torch.cuda.empty_cache()
    return samples


def rows_of(method: str, samples: dict[str, list[Sample]], platform: Platform) -> list[Row]:
    rate = {name: median(variant_samples, "per_second") for name, variant_samples in samples.items()}
    bars, metric = platform.bars({"TRL default": 1.5, "TRL packed": 1.0}, least=True), f"tokens a second, {method}"
    liger = "packing, Liger" if has_liger(platform) else "packing"
    peers = {"TRL default": "TRL default", "TRL packed": f"TRL, {liger}"}
    return [Row.ratio_at_least(metric, rate["ours"], rate[name], peers[name], bar) for name, bar in bars.items()]


def main() -> int:
    if PLATFORM is None:
        print(f"speed: {WHY}")
        return OK
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    rows, samples = list[Row](), dict[str, list[Sample]]()
    with tempfile.TemporaryDirectory() as folder:
        base = write_base(Path(folder) / "base", "qwen3-4b", PLATFORM)
        for method, packages in PACKAGES.items():
            if missing := [name for name in packages if not PLATFORM.has(name)]:
                print(f"{method}: left out, needs {', '.join(missing)}")
                continue
            method_samples = measure(PLATFORM, base, Path(folder), method)
            # at once: the other method may not end in the time there is
            for name, variant_samples in method_samples.items():
                print(f"{method}, {name}: {median(variant_samples, 'per_second'):,.0f} tokens a second", flush=True)
            rows += rows_of(method, method_samples, PLATFORM)
            samples |= {f"{method}, {name}": variant_samples for name, variant_samples in method_samples.items()}
    return finish(result_name("gpu_speed", PLATFORM), rows, samples)


if __name__ == "__main__":
    sys.exit(main())
