"""Tasks of the lm-evaluation-harness by name (`lm_eval:arc_easy`), through the extra `trainyard[eval]`.

The harness loads the task's data itself (it may download them) and runs on the model that is already in memory; we take
its per-sample values, so that the comparison stays paired. Source: EleutherAI, lm-evaluation-harness 0.4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any, Protocol

from trainyard.errors import InvalidInput
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
