"""What does it save to compute the prompt of a preference pair once, for both of its answers?

DPO with the model and the rows of `dpo_speed`: prompt and answer have three tokens to one, then one to one; all weights
move, three epochs. The variants differ in `stage.shared_prompt` alone and draw the same steps.

    limit    operations of the rows apart, as a multiple of those with shared prompts: the weights at every token,
             attention to every token that is seen, the output layer at every label; no padding
    packed   the shared rows end to end in one: on a CPU, whose attention computes what the mask hides, no gain
    TRL      DPOConfig as it comes

    python -m benchmarks.shared_prompt
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from trl.trainer.dpo_config import DPOConfig

from benchmarks.dpo_speed import EPOCHS, PAIRS, config, pairs
from benchmarks.harness import Row, alternate, finish, median
from benchmarks.trainers import assembled, build_model, build_trl, quiet, run_ours, run_trl
from trainyard.backends.native.assembly import NativeRun, policy_request, reference_scores
from trainyard.data.rows import PreferenceRow
from trainyard.spec.axes.data import Port
from trainyard.train.contracts import Encoded
from trainyard.train.methods.table import build
from trainyard.train.rows.sharing import Operations
from trainyard.train.session.session import Session

PACKED = {"batching": "packed"}


def engine(
    folder: Path, base: Path, rows: Sequence[PreferenceRow], shared: str | bool, **settings: Any
) -> tuple[NativeRun, Callable[[], float]]:
    """Our engine for these rows, and its variant: the reference's scores are part of what is timed."""
    stage = {"type": "dpo", "shared_prompt": shared}
    run = assembled(folder, base, Port.PREFERENCE, rows, {**config(), "stage": stage, "engine": settings})
    reference = build(policy_request(run.job, "cpu"), with_reference=True).reference

    def ask_reference(session: Session) -> None:
        session.engine.reference = reference
        run.feed.reference = reference_scores(session, run.feed)

    return run, run_ours(run, float(EPOCHS * len(run.feed.examples)), ask_reference)


def limit(run: NativeRun) -> float:
    """By how much fewer operations the shared prompts could save at most."""
    cost = Operations.of_model(run.policy.model)
    apart = sum(operations(cost, example, shared=False) for example in run.feed.examples)
    return apart / sum(operations(cost, example, shared=True) for example in run.feed.examples)


def operations(cost: Operations, example: Encoded, *, shared: bool) -> float:
    """A forward pass over one pair; the backward pass takes twice that in both cases."""
    prompt, answers = len(example["prompt_ids"]), [len(example[side]) for side in ("chosen_ids", "rejected_ids")]
    tokens = sum(answers) + (prompt if shared else 2 * prompt)
    inside = prompt**2 / 2 * (1 if shared else 2)
    seen = inside + sum(answer * prompt + answer**2 / 2 for answer in answers)
    return tokens * cost.per_position + seen * cost.per_seen + sum(answers) * cost.per_label


def main() -> int:
    quiet()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = build_model(folder / "model")
        long, short = pairs(PAIRS), pairs(PAIRS, prompt_tokens=1)
        shared, shared_variant = engine(folder / "shared", base, long, True)
        auto, auto_variant = engine(folder / "auto", base, short, "auto")
        print(f"1 : 1, auto: {auto.cut.shared_why}")
        trl = build_trl("dpo", DPOConfig, base, folder / "trl", shared.feed.examples, num_train_epochs=EPOCHS)
        samples = alternate(
            {
                "3:1 shared": shared_variant,
                "3:1 apart": engine(folder / "apart", base, long, False)[1],
                "3:1 shared, packed": engine(folder / "packed", base, long, True, **PACKED)[1],
                "1:1 auto": auto_variant,
                "1:1 apart": engine(folder / "short", base, short, False)[1],
                "TRL default": run_trl(trl, float(EPOCHS * len(shared.feed.examples))),
            },
            rounds=5,
        )
        most = limit(shared)
    rate = {name: median(variant_samples, "per_cpu_second") for name, variant_samples in samples.items()}
    metric, gain = "pairs per CPU second", rate["3:1 shared"] / rate["3:1 apart"]
    rows = [
        Row.ratio_at_least(metric, rate["3:1 shared"], rate["3:1 apart"], "3 : 1, rows apart", 1.2),
        Row.ratio_at_least("the same ratio, of its limit", gain, most, "operations", 0.8),
        Row.ratio_at_least(metric, rate["1:1 auto"], rate["1:1 apart"], "1 : 1, rows apart", 1.0),
        Row.ratio_at_least(metric, rate["3:1 shared"], rate["TRL default"], "TRL default", 5),
        Row.ratio_at_least(metric, rate["3:1 shared, packed"], rate["3:1 apart"], "packed; 3 : 1, rows apart", 0.9),
    ]
    return finish("shared_prompt", rows, samples)


if __name__ == "__main__":
    sys.exit(main())
