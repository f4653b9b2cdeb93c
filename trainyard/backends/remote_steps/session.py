"""The eight verbs over a step service, for the loop, rollouts and evaluations.

    forward    log-probabilities from the service; loss and its gradient over them here
    backward   that gradient as weights of the service's cross-entropy
    step       AdamW there, at the rate of our schedule
    save       a state at the service, by its path

A loss that is linear in the log-probabilities (sft, cpt) has its gradient before its value: then the service computes
one pass and not two, and the gradients are there when `forward` returns. A service has no way to forget them, so a
forward without its backward is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from trainyard.backends.remote_steps.scoring import ServiceModel, ask_zeros
from trainyard.backends.remote_steps.service import ServiceRow, StepService, StepSettings
from trainyard.errors import Conflict, InvalidInput
from trainyard.json_types import JsonObject
from trainyard.spec.axes.stages import Stage
from trainyard.spec.training import TrainerConfig
from trainyard.train.contracts import Batch, Generated, Head, Sampling, Scores, StageSpec
from trainyard.train.model.sampling import find_pad_id
from trainyard.train.schedules import LearningRate
from trainyard.train.session.replies import Backward, Evaluated, Forward, Stepped

LINEAR = (Stage.CPT, Stage.SFT)
"""Stages whose loss is linear in the log-probabilities of the labels."""
BETAS, EPS = (0.9, 0.999), 1e-8
"""Of torch's AdamW, which the native engine takes."""


class ServiceOptimizer:
    """The groups of an optimizer that a service has, for our schedules: one, of the adapter's matrices."""

    def __init__(self, config: TrainerConfig) -> None:
        hyper = config.hyperparameters
        self.param_groups: list[JsonObject] = [{"lr": hyper.learning_rate, "weight_decay": hyper.weight_decay}]

    @property
    def rate(self) -> float:
        return float(self.param_groups[0]["lr"])


@dataclass
class RemoteState:
    """Dependencies of a session at a service."""

    config: TrainerConfig
    stage: StageSpec
    tokenizer: PreTrainedTokenizerBase
    optimizer: ServiceOptimizer
    rate: LearningRate
    context: int | None
    """Tokens that the model can see at once, by the config of its base."""

    @classmethod
    def build(
        cls, config: TrainerConfig, stage: StageSpec, tokenizer: Any, total_steps: int, context: int | None
    ) -> RemoteState:
        """Return the state before the first of so many steps."""
        optimizer = ServiceOptimizer(config)
        return cls(config, stage, tokenizer, optimizer, LearningRate(optimizer, config, total_steps), context)


class RemoteSession:
    """An adapter in training at a service. Not thread-safe."""

    def __init__(self, engine: RemoteState, service: StepService) -> None:
        self.engine, self.service = engine, service
        self.global_step, self.skipped, self.accumulated = 0, 0, 0
        self.num_forwards = 0
        self._pending: tuple[str, ServiceModel | None] | None = None
        """The forward whose backward is due; without a model its gradients are there already."""

    # The verbs of a step

    def forward(self, batch: Batch, *, normalizer: float | None = None) -> Forward:
        """Score a batch. Raises `InvalidInput` (`E-DATA-EMPTY`), and `Conflict` (`E-STEP`) while a backward is due."""
        self.require_no_gradients_due()
        units = self.engine.stage.units(batch)
        if not units:
            raise InvalidInput(
                "The batch has nothing to learn: all of its labels are masked.",
                do="Give rows with an assistant turn, a pair or a label.", code="E-DATA-EMPTY",
            )  # fmt: skip
        divisor = float(normalizer if normalizer is not None else units)
        reference = self._find_reference(batch)
        if self.engine.config.stage.type in LINEAR:
            model: ServiceModel | None = None
            total, metrics = self._run_linear(batch, reference, divisor)
        else:
            model = ServiceModel(self.service.forward)
            total, metrics = self._score(model, batch, reference)
            (total / divisor).backward()
        self.num_forwards += 1
        self._pending = (f"forward-{self.num_forwards}", model)
        return Forward(self._pending[0], total.detach() / divisor, units, metrics)

    def _run_linear(
        self, batch: Batch, reference: Scores | None, divisor: float
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the loss of a linear stage, whose gradient the service has added already."""
        slope = ServiceModel(ask_zeros)
        (self._score(slope, batch, reference)[0] / divisor).backward()
        ((rows, weights_N),) = slope.weights()
        logprobs = self.service.backward(rows.rows, rows.spread(weights_N))
        with torch.no_grad():
            return self._score(ServiceModel(lambda _: logprobs), batch, reference)

    def _score(
        self, model: ServiceModel, batch: Batch, reference: Scores | None
    ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        stage = self.engine.stage
        return stage.loss(batch, stage.score(model, batch, Head.FULL), reference, self.engine.config)

    def require_no_gradients_due(self) -> None:
        """Raise `Conflict` (`E-STEP`) after a forward whose gradients were not computed."""
        if self._pending is not None and self._pending[1] is None:
            raise Conflict(
                f"{self._pending[0]} has left gradients at the service that no backward has counted.",
                why="The service adds them in one pass with the loss, and cannot forget them.",
                do="Call backward with its id first.", code="E-STEP",
            )  # fmt: skip

    def backward(self, forward_id: str, *, scale: float = 1.0, measure: bool = True) -> Backward:
        """Add the gradients of a forward's loss at the service. Their norm is not known before the step.

        Raises `Conflict` (`E-STEP`) for an id whose graph is gone, and for a scale other than 1.
        """
        del measure  # the service measures with the step
        if self._pending is None or self._pending[0] != forward_id or scale != 1.0:
            raise Conflict(
                f"The graph of {forward_id!r} is not there any more.",
                why="A forward's graph is good for one backward, at scale 1.",
                do="Call forward again and use its id.", code="E-STEP",
            )  # fmt: skip
        model, self._pending = self._pending[1], None
        for rows, weights_N in model.weights() if model is not None else ():
            self.service.backward(rows.rows, rows.spread(weights_N), score=False)
        self.accumulated += 1
        return Backward(self.accumulated)

    def step(self, *, metric: float | None = None) -> Stepped:
        """Move the weights at the rate of the schedule. Raises `Conflict` (`E-STEP`) when nothing was accumulated."""
        if not self.accumulated:
            raise Conflict("There is no gradient to step with.", do="Call forward and backward first.", code="E-STEP")
        hyper, rate = self.engine.config.hyperparameters, self.engine.optimizer.rate
        norm = self.service.step(StepSettings(rate, BETAS, EPS, hyper.weight_decay, hyper.max_grad_norm))
        self.accumulated = 0
        self.global_step += 1
        self.engine.rate.step(metric)
        return Stepped(False, self.global_step, rate, torch.tensor(torch.nan if norm is None else norm))

    def zero_grad(self) -> None:
        """Clear the gradients, which a step has done at the service."""
        if self.accumulated:
            self.service.zero_grad()
        self.accumulated, self._pending = 0, None

    # Samples and scores

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling | None = None) -> list[Generated]:
        """Continue token prompts with the weights as they are now."""
        return self.service.generate(prompts, sampling or Sampling())

    def logprobs(self, rows: Sequence[Sequence[int]]) -> list[list[float | None]]:
        """Log-probability of every token given those before it; None for the first of a row."""
        return self.service.logprobs(rows)

    def evaluate(self, batch: Batch) -> Evaluated:
        """Score a batch as `forward` does, without gradients."""
        with torch.no_grad():
            total, metrics = self._score(ServiceModel(self.service.forward), batch, self._find_reference(batch))
        sums = {name: float(value) for name, value in {"loss": total, **metrics}.items()}
        return Evaluated(sums, self.engine.stage.units(batch))

    def scores(self, batch: Batch) -> Scores:
        """Return the adapter's scores of a batch, without a graph."""
        with torch.no_grad():
            return self.engine.stage.score(ServiceModel(self.service.forward), batch, Head.FULL)

    def reference_scores(self, batch: Batch) -> Scores:
        """Return the same of the frozen base."""
        with torch.no_grad():
            return self.engine.stage.score(ServiceModel(self._ask_base), batch, Head.FULL)

    def _ask_base(self, rows: Sequence[ServiceRow]) -> list[torch.Tensor]:
        answers = self.service.logprobs([[*row.tokens, row.targets[-1]] for row in rows], base=True)
        return [torch.tensor(answer[1:], dtype=torch.float32) for answer in answers]

    def _find_reference(self, batch: Batch) -> Scores | None:
        """Return the scores of the frozen base, from the batch where they were computed before (`reference/…`)."""
        if not self.engine.stage.needs_reference(self.engine.config):
            return None
        known = {name.removeprefix("reference/"): batch[name] for name in batch if name.startswith("reference/")}
        return known or self.reference_scores(batch)

    @property
    def has_reference(self) -> bool:
        return self.engine.stage.needs_reference(self.engine.config)

    def generate_by_reference(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Generated]:
        """Refuse: no stage that trains at a service samples from the base."""
        raise InvalidInput("The base of a service is not sampled from.", do="Use backend native.", code="E-STEP")

    @property
    def pad_id(self) -> int:
        return find_pad_id(self.engine.tokenizer)

    @property
    def context(self) -> int | None:
        """Return tokens that the model can see at once; None where its config does not say."""
        return self.engine.context

    # State

    def save(self, name: str) -> str:
        """Keep weights and optimizer at the service, and return their path."""
        return self.service.save(name)

    def load(self, path: str, values: JsonObject) -> None:
        """Continue from a saved state with the counters of `state`."""
        self.service.load(path)
        self.global_step = int(values["global_step"])
        self.engine.rate.load_state_dict(values["rate"])
        self.accumulated, self._pending = 0, None

    def state(self) -> JsonObject:
        """Return the state that decides the next step: its number and the schedule."""
        return {"global_step": self.global_step, "rate": self.engine.rate.state_dict()}

    def reset_optimizer(self) -> None:
        """Refuse: a service has no verb for it, and the techniques that need it are refused."""
        raise InvalidInput("A service cannot reset its optimizer.", do="Use backend native.", code="E-STEP")
