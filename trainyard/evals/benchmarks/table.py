"""The rows of the benchmarks, by name, and the tasks of the lm-evaluation-harness (`lm_eval:arc_easy`).

The harness (extra `trainyard[eval]`) loads a task's data itself, perhaps by download, and runs on the model that is
already in memory; its per-sample values are taken, so that the comparison stays paired. Source: EleutherAI,
lm-evaluation-harness 0.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

from trainyard.errors import InvalidInput, NotFound, Unavailable
from trainyard.evals.benchmarks import generated, likelihood, preference
from trainyard.evals.cases import Case, ScoredModel, Value
from trainyard.json_types import JsonMapping

METRICS = ("acc_norm", "acc", "exact_match", "f1")
"""Per-sample metrics that are better when higher, in order of preference."""


class HarnessModel(ScoredModel, Protocol):
    """A scored model that also lends its network and tokenizer."""

    tokenizer: Any

    def network(self) -> AbstractContextManager[Any]: ...


def task(name: str) -> Callable[[Any, Sequence[Case]], list[Value]]:
    """Return a benchmark's score function for one task of the harness."""

    def score(model: HarnessModel, cases: Sequence[Case]) -> list[Value]:
        evaluate, wrapper = load()
        with model.network() as network:
            results = evaluate(
                model=wrapper(pretrained=network, tokenizer=model.tokenizer),
                tasks=[name],
                limit=len(cases) or None,
                log_samples=True,
                bootstrap_iters=0,
            )
        return sample_values(name, results["samples"][name])

    return score


def load() -> tuple[Any, Any]:
    """Return the harness's entry point and its wrapper for transformers models."""
    return import_module("lm_eval").simple_evaluate, import_module("lm_eval.models.huggingface").HFLM


def sample_values(name: str, samples: Sequence[JsonMapping]) -> list[Value]:
    """Return one value per sample, in the task's own order, of the first metric that we can pair."""
    metric = next((metric for metric in METRICS if samples and metric in samples[0]), None)
    if metric is None:
        raise InvalidInput(
            f"The task {name!r} has no per-sample metric that can be paired.",
            why=f"Known ones are {', '.join(METRICS)}.",
            do="Choose another task.",
            code="E-BENCHMARK",
        )
    return [float(sample[metric]) for sample in sorted(samples, key=lambda sample: int(sample["doc_id"]))]


Score = Callable[[Any, Sequence[Case]], list[Value]]
"""Of a `ScoredModel`; `reward_accuracy` and `mean_reward` of a `RewardScorer`."""


@dataclass(frozen=True)
class Benchmark:
    """One row of the table."""

    score: Score | None
    """None where a judge scores the answers that the child has written."""
    metric: str
    higher_is_better: bool
    needs: str
    """Field of `Case` that has to be filled: answer, gold, choices, rejected, prompt or text; empty when it brings its
    rows."""
    default_margin: float
    """How much worse the candidate may be when the benchmark was not listed but taken by default."""
    default_relative_margin: float = 0.0
    """The same as a share of the baseline's value; the larger of the two counts."""
    means: str = ""
    """The value of a row, for the manual."""


BENCHMARKS: dict[str, Benchmark] = {
    "heldout_loss": Benchmark(
        likelihood.heldout_loss,
        "nats per answer token",
        False,
        "answer",
        0.1,
        means="Mean negative log-likelihood of the answer's tokens, in nats.",
    ),
    "token_accuracy": Benchmark(
        likelihood.token_accuracy,
        "share of answer tokens",
        True,
        "answer",
        0.02,
        means="Share of the answer's tokens that the model would have chosen, given those before.",
    ),
    "exact_match": Benchmark(
        generated.exact_match,
        "share of answers",
        True,
        "gold",
        0.0,
        means="1 when the generated answer equals an accepted one.",
    ),
    "quotes": Benchmark(
        generated.quotes,
        "share of answers that quote the right one",
        True,
        "gold",
        0.0,
        means="1 when the generated answer contains an accepted one word for word.",
    ),
    "f1": Benchmark(
        generated.f1, "word overlap F1", True, "gold", 0.0, means="Word overlap with the best accepted answer."
    ),
    "final_answer": Benchmark(
        generated.final_answer,
        "share of final answers",
        True,
        "gold",
        0.0,
        means="1 when the last line of the answer, or what follows its last ####, equals that of an accepted one.",
    ),
    "answer_tokens": Benchmark(
        generated.answer_tokens,
        "tokens and thoughts of an answer",
        False,
        "gold",
        0.0,
        means="Tokens of an answer, thoughts and pauses included.",
    ),
    "answer_seconds": Benchmark(
        generated.answer_seconds,
        "seconds of an answer",
        False,
        "gold",
        0.0,
        means="Seconds of an answer, one at a time on this machine.",
    ),
    "multiple_choice": Benchmark(
        likelihood.multiple_choice,
        "share of questions",
        True,
        "choices",
        0.0,
        means="1 when the choice with the highest mean token log probability is right.",
    ),
    "pairwise_reward_accuracy": Benchmark(
        preference.pairwise_reward_accuracy,
        "share of pairs",
        True,
        "rejected",
        0.0,
        means="1 when the chosen answer gained more likelihood over the base than the rejected one.",
    ),
    "reward_accuracy": Benchmark(
        preference.reward_accuracy,
        "share of pairs in the right order",
        True,
        "rejected",
        0.0,
        means="1 when a reward model scores the chosen answer above the rejected one, 0.5 for a tie.",
    ),
    "mean_reward": Benchmark(
        preference.mean_reward,
        "score of the chosen answers",
        True,
        "rejected",
        0.0,
        means="What a reward model scores the chosen answer; only scores of one model can be compared.",
    ),
    "forgetting": Benchmark(
        likelihood.general_loss,
        "nats per token of general text",
        False,
        "",
        0.0,
        0.1,
        means="Loss on forty fixed general texts.",
    ),
    "judge": Benchmark(
        None,
        "share of judged pairs won against the baseline",
        True,
        "prompt",
        0.0,
        means="1 when a judge prefers the answer to the baseline's in both orders, 0.5 for a tie.",
    ),
    "judge_rubric": Benchmark(
        None, "rubric score from 1 to 5", True, "prompt", 0.0, means="Score from 1 to 5 that a judge gives by a rubric."
    ),
}
LM_EVAL_PREFIX = "lm_eval:"
INSTALL_LM_EVAL = "pip install 'trainyard[eval]'"


def benchmark(name: str) -> Benchmark:
    """Return the row of a name, or of `lm_eval:<task>`.

    Raises `NotFound` (`E-BENCHMARK`) for an unknown name, `Unavailable` (`R-PACKAGE-MISSING`) when a task of the
    lm-evaluation-harness is requested and the extra is not installed.
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if name.startswith(LM_EVAL_PREFIX):
        if find_spec("lm_eval") is None:
            raise Unavailable(
                f"The benchmark {name!r} needs the lm-evaluation-harness, which is not installed.",
                do=INSTALL_LM_EVAL,
                code="R-PACKAGE-MISSING",
            )
        return Benchmark(task(name.removeprefix(LM_EVAL_PREFIX)), "the task's own metric", True, "", 0.0)
    raise NotFound(
        f"There is no benchmark {name!r}.",
        why=f"The table has {', '.join(sorted(BENCHMARKS))}, and lm_eval:<task>.",
        do="Correct the name in the evaluator's config; docs/evaluation.md explains each.",
        code="E-BENCHMARK",
    )
