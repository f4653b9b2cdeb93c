"""Ask the judge: a server that answers chat completions, any number of requests at once, each reply checked.

The evaluating child has written the participants' answers to `scores.json`; this side imports no torch. What is judged
has the form of a scored line afterwards, so statistics, gate and report are those of every benchmark. A call that fails
(no server, prose in place of JSON) is counted by its reason and written to the quarantine; its row is left out.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from trainyard.data.quarantine import ROW_CHARS, make_printable
from trainyard.errors import TrainyardError, Unavailable
from trainyard.evals.benchmarks import judged
from trainyard.evals.benchmarks.judged import BadReply, PairVerdict, Verdict
from trainyard.evals.cases import Case
from trainyard.evals.job import EvaluationJob
from trainyard.evals.statistics import bootstrap, kappa_interval
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.serve.client.client import ChatClient, api_key_from
from trainyard.settings import Settings
from trainyard.spec.nodes import JudgeSettings

QUARANTINE_FILE = "judge_quarantine.jsonl"
LEAST_ANSWERED = 0.5
"""Below this share of usable replies the evaluation fails: what is left would not be a sample."""
MILLION = 1_000_000


@dataclass
class Judge:
    """One judge: its client, and what became of every call."""

    settings: JudgeSettings
    client: ChatClient
    seed: int
    calls: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    quarantine: list[dict[str, str]] = field(default_factory=list)
    last: TrainyardError | None = None

    async def ask(self, row: str, messages: list[dict[str, str]], schema: JsonObject) -> Any:
        """Return the reply's JSON; None for a call that failed, which is entered under its reason."""
        self.calls += 1
        settings = self.settings
        text = ""
        try:
            reply = await self.client.complete(
                messages, schema, self.seed, max_tokens=settings.max_tokens, temperature=settings.temperature
            )
            text = reply.text
            return judged.read_reply(text, schema)
        except BadReply as bad:
            self.enter(row, bad.reason, bad.detail, text)
        except TrainyardError as error:
            self.last = error
            self.enter(row, error.code.removeprefix("E-").lower().replace("-", "_"), str(error), text)
        return None

    def enter(self, row: str, reason: str, detail: str, text: str) -> None:
        self.failures[reason] += 1
        line = {"row": row, "reason": reason, "detail": detail[:ROW_CHARS], "reply": text[:ROW_CHARS]}
        self.quarantine.append({name: make_printable(value) for name, value in line.items()})

    async def pair(self, case: Case, first: str, second: str) -> PairVerdict:
        """The verdicts on two answers in both orders."""
        replies = [
            await self.ask(case.id, judged.pair_messages(case, *order), judged.PAIR_SCHEMA)
            for order in ((first, second), (second, first))
        ]
        straight, turned = (None if reply is None else Verdict(reply["winner"]) for reply in replies)
        return PairVerdict(straight, turned.swapped if turned is not None else None)

    async def score(self, case: Case, answer: str) -> float | None:
        """Return the score of one answer by the rubric."""
        messages = judged.rubric_messages(case, answer, self.settings.rubric or "")
        reply = await self.ask(case.id, messages, judged.RUBRIC_SCHEMA)
        return None if reply is None else float(reply["score"])

    def account(self) -> dict[str, object]:
        """Calls, tokens, cost and failures; of no cost where no price is given."""
        usage, prices = self.client.usage(), self.settings
        tokens = ((usage["prompt_tokens"], prices.usd_per_million_prompt_tokens),
                  (usage["completion_tokens"], prices.usd_per_million_completion_tokens))  # fmt: skip
        has_prices = all(price is not None for _, price in tokens)
        cost = sum(count * (price or 0.0) for count, price in tokens) / MILLION if has_prices else None
        return {
            "model": self.client.model,
            "calls": self.calls,
            "failed": dict(sorted(self.failures.items())),
            **{name: usage[name] for name in ("prompt_tokens", "completion_tokens")},
            "cost_usd": cost,
        }


def judge_scores(
    job: EvaluationJob, scores: JsonMapping, cases: Mapping[str, Sequence[Case]], folder: Path, settings: Settings
) -> dict[str, object]:
    """Return the child's scores with the judged lines judged. `cases` are those of each judged line, by its label.

    Failed calls are written to `folder`. Raises `Unavailable` when the judge fails for half of its calls, and
    `TrainyardError` (`E-BENCHMARK`) when no verdict is left.
    """
    lines = []
    for line in scores["benchmarks"]:
        line_cases = cases.get(f"{line['name']}/{line['set']}")
        lines.append(asyncio.run(judge_line(job, line, line_cases, folder, settings)) if line_cases else line)
    return {**scores, "benchmarks": lines}


async def judge_line(
    job: EvaluationJob, line: JsonMapping, cases: Sequence[Case], folder: Path, settings: Settings
) -> JsonObject:
    """A line of answers as a line of values. Raises as `judge_scores`."""
    judge_settings = job.config.judge
    assert judge_settings is not None, "a judged benchmark has a judge"
    cases = [cases[index] for index in line["places"]]
    async with open_client(judge_settings, settings) as client:
        judge = Judge(judge_settings, client, job.config.seed)
        if line["name"] == "judge":
            values, facts = await judge_pairs(judge, job, line, cases)
        else:
            values, facts = await judge_rubric(judge, line, cases), {}
    write_quarantine(folder / QUARANTINE_FILE, judge.quarantine)
    require_answered(judge)
    indices = [at for at in range(len(cases)) if all(scores[at] is not None for scores in values.values())]
    if not indices:
        raise no_verdict_error(judge, facts)
    return {
        **{name: value for name, value in line.items() if name not in ("answers", "places")},
        "ids": [line["ids"][at] for at in indices],
        "clusters": [line["clusters"][at] for at in indices],
        "values": {role: [scores[at] for at in indices] for role, scores in values.items()},
        "skipped": line["skipped"] + len(cases) - len(indices),
        "judge": {**judge.account(), **facts},
    }


def open_client(judge: JudgeSettings, settings: Settings) -> ChatClient:
    """Return the judge's client: at its endpoint with the key of it, or at an address without a key."""
    address, model, key = judge.base_url, judge.model, None
    if judge.endpoint is not None:
        endpoint = settings.endpoint(judge.endpoint)
        address, model = endpoint.base_url, judge.model or endpoint.model or judge.endpoint
        key = api_key_from(endpoint.api_key_env)
    assert address is not None, "the spec has either an endpoint or an address"
    limits: Any = {"concurrency": judge.concurrency, "retries": judge.retries, "timeout_s": judge.timeout_s}
    return ChatClient(address, model or "judge", key, private_hosts=settings.private_hosts, **limits)


async def gather(judge: Judge, work: Callable[[int], Awaitable[Any]], count: int) -> list[Any]:
    """`work(index)` of each index, as many at a time as the judge takes."""
    slots = asyncio.Semaphore(judge.settings.concurrency)

    async def call(at: int) -> Any:
        async with slots:
            return await work(at)

    return list(await asyncio.gather(*(call(at) for at in range(count))))


async def judge_pairs(
    judge: Judge, job: EvaluationJob, line: JsonMapping, cases: Sequence[Case]
) -> tuple[dict[str, list[float | None]], JsonObject]:
    """Return the wins of each participant against the baseline, and the facts of the judge."""
    answers: Mapping[str, Sequence[str]] = line["answers"]
    shares: dict[str, list[float | None]] = {"baseline": [0.5] * len(cases)}
    verdicts: list[PairVerdict] = []
    for role, texts in answers.items():
        if role == "baseline":
            continue
        work = partial(judge_against, judge, cases, answers["baseline"], texts)
        pairs = await gather(judge, work, len(cases))
        shares[role] = [verdict.share for verdict in pairs]
        verdicts += pairs
    clusters = [str(cluster) for _ in range(len(answers) - 1) for cluster in line["clusters"]]
    facts = {"position_bias": measure_bias(verdicts, clusters, job), **await measure_agreement(judge, job, line, cases)}
    return shares, facts


async def judge_against(
    judge: Judge, cases: Sequence[Case], first: Sequence[str], second: Sequence[str], at: int
) -> PairVerdict:
    return await judge.pair(cases[at], first[at], second[at])


async def judge_by_rubric(judge: Judge, cases: Sequence[Case], answers: Sequence[str], at: int) -> float | None:
    return await judge.score(cases[at], answers[at])


def measure_bias(
    verdicts: Sequence[PairVerdict], clusters: Sequence[str], job: EvaluationJob
) -> dict[str, object] | None:
    """The share of complete pairs whose verdict changes with the order, with its interval; None without any."""
    pairs = [
        (float(verdict.flipped), cluster)
        for verdict, cluster in zip(verdicts, clusters, strict=True)
        if verdict.complete
    ]
    if not pairs:
        return None
    config = job.config
    flips, flip_clusters = np.array([flip for flip, _ in pairs]), [cluster for _, cluster in pairs]
    interval = bootstrap(
        flips, flip_clusters, confidence=config.confidence, resamples=config.resamples, seed=config.seed
    )
    return {"pairs": len(pairs), "flips": int(flips.sum()), **asdict(interval)}


async def measure_agreement(
    judge: Judge, job: EvaluationJob, line: JsonMapping, cases: Sequence[Case]
) -> dict[str, object]:
    """Return how often the judge agrees with the rows' labels; empty without labels."""
    labelled = [(at, case) for at, case in enumerate(cases) if case.answer is not None and case.rejected is not None]
    if not labelled:
        return {}

    async def judge_pair(at: int) -> PairVerdict:
        case = labelled[at][1]
        return await judge.pair(case, text_of(case.answer), text_of(case.rejected))

    counts = np.array(judged.label_matrix(await gather(judge, judge_pair, len(labelled))))
    has_verdict = counts.sum(axis=(1, 2)) > 0
    if not has_verdict.any():
        return {}
    clusters = [str(line["clusters"][at]) for (at, _), here in zip(labelled, has_verdict, strict=True) if here]
    config, counts = job.config, counts[has_verdict]
    options: Any = {"confidence": config.confidence, "resamples": config.resamples, "seed": config.seed}
    right = (counts[:, 0, 0] + counts[:, 1, 1]) / counts.sum(axis=(1, 2))
    accuracy = asdict(bootstrap(right, clusters, **options))
    kappa = asdict(kappa_interval(counts, clusters, **options))
    return {"agreement": {"pairs": len(counts), "accuracy": accuracy, "kappa": kappa}}


def text_of(turn: JsonMapping | None) -> str:
    return str((turn or {}).get("content") or "")


async def judge_rubric(judge: Judge, line: JsonMapping, cases: Sequence[Case]) -> dict[str, list[float | None]]:
    """Return the score of each participant's answers."""
    answers: Mapping[str, Sequence[str]] = line["answers"]
    return {
        role: await gather(judge, partial(judge_by_rubric, judge, cases, texts), len(cases))
        for role, texts in answers.items()
    }


def write_quarantine(path: Path, lines: Sequence[Mapping[str, str]]) -> None:
    """Add the calls that failed, one JSON object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as stream:
        stream.writelines(json.dumps(line) + "\n" for line in lines)


def require_answered(judge: Judge) -> None:
    """Raise `Unavailable` (`E-BENCHMARK`, or the server's own code) when half of the calls or more failed."""
    failed = judge.failures.total()
    if failed <= LEAST_ANSWERED * judge.calls:
        return
    counts = ", ".join(f"{reason} {count:,}" for reason, count in sorted(judge.failures.items()))
    raise Unavailable(
        f"The judge {judge.client.model} failed for {failed:,} of {judge.calls:,} calls ({counts}).",
        why=f"{judge.last.what} {judge.last.why}".strip() if judge.last else "Its replies are not of the JSON schema.",
        do=judge.last.do if judge.last else "Use a judge or a server that follows response_format json_schema.",
        code=judge.last.code if judge.last else "E-BENCHMARK",
    )


def no_verdict_error(judge: Judge, facts: JsonMapping) -> TrainyardError:
    bias = facts.get("position_bias") or {}
    return TrainyardError(
        f"No verdict of the judge {judge.client.model} can be used.",
        why=f"{bias.get('flips', 0)} of {bias.get('pairs', 0)} verdicts change with the order of the answers, and "
        f"{judge.failures.total()} of {judge.calls} calls failed.",
        do="Use another judge: one that prefers a place says nothing about answers.",
        code="E-BENCHMARK",
    )
