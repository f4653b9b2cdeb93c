"""Seeded runs at the doubles of cloud providers: does each run leave exactly one paid job, whatever goes wrong?

    python -m benchmarks.providers --runs 200
    python -m benchmarks.providers --runs 10 --provider together

A run uploads rows, submits, follows and charges. Its seed chooses lost replies, 429 and 5xx, jobs that are missing for
a while, lists that lag, unknown states and up to 10,000 events, and kills the process up to twice: at an event, or
between a request that creates a job and its reply. A killed run starts again in the same folder.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import size
from trainyard.backends.cloud.contract import CloudRequest, Provider, ProviderAddress, UploadedRows
from trainyard.backends.cloud.submission import JOURNAL_FILE, PollPace, Submission
from trainyard.compute.child import EVENTS_FILE
from trainyard.compute.events import read_events
from trainyard.loading import load_object
from trainyard.spec.axes.stages import Stage
from trainyard.testing.loopback import serving
from trainyard.testing.providers.double import KEY, ProviderDouble
from trainyard.testing.providers.faults import Faults
from trainyard.workers.trainyard_worker.contract import EventWriter

PACE = PollPace(poll_s=0.001, settle_s=0.004)
MODELS = {"openai": "gpt-4o-mini-2024-07-18"}
VARIABLES = {
    "FIREWORKS_ACCOUNT_ID": "acme", "AWS_ACCESS_KEY_ID": KEY, "AWS_REGION": "us-east-1",
    "BEDROCK_ROLE_ARN": "arn:aws:iam::123456789012:role/tuning", "BEDROCK_BUCKET": "rows",
    "GOOGLE_CLOUD_PROJECT": "acme", "GOOGLE_CLOUD_LOCATION": "us-central1", "VERTEX_BUCKET": "rows",
    "HF_JOBS_NAMESPACE": "acme",
}  # fmt: skip
SAYS_COSTS = {"bedrock": 0}
"""Provider that says neither a price nor tokens of a job."""
ADDRESSES = {"together": "/v1", "openai": "/v1"}
DOUBLES = {
    "together": "trainyard.testing.providers.together:TogetherDouble",
    "fireworks": "trainyard.testing.providers.fireworks:FireworksDouble",
    "openai": "trainyard.testing.providers.openai:OpenAiDouble",
    "bedrock": "trainyard.testing.providers.bedrock:BedrockDouble",
    "vertex": "trainyard.testing.providers.vertex:VertexDouble",
    "hf_jobs": "trainyard.testing.providers.hf_jobs:HfJobsDouble",
}


class Killed(BaseException):
    """Stands for SIGKILL: no handler of the product sees it."""


@dataclass
class Outcome:
    """What a run left."""

    name: str
    seed: int
    jobs: int
    kills: int
    events_missing: int
    events_twice: int
    costs: int

    @property
    def problem(self) -> str:
        """Return the problem with it; empty for none."""
        wrong = {
            "jobs": self.jobs != 1,
            "costs": self.costs != SAYS_COSTS.get(self.name, 1),
            "missing events": bool(self.events_missing),
            "events twice": bool(self.events_twice),
        }
        return ", ".join(name for name, bad in wrong.items() if bad)


class KilledAtCreate:
    """A provider whose caller dies after the request that creates a job."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider

    def __getattr__(self, name: str) -> Any:
        return getattr(self.provider, name)

    def create(self, request: CloudRequest, rows: UploadedRows) -> Any:
        try:
            self.provider.create(request, rows)
        finally:
            raise Killed


def run_seed(name: str, seed: int, server: ProviderDouble, provider: Provider) -> Outcome:
    """Run one seed to its end, through its kills."""
    server.faults = Faults.choose(seed)
    server.jobs.clear()
    chosen, kills = random.Random(seed * 31 + 1), 0
    deaths = [chosen.choice(("create", "event")) for _ in range(chosen.choice((0, 0, 1, 2)))]
    with tempfile.TemporaryDirectory() as name_of_folder:
        folder = Path(name_of_folder)
        rows = folder / "rows.jsonl"
        turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        rows.write_text(json.dumps({"messages": turns}) + "\n")
        while True:
            death = deaths.pop(0) if deaths else ""
            writer = EventWriter(folder / EVENTS_FILE)
            emit = killing_at(chosen.randrange(1, 12), writer.emit) if death == "event" else writer.emit
            caller = KilledAtCreate(provider) if death == "create" else provider
            submission = Submission(caller, f"{seed:032x}"[::-1], folder, emit, PACE)  # type: ignore[arg-type]
            try:
                uploaded = UploadedRows(submission.upload("rows", rows))
                model = MODELS.get(name, "meta-llama/Llama-3-8b")
                request = CloudRequest(submission.run_key, model, Stage.SFT, epochs=1, batch_size=4, timeout_s=600.0)
                submission.follow(submission.submit(request, uploaded))
                break
            except Killed:
                kills += 1
        (folder / JOURNAL_FILE).unlink()
        written = list(read_events(folder / EVENTS_FILE))
    remote = Counter(event["remote_id"] for event in written if event["event"] == "remote")
    expected = len(remote) if name not in ("together", "openai") else next(iter(server.jobs.values())).events
    texts = [key for key in remote if "step-" not in key]
    return Outcome(
        name, seed, len(server.jobs), kills, expected - len(texts) if name in ("together", "openai") else 0,
        sum(count - 1 for count in remote.values()), sum(event["event"] in ("cost", "usage") for event in written),
    )  # fmt: skip


def killing_at(number: int, emit: Callable[..., None]) -> Callable[..., None]:
    """Return an `emit` that dies before its event of that number."""
    left = [number]

    def emit_or_die(event: str, **fields: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed
        emit(event, **fields)

    return emit_or_die


def measure(name: str, runs: int) -> list[Outcome]:
    """Return the outcomes of the seeds of one provider."""
    double, module = load_object(DOUBLES[name]), f"trainyard.backends.cloud.{name}"
    with serving(double()) as server:
        address = ProviderAddress(server.url + ADDRESSES.get(name, ""), KEY, VARIABLES)
        provider = load_object(f"{module}:open_provider")(address)
        return [run_seed(name, seed, server, provider) for seed in range(runs)]  # type: ignore[arg-type]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    os.environ["HF_HUB_OFFLINE"] = "0"  # the doubles are on loopback; the Hub's client is imported later
    parser.add_argument("--runs", type=int, default=size(200, 3))
    parser.add_argument("--provider", choices=DOUBLES, action="append")
    arguments = parser.parse_args()
    failed = 0
    for name in arguments.provider or DOUBLES:
        started = time.monotonic()
        outcomes = measure(name, arguments.runs)
        bad = [outcome for outcome in outcomes if outcome.problem]
        failed += len(bad)
        kills = sum(outcome.kills for outcome in outcomes)
        print(f"{name:10} {len(outcomes)} runs, {kills} kills, {len(bad)} wrong, {time.monotonic() - started:.1f} s")
        for outcome in bad[:5]:
            print(f"           seed {outcome.seed}: {outcome.problem} {outcome}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
