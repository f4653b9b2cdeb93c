"""Side-by-side measurements: alternating runs, CPU seconds beside wall time, medians, machine facts, honest verdicts.

A benchmark file asks one question, measures its variants with `alternate`, turns medians into `Row`s and ends with
`finish`. The exit code is 0 when every bar holds, 1 when one is missed, 3 (`inconclusive`, never ok) when the machine
was busy: load average above 1.5 x cores before or after, our own load excepted.

    samples = alternate({"ours": run_ours, "datasets": run_datasets}, rounds=5)
    rows = [Row.at_least("rows per CPU-second", rate("ours"), 100_000), …]
    sys.exit(finish("jsonl_to_arrow", rows, samples))

Each variant is a function without arguments that does the whole work once and returns how many units it did.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

Variant = Callable[[], float]
SHORT = os.environ.get("TRAINYARD_BENCHMARKS_SHORT") == "1"
"""Whether this is the short form (`python -m benchmarks --short`), which shows that a benchmark runs: small sizes, one
round, no bar on what was timed."""
RESULTS = Path(__file__).parent / "results"
OK, MISSED, INCONCLUSIVE = 0, 1, 3


def size(full: int, short: int) -> int:
    """Return a size of the measurement, or that of its short form."""
    return short if SHORT else full


@dataclass(frozen=True)
class Sample:
    """One run of one variant."""

    units: float
    wall_s: float
    cpu_s: float
    """User and system seconds of this process and of its children."""

    @property
    def per_cpu_second(self) -> float:
        return self.units / max(self.cpu_s, 1e-9)

    @property
    def per_second(self) -> float:
        return self.units / max(self.wall_s, 1e-9)


@dataclass(frozen=True)
class Row:
    """One line of the table: our figure, the peer's, and the bar it has to meet."""

    metric: str
    ours: float
    peer: float | None
    peer_name: str
    value: float
    """What the bar is about: the ratio where there is a peer, else our figure."""
    bar: float
    direction: str
    ok: bool

    @staticmethod
    def at_least(metric: str, measurement: float, bar: float) -> Row:
        return Row(metric, measurement, None, "", measurement, bar, ">=", measurement >= bar)

    @staticmethod
    def at_most(metric: str, measurement: float, bar: float) -> Row:
        return Row(metric, measurement, None, "", measurement, bar, "<=", measurement <= bar)

    @staticmethod
    def ratio_at_least(metric: str, measurement: float, peer: float, peer_name: str, bar: float) -> Row:
        value = measurement / peer
        return Row(metric, measurement, peer, peer_name, value, bar, ">=", value >= bar)

    @staticmethod
    def ratio_at_most(metric: str, measurement: float, peer: float, peer_name: str, bar: float) -> Row:
        value = measurement / peer
        return Row(metric, measurement, peer, peer_name, value, bar, "<=", value <= bar)


def cpu_seconds() -> float:
    """CPU seconds of this process and its finished children so far."""
    self_usage, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return self_usage.ru_utime + self_usage.ru_stime + children.ru_utime + children.ru_stime


def running_cpu_seconds() -> float:
    """CPU seconds of the child processes that are running, and of what they started."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue  # it has just ended: its parent counts it
    return total


def measure(variant: Variant) -> Sample:
    """Run a variant once. A process that stays open between the runs, such as a service, counts too."""
    gc.collect()
    running = running_cpu_seconds()
    cpu, wall = cpu_seconds(), time.perf_counter()
    units = variant()
    wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
    return Sample(float(units), wall, cpu + running_cpu_seconds() - running)


def alternate(variants: Mapping[str, Variant], *, rounds: int = 5, warm_up: bool = True) -> dict[str, list[Sample]]:
    """Run the variants in turn, forwards and backwards (ABBA…), so that drift of the machine meets all of them."""
    if rounds < 5:
        raise ValueError(f"rounds={rounds}: a median needs at least 5")
    rounds = size(rounds, 1)
    names = list(variants)
    if warm_up and not SHORT:
        for name in names:
            variants[name]()
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            samples[name].append(measure(variants[name]))
    return samples


def median(samples: Sequence[Sample], figure: str) -> float:
    """Median of one figure (`wall_s`, `cpu_s`, `per_second`, `per_cpu_second`) over the samples."""
    return statistics.median(getattr(sample, figure) for sample in samples)


def machine() -> dict[str, object]:
    """What a reader has to know about the machine to read the figures."""
    flags = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags")), "")
    flag_names = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "sha_ni")
    return {
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpu_flags": [name for name in flag_names if f" {name}" in flags],
        "load_average": os.getloadavg(),
    }


_load_at_start = os.getloadavg()[0]


def busy() -> bool:
    """Whether others used the machine: the one-minute load when this module was imported."""
    return _load_at_start > 1.5 * (os.cpu_count() or 1)


def finish(name: str, rows: Sequence[Row], samples: Mapping[str, Sequence[Sample]]) -> int:
    """Print the table, write `results/<name>.json`, return the exit code. Without samples nothing was timed, and a busy
    machine makes no difference. In the short form, what was timed has no bar."""
    verdict = INCONCLUSIVE if samples and busy() else OK if all(row.ok for row in rows) else MISSED
    if SHORT and samples:
        verdict = OK
    word = {OK: "ok", MISSED: "missed", INCONCLUSIVE: "inconclusive"}[verdict]
    print(f"{name}: {word} (load at start {_load_at_start:.2f}, {os.cpu_count()} cores)")
    print(f"  {'metric':<52} {'ours':>12} {'peer':>12} {'value':>9} {'bar':>10}  ok")
    for row in rows:
        peer = f"{row.peer:,.3f}" if row.peer is not None else "-"
        label = f"{row.metric} / {row.peer_name}" if row.peer_name else row.metric
        bar = f"{row.direction} {row.bar:g}"
        print(f"  {label:<52} {row.ours:>12,.3f} {peer:>12} {row.value:>9.3f} {bar:>10}  {'yes' if row.ok else 'NO'}")
    if SHORT:
        print("  the short form: no bar on what was timed")
        return verdict
    RESULTS.mkdir(exist_ok=True)
    record = {
        "name": name,
        "verdict": word,
        "machine": machine(),
        "load_at_start": _load_at_start,
        "rows": [asdict(row) for row in rows],
        "samples": {
            variant: [asdict(sample) for sample in variant_samples] for variant, variant_samples in samples.items()
        },
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=1))
    return verdict
