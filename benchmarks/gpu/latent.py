"""Do COCONUT and stepwise internalisation reach on a card what their papers report, with models from scratch?

    graphs          18,000 rows as in ProsQA, a GPT-2-small shape: 95 % with thoughts, 76 % for the answer alone
    multiplication  4 x 4 digits, two layers of width 768: all right by stepwise internalisation, below 30 % directly

    python -m benchmarks.gpu latent                                   # continue where it stopped, for 8.5 minutes
    python -m benchmarks.gpu.latent --only coconut --minutes 5        # one of the courses

COCONUT and its control begin with the weights that have learned the steps in words, as the paper does for GSM8k: a
model from scratch has to learn them first. All courses train at once, each in a process of its own, because one alone
leaves most of a card unused. A course that takes longer than `--minutes` keeps its state in a folder, and the same
command continues it. The table is written when every course is at its end.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.course import Course, Training
from benchmarks.gpu.latent_rows import END as GRAPH_END
from benchmarks.gpu.latent_rows import (
    GRAPH_POSITIONS,
    GRAPH_WORDS,
    LONGEST,
    PRODUCT_WORDS,
    STOP,
    draw_product,
    graph_row,
)
from benchmarks.gpu.platform import PLATFORM, WHY, Platform, result_name
from benchmarks.harness import OK, RESULTS, Row, finish
from benchmarks.latent.toys import Learning, Task

MINUTES, STATES, LOOK_S = 8.5, "gpu_latent", 0.5
GRAPH_ROWS, PRODUCT_ROWS = 18_000, 808_000
WORDS_EPOCHS, STAGE_EPOCHS, LAST_EPOCHS = 20, 4, 8
GPT2_SMALL: dict[str, int] = {"n_embd": 768, "n_layer": 12, "n_head": 12}
TWO_LAYERS: dict[str, int] = {"n_embd": 768, "n_layer": 2, "n_head": 4}
TINY: dict[str, int] = {"n_embd": 32, "n_layer": 2, "n_head": 2}


def graph_courses() -> list[Course]:
    """Steps in words, COCONUT and its control from there, and the answer alone for as many epochs as both together."""
    learning = Learning(rate=1e-4, warmup_steps=100)
    task = Task(graph_row, GRAPH_WORDS, GRAPH_POSITIONS, end_id=GRAPH_END, learning=learning)
    coconut = {"type": "coconut", "max_stage": LONGEST, "epochs_per_stage": STAGE_EPOCHS, "first_stage": 1}
    epochs = STAGE_EPOCHS * LONGEST + LAST_EPOCHS
    base_course = Course("", task, GRAPH_ROWS, epochs, GPT2_SMALL, most_tokens=5 * LONGEST + 3, fixed_rows=True)
    thoughts = replace(base_course, begins_with="words", thoughts=LONGEST + 2)
    return [
        replace(base_course, name="words", steps_in_words=True, epochs=WORDS_EPOCHS),
        replace(thoughts, name="coconut", latent=coconut),
        replace(thoughts, name="pause", latent={**coconut, "feedback": False}),
        replace(base_course, name="answer_alone", epochs=WORDS_EPOCHS + epochs),
    ]


def product_courses(width: int = 4) -> list[Course]:
    """Eight tokens of the reasoning fewer in each epoch, and direct training for as many epochs."""
    held_out = partial(draw_product, width=width, held_out=True)
    learning = Learning(rate=3e-4, warmup_steps=100)
    draw = partial(draw_product, width=width)
    task = Task(draw, PRODUCT_WORDS, 128, end_id=STOP, held_out=held_out, learning=learning)
    reasoning = len(task.draw(random.Random(0))["step_ids"])
    internalised = {"type": "hidden_cot", "tokens_per_epoch": 8, "most_tokens": reasoning}
    epochs = 1 + -(-reasoning // 8) + 5
    base_course = Course("", task, PRODUCT_ROWS, epochs, TWO_LAYERS, most_tokens=2 * width + 2, batch=256, workers=4)
    return [replace(base_course, name="stepwise", latent=internalised), replace(base_course, name="direct")]


def courses(platform: Platform) -> list[Course]:
    """All of them; a rehearsal has tiny models and few rows."""
    all_courses = [*graph_courses(), *product_courses(2 if platform.rehearsal else 4)]
    return [rehearsed(course) for course in all_courses] if platform.rehearsal else all_courses


def rehearsed(course: Course) -> Course:
    """A course with two steps an epoch, whose stages change with each of them."""
    latent = {**course.latent, "epochs_per_stage": 1} if "max_stage" in (course.latent or {}) else course.latent
    return replace(course, rows=32, batch=16, sizes=TINY, epochs=LONGEST + 2, latent=latent)


def train_one(course: Course, platform: Platform, states: Path, end: float) -> None:
    """Continue a course until it or the time is at its end."""
    training = Training(course, platform, states)
    if not training.done:
        training.continue_until(end)
    losses = f"loss {training.losses[-1]:.4f}" if training.losses else "not begun"
    at = f"epoch {training.epoch} of {course.epochs}, step {training.step}, {losses}"
    print(f"{course.name}: {at}, {training.seconds:.0f} s, accuracy {training.accuracy:.3f}", flush=True)


def train_all(courses: list[Course], states: Path, end: float) -> None:
    """Each course in a process of its own, as soon as the one that it begins with is at its end."""
    waiting, running = list(courses), list[subprocess.Popen[bytes]]()
    command = [sys.executable, "-m", "benchmarks.gpu.latent", "--states", str(states)]
    while time.monotonic() < end:
        for course in [
            course for course in waiting if course.begins_with is None or is_done(course.begins_with, states)
        ]:
            waiting.remove(course)
            left = ["--only", course.name, "--minutes", str((end - time.monotonic()) / 60)]
            running.append(subprocess.Popen([*command, *left]))
        running = [child for child in running if child.poll() is None]
        if not running:
            break
        time.sleep(LOOK_S)
    for child in running:
        child.wait()


def known_of(name: str, states: Path) -> dict[str, Any]:
    """What is known of a course; empty before its first piece."""
    path = states / f"{name}.json"
    state: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return state


def is_done(name: str, states: Path) -> bool:
    return known_of(name, states).get("accuracy", -1.0) >= 0


BARS: dict[str, tuple[float, bool]] = {
    "coconut": (0.95, True), "answer_alone": (0.85, False), "stepwise": (0.99, True), "direct": (0.3, False),
}  # fmt: skip
"""Course -> its accuracy, and whether that is the least or the most; 0.76 is the answer alone of the paper."""


def rows_of(course_states: dict[str, dict[str, Any]], platform: Platform) -> list[Row]:
    """Accuracies, and the tokens of an answer, thoughts included."""
    rows = []
    for name, state in course_states.items():
        bar, least = BARS.get(name, (0.0, True))
        make = Row.at_least if least else Row.at_most
        rows.append(
            make(f"accuracy, {name}", state["accuracy"], (0.0 if least else 1.0) if platform.rehearsal else bar)
        )
        rows.append(Row.at_least(f"tokens of an answer, {name}", state["tokens"], 0.0))
    return rows


def main(arguments: Sequence[str] = ()) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.latent")
    parser.add_argument("--only", help="a course; default: all at once")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--states", type=Path, help="a folder; default: next to the tables, in a rehearsal a new one")
    args = parser.parse_args(arguments)
    if PLATFORM is None:
        print(f"latent: {WHY}")
        return OK
    torch.set_float32_matmul_precision("high")
    states = args.states or (Path(tempfile.mkdtemp()) if PLATFORM.rehearsal else RESULTS / STATES)
    end, all_courses = time.monotonic() + 60 * args.minutes, courses(PLATFORM)
    if args.get_single is not None:
        (course,) = [course for course in all_courses if course.name == args.get_single]
        train_one(course, PLATFORM, states, end)
        return OK
    train_all(all_courses, states, end)
    if not all(is_done(course.name, states) for course in all_courses):
        print("latent: not at the end yet; the same command continues")
        return OK
    course_states = {course.name: known_of(course.name, states) for course in all_courses}
    return finish(result_name("gpu_latent", PLATFORM), rows_of(course_states, PLATFORM), {})


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
