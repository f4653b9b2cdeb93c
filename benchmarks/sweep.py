"""How many steps does a sweep with rungs take to find the best of sixteen whole trainings?

Sixteen sets of values of a tiny model (learning rates over four decades, three ranks; `tools/sweep_program.py`), 27
steps each: once every training to its end, once stopped at steps 3 and 9 by asynchronous successive halving, where a
third continues. Printed are the steps of both, the share of the second, and whether both find the same best trial.

    python -m benchmarks.sweep
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from benchmarks.harness import Row, Sample, finish, size
from tests.small_jobs import Jobs, write_data
from tools.sweep_program import TRIALS, make_spec, run_sweep, trained_steps
from trainyard.sweeps.asha import find_best
from trainyard.testing.tiny import build_tiny_model

MOST_SHARE = 0.5


def measure(folder: Path) -> int:
    model = folder / "model"
    build_tiny_model(model)
    jobs = Jobs(model, write_data(folder / "data"), folder / "locks")
    steps, best, samples = {}, {}, {}
    for scheduler in ("none", "asha"):
        cpu_s, wall_s = time.process_time(), time.monotonic()
        study = run_sweep(folder / scheduler, make_spec(model, scheduler, size(TRIALS, 4)), jobs)
        steps[scheduler] = trained_steps(folder / scheduler)
        best[scheduler] = find_best(study.trials(), highest=False)
        used = Sample(float(steps[scheduler]), time.monotonic() - wall_s, time.process_time() - cpu_s)
        samples[scheduler] = [used]
        trial = best[scheduler]
        print(f"{scheduler}: {steps[scheduler]} steps, best {trial and (trial.number, trial.value)}", flush=True)
    same = best["none"] is not None and best["asha"] is not None and best["none"].number == best["asha"].number
    rows = [
        Row.at_most("share of the steps of whole trainings", steps["asha"] / steps["none"], MOST_SHARE),
        Row.at_least("the same best trial", float(same), 1.0),
    ]
    return finish("sweep", rows, samples)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder))


if __name__ == "__main__":
    sys.exit(main())
