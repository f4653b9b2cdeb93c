"""`trainyard prove-resume`: does a training that was stopped, or killed, end in the same bits as one that was not?

Every cell is a stage (each preference loss separately) with a method, trained three times on a small random model:
straight through, stopped inside an accumulation and continued, and ended by SIGKILL and continued from its last
checkpoint. The SHA-256 of weights, optimizer, generators and losses must be equal. Dropout, an accumulation of three,
shuffled rows and a warming-up schedule are on, so that each part of the state matters.

One process imports everything with one thread and forks a process for each run; a killed one is really killed.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from trainyard.backends.job import TrainingJob
from trainyard.backends.native.assembly import NativeRun, assemble, set_determinism
from trainyard.backends.native.program import resume, save_checkpoint
from trainyard.data.rows import ROWS_FILE, LabelledRow, Message, PreferenceRow, Row, SftRow, TextRow, write_rows
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device, Precision
from trainyard.spec.axes.methods import METHOD_SETTINGS, Method
from trainyard.spec.axes.schedules import Schedule
from trainyard.spec.axes.stages import PreferenceLoss, Stage
from trainyard.spec.training import EngineSettings, Hyperparameters, RopeScaling, TrainerConfig, resolve_trainer
from trainyard.train.checkpoint.state import flatten
from trainyard.train.checkpoint.writer import CheckpointWriter, find_newest
from trainyard.train.loop import train
from trainyard.train.optimizers import switch_to_eval

STAGES, METHODS = BackendName.NATIVE.facts.stages, BackendName.NATIVE.facts.methods
MODES = ("stopped", "killed")
STEPS, ACCUMULATION, SAVE_STEPS = 4, 3, 2
SMALL = {"rank": 4, "alpha": 8, "dropout": 0.1, "block_size": 16, "blocks": 1}
STOP_AFTER, KILL_AFTER = 7, 10
"""Micro-batches: a stop inside the third step, a kill inside the fourth, after the checkpoint of the second."""
LIMIT_S = 300
TEACHER = "teacher"
DRAWN = {
    "rewards": [{"type": "contains", "text": "i"}, {"type": "length", "target_tokens": 4}],
    "num_generations": 2,
    "max_completion_length": 8,
}
STAGE_SETTINGS: dict[Stage, JsonObject] = {
    Stage.DISTILL: {"teacher": TEACHER, "max_completion_length": 8},
    Stage.KTO: {"shared_prompt": True},
    Stage.PPO: {**DRAWN, "num_iterations": 4, "temperature": 1.0},
    Stage.GRPO: {**DRAWN, "num_iterations": 4, "beta": 0.1},
}
"""Settings besides the defaults: half of the completions of a distillation are drawn, and all steps of PPO and
GRPO learn from one rollout, so that a checkpoint inside it has to have it."""
SHARED_LOSSES = (PreferenceLoss.SIGMOID, PreferenceLoss.IPO, PreferenceLoss.ORPO)
PACKED_LOSSES = (PreferenceLoss.IPO, PreferenceLoss.KTO_PAIR)
"""Losses of stage dpo whose pairs share their prompts, and those whose pairs are packed: each layout is proved."""
PACK = {True: 64, False: 96}
"""Are prompts shared -> positions of a packed row: two or three pairs, so that a step has three micro-batches."""
DIGESTS = ("weights", "optimizer", "random", "losses")

TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@dataclass(frozen=True)
class Variation:
    """Settings that draw random numbers, change the base or its trainable weights while it trains."""

    stage: Stage
    method: Method
    stage_settings: Mapping[str, object] = field(default_factory=dict)
    method_settings: Mapping[str, object] = field(default_factory=dict)
    trainer: JsonMapping = field(default_factory=dict)


LATENT: Mapping[str, Mapping[str, object]] = {
    "pause": {"type": "pause", "count": 3},
    "coconut": {"type": "coconut", "max_stage": 1, "epochs_per_stage": 1, "mix": 0.5},
    "sparse": {"type": "dsa", "granularity": {"type": "token", "top_k": 6}},
    "heads": {"type": "dsa", "granularity": {"type": "head", "active": 2}},
    "quiet": {"type": "quiet_star", "thought_tokens": 2, "ahead": 2},
    "hidden_cot": {"type": "hidden_cot", "tokens_per_epoch": 2, "most_tokens": 4},
    "codi": {"type": "codi", "thoughts": 2},
}
"""Each technique of latent reasoning, which is proved with an adapter and with whole weights."""
VARIATIONS: Mapping[str, Variation] = {
    "neftune": Variation(Stage.SFT, Method.LORA, {"neftune_alpha": 5.0, "average": "row", "turns": "last"}),
    "pissa": Variation(Stage.SFT, Method.LORA, method_settings={"init": "pissa_niter_4"}),
    "loftq": Variation(Stage.SFT, Method.QLORA, method_settings={"init": "loftq"}),
    "lisa": Variation(Stage.SFT, Method.FREEZE, method_settings={"interval": 1}),
    **{
        f"{name}{suffix}": Variation(Stage.SFT, method, {"latent": latent})
        for name, latent in LATENT.items()
        for suffix, method in (("", Method.LORA), ("-full", Method.FULL))
    },
    "base": Variation(
        Stage.SFT, Method.FULL, trainer={"rope": RopeScaling(factor=2), "added_tokens": ("<|is|>", "indeed")}
    ),
}


@dataclass(frozen=True)
class Cell:
    """A stage, with its loss if it has more than one, and a method, possibly with further settings."""

    stage: Stage
    loss: PreferenceLoss | None
    method: Method
    variation: str = ""

    @property
    def trained(self) -> str:
        return f"{self.method}{f' {self.variation}' if self.variation else ''}"

    @property
    def name(self) -> str:
        return f"{self.stage}{f'-{self.loss}' if self.loss else ''}-{self.trained}".replace(" ", "-")


@dataclass(frozen=True)
class CellVerdict:
    """Outcome of one cell in one mode."""

    stage: str
    loss: str | None
    method: str
    mode: str
    identical: bool
    differs: list[str]
    sha256: dict[str, str]
    seconds: float
    error: str = ""


def cells(stages: tuple[Stage, ...] = STAGES, methods: tuple[Method, ...] = METHODS) -> list[Cell]:
    """Return all combinations, and the variations of them: 110 with every stage and method."""
    losses = {stage: tuple(PreferenceLoss) if stage is Stage.DPO else (None,) for stage in stages}
    plain = [Cell(stage, loss, method) for method in methods for stage in stages for loss in losses[stage]]
    varied = [Cell(cell.stage, None, cell.method, name) for name, cell in VARIATIONS.items()]
    return plain + [cell for cell in varied if cell.stage in stages and cell.method in methods]


# The small world that is trained in


def build_world(folder: Path) -> None:
    """A random model with a byte tokenizer, and rows for every port."""
    torch.manual_seed(0)
    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    plain = Tokenizer(models.BPE(vocab=letters, merges=[]))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    special = [f"<|{name}|>" for name in ("pad", "end", "user", "assistant", "system")]
    plain.add_special_tokens(special)
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_object=plain, pad_token="<|pad|>", eos_token="<|end|>", chat_template=TEMPLATE)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=256, attention_dropout=0.1, tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id, bos_token_id=None,
    )  # fmt: skip
    for name in ("model", TEACHER):
        LlamaForCausalLM(config).save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    for port, rows in world_rows().items():
        (folder / port.value).mkdir(parents=True)
        write_rows(folder / port.value / ROWS_FILE, port, rows)


def world_rows(count: int = 18) -> dict[Port, list[Row]]:
    """Sums and their results; a wrong result is the rejected one."""
    questions = [[Message("user", f"{n} + {n * 7 % 5}")] for n in range(count)]
    steps = [json.dumps({"reasoning_content": f"{n} and\n{n * 7 % 5}"}) for n in range(count)]
    right = [[Message("assistant", f"is {n + n * 7 % 5}{' indeed' * (n % 3)}", more=steps[n])] for n in range(count)]
    wrong = [[Message("assistant", f"is {n - 1}")] for n in range(count)]
    together = list(zip(questions, right, wrong, strict=True))
    return {
        Port.SFT: [SftRow([*question, *answer]) for question, answer, _ in together],
        Port.PREFERENCE: [PreferenceRow(*triple) for triple in together],
        Port.LABELLED: [
            LabelledRow(question, answer if n % 2 else other, bool(n % 2))
            for n, (question, answer, other) in enumerate(together)
        ],
        Port.TEXT: [TextRow(f"{question[0].content} {answer[0].content}. " * 3) for question, answer, _ in together],
    }


def stage_settings(cell: Cell) -> dict[str, object]:
    if cell.loss is None:
        return STAGE_SETTINGS.get(cell.stage, {})
    return {"loss": cell.loss, "shared_prompt": cell.loss in SHARED_LOSSES}


def build_job(cell: Cell, world: Path) -> TrainingJob:
    small = {key: SMALL[key] for key in SMALL.keys() & METHOD_SETTINGS[cell.method].model_fields.keys()}
    varied = VARIATIONS.get(cell.variation, Variation(cell.stage, cell.method))
    packed = {"batching": "packed", "token_budget": PACK[cell.loss in SHARED_LOSSES]}
    layout = packed if cell.loss in PACKED_LOSSES else {"batching": "padded"}
    config = TrainerConfig(
        stage=cell.stage.settings(**{**stage_settings(cell), **varied.stage_settings}),
        method=cell.method.settings(**{**small, **varied.method_settings}),
        hyperparameters=Hyperparameters(
            max_steps=STEPS, batch_size=2, gradient_accumulation=ACCUMULATION, learning_rate=1e-3, warmup_ratio=0.5,
            max_length=64, precision=Precision.FP32, schedule=Schedule.LINEAR, save_steps=SAVE_STEPS,
        ),
        engine=EngineSettings.model_validate(layout),
        device=Device.CPU,
        **varied.trainer,
    )  # fmt: skip
    ports = (Port.SFT, Port.PREFERENCE, Port.LABELLED, Port.TEXT)
    return TrainingJob(
        config=resolve_trainer(config, "model"),
        data={port: str(world / port.value) for port in ports},
        base=str(world / "model"),
        base_sha256="0" * 64,
        teacher=str(world / TEACHER) if config.stage.teacher_model else None,
        locks=str(world),
    )


# One run


class Silent:
    """Replaces the events of a supervised child: warnings are kept, everything else is dropped."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def emit(self, event: str, **fields: Any) -> None:
        if event == "warning":
            self.warnings.append(str(fields.get("text", "")))

    def stop_requested(self) -> bool:
        return False


def count_calls(after: int | None, act: Callable[[], bool]) -> Callable[[], bool]:
    """Return a stop signal that acts when it was asked `after` times (once before every micro-batch)."""
    calls = itertools.count()
    return lambda: act() if after is not None and next(calls) == after else False


def die() -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


def train_cell(cell: Cell, world: Path, folder: Path, stop: Callable[[], bool], dropped: str | None = None) -> None:
    """Train a cell from the state of `folder`; writes `digests.json` at its end.

    `dropped` names a part of the state that is not taken back: a proof that cannot fail would prove nothing.
    """
    job = build_job(cell, world)
    set_determinism(job)
    folder.mkdir(parents=True, exist_ok=True)
    events: Any = Silent()
    run = assemble(job, folder, events, "cpu")
    checkpoint = find_newest(folder / "checkpoints", None)
    if checkpoint.path is not None:
        resume(run, checkpoint.path, events, dropped=frozenset({dropped} if dropped else ()))
    with CheckpointWriter(folder / "checkpoints") as writer:
        finished = train(
            run.session, run.feed, run.progress, total_steps=run.total_steps,
            save=lambda session, progress: commit_checkpoint(writer, session, progress),
            save_steps=SAVE_STEPS, stop=stop,
        )  # fmt: skip
    if finished:
        switch_to_eval(run.session.engine.optimizer)
        (folder / "digests.json").write_text(json.dumps(digests(run)), encoding="utf-8")


def commit_checkpoint(writer: CheckpointWriter, session: Any, progress: Any) -> None:
    """A checkpoint that is on the disk when this returns, so that a kill later finds it."""
    save_checkpoint(writer, session, progress)
    writer.wait()


def digests(run: NativeRun) -> dict[str, str]:
    """SHA-256 of what a run ends with."""
    values, hashes = {**run.session.snapshot().parts, "losses": run.progress.losses}, {}
    for part in DIGESTS:
        tensors: dict[str, torch.Tensor] = {}
        hasher = hashlib.sha256(json.dumps(flatten(values[part], "value", tensors), sort_keys=True).encode())
        for name, tensor in sorted(tensors.items()):
            bits = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            hasher.update(name.encode() + bits.numpy().tobytes())
        hashes[part] = hasher.hexdigest()
    return hashes


# A cell, in processes of its own


def run_in_fork(work: Callable[[], None], log: Path) -> int:
    """Run `work` in a forked process; returns its exit code (negative: ended by that signal)."""
    child = multiprocessing.get_context("fork").Process(target=run_logged, args=(work, log))
    child.start()
    child.join(LIMIT_S)
    if child.is_alive():
        child.kill()
        child.join()
    return int(child.exitcode or 0)


def run_logged(work: Callable[[], None], log: Path) -> None:
    """The forked side: its words go to a file, and it leaves without running the parent's clean-up."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    work()


def prove(cell: Cell, world: Path, root: Path, dropped: str | None = None) -> list[CellVerdict]:
    """Return the verdicts of one cell."""
    verdicts = []
    folder = root / cell.name
    expected = run_mode(cell, world, folder / "straight", [None])
    modes: dict[str, list[tuple[int, Callable[[], bool]] | None]] = {
        "stopped": [(STOP_AFTER, lambda: True), None],
        "killed": [(KILL_AFTER, die), None],
    }
    for mode in MODES:
        started = time.monotonic()
        actual = run_mode(cell, world, folder / mode, modes[mode], dropped)
        differs = [name for name in DIGESTS if expected.get(name) != actual.get(name) or name not in expected]
        error = expected.get("error", "") or actual.get("error", "")
        verdict = CellVerdict(
            str(cell.stage), str(cell.loss) if cell.loss else None, cell.trained, mode, not differs and not error,
            differs, {name: actual.get(name, "") for name in DIGESTS}, round(time.monotonic() - started, 2), error,
        )  # fmt: skip
        verdicts.append(verdict)
    shutil.rmtree(folder, ignore_errors=True)
    return verdicts


def run_mode(
    cell: Cell,
    world: Path,
    folder: Path,
    attempts: list[tuple[int, Callable[[], bool]] | None],
    dropped: str | None = None,
) -> dict[str, str]:
    """Start a cell as often as the mode asks; the digests that it ends with, or {error}."""
    folder.mkdir(parents=True, exist_ok=True)
    for interruption in attempts:
        stop = count_calls(*interruption) if interruption else lambda: False
        code = run_in_fork(lambda stop=stop: train_cell(cell, world, folder, stop, dropped), folder / "log")  # type: ignore[misc]
        exit_codes = (-signal.SIGKILL,) if interruption and interruption[1] is die else (0,)
        if code not in exit_codes:
            lines = (folder / "log").read_text(errors="replace").strip().splitlines()
            return {"error": f"exit {code}: {lines[-1] if lines else 'no message'}"}
    path = folder / "digests.json"
    hashes: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"error": "no end"}
    return hashes


def main(folder: Path) -> int:
    """Carry out `folder/spec.json` {stages, methods, jobs, dropped}; one verdict a line to `folder/verdicts.jsonl`."""
    spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    build_world(folder / "world")
    selection = cells(tuple(map(Stage, spec["stages"])), tuple(map(Method, spec["methods"])))
    (folder / "runs").mkdir()
    proof = partial(prove, world=folder / "world", root=folder / "runs", dropped=spec.get("dropped"))
    # Forked before the pool has a thread: a process that is forked off one inherits locks that nobody ever releases.
    fork = multiprocessing.get_context("fork")
    with (
        (folder / "verdicts.jsonl").open("w", encoding="utf-8") as lines,
        ProcessPoolExecutor(spec["jobs"], fork) as pool,
    ):
        for verdict in chain.from_iterable(pool.map(proof, selection)):
            lines.write(json.dumps(asdict(verdict)) + "\n")
            lines.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
