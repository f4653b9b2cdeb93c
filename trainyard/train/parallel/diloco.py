"""DiLoCo (Douillard et al. 2023, arXiv 2311.08105): islands take H AdamW steps each, then one outer step together.

The change of an island since the last exchange, old weights minus new ones, is its *pseudo-gradient*. Its mean over the
islands is the gradient of an outer SGD step with Nesterov momentum on the old weights, which are kept in fp32. The
states of the inner AdamW stay as they are, and the learning rate's schedule continues.

What a process sends in one exchange, counted in `Outer.bytes_sent`: P numbers of b bytes in n islands of m processes
take 2 (n - 1) / n * P / m * b, of which half goes to the process that adds a part up, and half comes back. Each part is
added up in fp32, in the order of the islands, by one process: all islands get the same bits. With bf16, fp16 and int8
only sent values are rounded. Outer weights and momentum take 8 P / m bytes of a process.

Inside an island any strategy of this package shares the work; `full_shard` and ZeRO-3 cut the weights over all
processes, where no island has a complete copy to change alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from trainyard.errors import TrainyardError
from trainyard.json_types import JsonMapping, JsonObject
from trainyard.spec.axes.strategies import DilocoSettings
from trainyard.spec.training import TrainerConfig
from trainyard.train.checkpoint import state
from trainyard.train.contracts import Batch, Head, Scores, StageSpec
from trainyard.train.parallel.ddp import Ddp
from trainyard.train.parallel.islands import Archipelago, cut_island
from trainyard.train.session.parallelism import Found

WIRE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BLOCK = 4096
"""Numbers of an int8 pseudo-gradient that share a scale."""
OUTER, RESIDUAL = "outer", "residual"
"""Parts of a state: the same in all islands, and of each process."""


class Diloco(Ddp):
    """A strategy inside each island, and the outer steps between them."""

    def __init__(self, inner: Ddp, team: Archipelago, model: Any, settings: DilocoSettings) -> None:
        self.inner, self.islands, self.settings = inner, team, settings
        self.team, self.leading, self.is_sharded = team.local, team.leading, inner.is_sharded
        self.strategy = inner.strategy
        self.layout = {**inner.layout, "processes": team.size, "islands": settings.num_islands}
        self.tensors = inner.parameters(model)
        self.outer = Outer(self.tensors, team, inner, settings)
        self._trained: list[torch.Tensor] = []

    # Inside an island

    def parameters(self, model: Any) -> list[torch.Tensor]:
        return self.inner.parameters(model)

    def optimizer(self, groups: list[JsonObject], config: TrainerConfig) -> Any:
        return self.inner.optimizer(groups, config)

    def run(self, model: Any, work: Callable[[Any], Found]) -> Found:
        return self.inner.run(model, work)

    def cut_batch(self, stage: StageSpec, batch: Batch) -> tuple[Batch, float]:
        """Return the island's rows. Their sum times the number of islands counts like the whole batch's: the mean of
        the islands' gradients is then the gradient of the whole batch.
        """
        part, idle = cut_island(batch, stage, self.islands.island, self.settings.num_islands)
        return part, 0.0 if idle else float(self.settings.num_islands)

    def scores(self, stage: StageSpec, model: Any, batch: Batch, head: Head) -> Scores:
        return self.inner.scores(stage, model, batch, head)

    def before_backward(self, parameters: Sequence[torch.Tensor]) -> None:
        self.inner.before_backward(parameters)

    def after_backward(self, parameters: Sequence[torch.Tensor]) -> None:
        self.inner.after_backward(parameters)

    def sync_gradients(self, parameters: Sequence[torch.Tensor], *, scaled: bool) -> None:
        self.inner.sync_gradients(parameters, scaled=scaled)

    def norm(self, parameters: Sequence[torch.Tensor]) -> torch.Tensor:
        return self.inner.norm(parameters)

    def clip(self, parameters: Sequence[torch.Tensor], limit: float) -> torch.Tensor:
        return self.inner.clip(parameters, limit)

    def clear(self, model: Any) -> None:
        self.inner.clear(model)

    # Between islands

    def after_step(self, steps: int) -> None:
        """Count an inner step, taken or skipped; exchange after every `inner_steps`, and after the last one."""
        self.outer.inner_step += 1
        if self.outer.inner_step == self.settings.inner_steps or steps == self.last_step:
            self.outer.exchange()

    def finish(self) -> None:
        """Bring the islands together at the end of a training that was cut short."""
        if self.outer.inner_step:
            self.outer.exchange()

    def show_served(self) -> None:
        """Put the weights of the last exchange in place: those that all islands have."""
        if self.outer.inner_step and not self._trained:
            self._trained = [value.detach().clone() for value in self.tensors]
            self.outer.show()

    @torch.no_grad()
    def show_trained(self) -> None:
        for value, trainable in zip(self.tensors, self._trained, strict=False):
            value.copy_(trainable)
        self._trained = []

    def facts(self) -> JsonObject:
        return {
            "outer_step": self.outer.steps,
            "inner_step": self.outer.inner_step,
            "outer_bytes_sent": self.outer.bytes_sent,
            "pseudo_gradient_norm": self.outer.last_norm,
        }

    # The state

    @property
    def apart(self) -> tuple[str, ...]:  # type: ignore[override]
        """The parts that only this process has; in another island also those that its processes share."""
        first = self.islands.island == 0
        own = {*self.inner.apart, *((OUTER,) if first else ()), *((RESIDUAL,) if self.outer.residuals else ())}
        if not first and self.team.leading:
            own |= {"optimizer", "rate", "scaler", "gradients", "random", "counters"}
            own |= {"weights"} if self.outer.inner_step else set()  # right after an exchange they are the first's
        return tuple(sorted(own))

    def sources(self, rank: int) -> tuple[int, ...]:
        """Return the same place in the first island, then the places of the rank's own island."""
        island, local = divmod(rank, self.team.size)
        start = island * self.team.size
        return (local, start, *(start + place for place in self.inner.sources(local)))

    def weights(self, model: Any) -> state.Tensors:
        return self.inner.weights(model)

    def take_weights(self, model: Any, saved: state.Tensors) -> None:
        self.inner.take_weights(model, saved)

    def gradients(self, model: Any) -> state.Tensors:
        return self.inner.gradients(model)

    def take_gradients(self, model: Any, saved: state.Tensors) -> None:
        self.inner.take_gradients(model, saved)

    def own_parts(self) -> JsonObject:
        return {OUTER: self.outer.state_dict(), **({RESIDUAL: self.outer.residuals} if self.outer.residuals else {})}

    def take_own_parts(self, parts: JsonMapping) -> None:
        if OUTER in parts:
            self.outer.load_state_dict(parts[OUTER])
        if RESIDUAL in parts:
            self.outer.residuals = {name: value.clone() for name, value in parts[RESIDUAL].items()}

    def begin_from_weights(self) -> None:
        """Take the weights in place, the same in every island, as those of an exchange: only they were loaded."""
        self.outer.begin()


class Outer:
    """The outer weights and their optimizer: of each process the part of an island's weights that it looks after."""

    def __init__(
        self, tensors: Sequence[torch.Tensor], team: Archipelago, inner: Ddp, settings: DilocoSettings
    ) -> None:
        self.tensors, self.settings, self.team = tensors, settings, team
        self.sharers, self.place = make_sharers(team, inner)
        self.across = make_across(team)
        count = team.local.size if self.sharers is not None else 1
        unit = settings.num_islands * count * (BLOCK if settings.pseudo_gradient_dtype == "int8" else 1)
        numbers = sum(value.numel() for value in tensors)
        if inner.is_sharded:  # parts may differ by a row, and all processes exchange the same number
            numbers_1 = torch.tensor([numbers], device=team.device)
            dist.all_reduce(numbers_1, op=dist.ReduceOp.MAX)
            numbers = int(numbers_1)
        self.size = -(-numbers // unit) * unit // count
        self.weights_N = torch.nn.Parameter(torch.zeros(self.size, device=team.device))
        self.optimizer = torch.optim.SGD(
            [self.weights_N],
            lr=settings.outer_lr,
            momentum=settings.outer_momentum,
            nesterov=settings.outer_momentum > 0,
        )
        self.steps = self.inner_step = self.bytes_sent = 0
        self.last_norm = 0.0
        self.residuals: dict[str, torch.Tensor] = {}
        """What int8 has left out of this process's changes, and of the means that it has handed out."""
        if settings.pseudo_gradient_dtype == "int8":
            sizes = {"change": self.size, "mean": self.size // settings.num_islands}
            self.residuals = {name: torch.zeros(size, device=team.device) for name, size in sizes.items()}
        self.begin()

    @torch.no_grad()
    def begin(self) -> None:
        self.weights_N.copy_(self.read_part())
        self.inner_step = 0

    def read_part(self) -> torch.Tensor:
        """Return this process's part of the island's weights in fp32, filled up with zeros."""
        count = self.team.local.size if self.sharers is not None else 1
        whole_N = torch.zeros(self.size * count, device=self.weights_N.device)
        flat_M = torch.cat([value.detach().reshape(-1).float() for value in self.tensors])
        whole_N[: len(flat_M)] = flat_M
        return whole_N[self.place * self.size : (self.place + 1) * self.size]

    @torch.no_grad()
    def exchange(self) -> None:
        """Take an outer step with the mean change of all islands, and put its weights in place in all of them.

        Raises `TrainyardError` (`E-NON-FINITE`) where a change or its mean is too large for the type that is sent.
        """
        change_N = self.weights_N.detach() - self.read_part()
        mean_N = self.average(change_N)
        self.require_finite(mean_N)
        self.weights_N.grad = mean_N
        self.optimizer.step()
        self.weights_N.grad = None
        self.steps, self.inner_step = self.steps + 1, 0
        self.show()

    def require_finite(self, mean_N: torch.Tensor) -> None:
        """All processes come to the same verdict."""
        squares = mean_N.double().square().sum()
        if self.sharers is not None:
            dist.all_reduce(squares, group=self.sharers)
        self.last_norm = float(squares.sqrt())
        verdict = torch.tensor([0.0 if torch.isfinite(squares) else 1.0], device=mean_N.device)
        dist.all_reduce(verdict)
        if verdict.item():
            raise TrainyardError(
                f"The mean change of the islands, exchange {self.steps + 1}, is not finite.",
                why=f"A number is beyond the range of pseudo_gradient_dtype {self.settings.pseudo_gradient_dtype}.",
                do="Use pseudo_gradient_dtype bf16 or fp32, or lower hyperparameters.learning_rate.",
                code="E-NON-FINITE",
            )

    def average(self, change_N: torch.Tensor) -> torch.Tensor:
        """Return the mean over the islands: every island sends each other one its part, then the means of its own."""
        islands = self.settings.num_islands
        if self.settings.pseudo_gradient_dtype == "int8":
            return self.average_int8(change_N)
        wire = WIRE[self.settings.pseudo_gradient_dtype]
        sent_N = change_N.to(wire)
        received_N = torch.empty_like(sent_N)
        self.all_to_all(received_N, sent_N)
        mean_M = sum_in_order(received_N.view(islands, -1).float()) / islands
        means_N = torch.empty_like(sent_N)
        self.all_gather(means_N, mean_M.to(wire))
        return means_N.float()

    def average_int8(self, change_N: torch.Tensor) -> torch.Tensor:
        """The same in one byte a number, with a scale for each block; rounding errors are added to the next exchange's
        numbers.
        """
        islands = self.settings.num_islands
        change_N = change_N + self.residuals["change"]
        bytes_N, scales_K = quantize(change_N)
        self.residuals["change"] = change_N - dequantize(bytes_N, scales_K)
        other_bytes_N, other_scales_K = torch.empty_like(bytes_N), torch.empty_like(scales_K)
        self.all_to_all(other_bytes_N, bytes_N)
        self.all_to_all(other_scales_K, scales_K)
        mean_M = sum_in_order(dequantize(other_bytes_N, other_scales_K).view(islands, -1)) / islands
        mean_M = mean_M + self.residuals["mean"]
        mean_bytes_M, mean_scales_L = quantize(mean_M)
        self.residuals["mean"] = mean_M - dequantize(mean_bytes_M, mean_scales_L)
        means_N, scales_of_means_K = torch.empty_like(bytes_N), torch.empty_like(scales_K)
        self.all_gather(means_N, mean_bytes_M)
        self.all_gather(scales_of_means_K, mean_scales_L)
        return dequantize(means_N, scales_of_means_K)

    def all_to_all(self, received_N: torch.Tensor, sent_N: torch.Tensor) -> None:
        dist.all_to_all_single(received_N, sent_N, group=self.across)
        self.count(sent_N.numel() * sent_N.element_size() // self.settings.num_islands)

    def all_gather(self, means_N: torch.Tensor, mean_M: torch.Tensor) -> None:
        dist.all_gather_single(means_N, mean_M, group=self.across)
        self.count(mean_M.numel() * mean_M.element_size())

    def count(self, to_each: int) -> None:
        """Count what goes to each other island."""
        self.bytes_sent += to_each * (self.settings.num_islands - 1)

    @torch.no_grad()
    def show(self) -> None:
        """Put the outer weights in place: the parts of all processes of the island that share them."""
        whole_N = self.weights_N.detach()
        if self.sharers is not None:
            whole_N = torch.empty(self.size * self.team.local.size, device=self.weights_N.device)
            dist.all_gather_single(whole_N, self.weights_N.detach(), group=self.sharers)
        at = 0
        for value in self.tensors:
            value.copy_(whole_N[at : at + value.numel()].view_as(value))
            at += value.numel()

    def state_dict(self) -> JsonObject:
        buffer = self.optimizer.state.get(self.weights_N, {}).get("momentum_buffer")
        return {
            "weights": self.weights_N.detach(),
            "momentum": torch.zeros_like(self.weights_N) if buffer is None else buffer,
            "counters": [self.steps, self.inner_step, self.bytes_sent],
            "norm": self.last_norm,
        }

    @torch.no_grad()
    def load_state_dict(self, saved: JsonMapping) -> None:
        self.weights_N.copy_(saved["weights"])
        momentum = saved["momentum"].to(self.weights_N.device, copy=True)
        self.optimizer.state[self.weights_N] = {"momentum_buffer": momentum}
        self.steps, self.inner_step, self.bytes_sent = saved["counters"]
        self.last_norm = saved["norm"]


def make_sharers(team: Archipelago, inner: Ddp) -> tuple[Any, int]:
    """Return the processes of an island that divide its weights among them, and this one's place; None where each has
    weights of its own.
    """
    if inner.is_sharded or team.local.size == 1:
        return None, 0
    return team.local.group, team.local.rank


def make_across(team: Archipelago) -> Any:
    """Return the group of the processes at this place in every island. Every process makes all groups."""
    size = team.local.size
    groups = [dist.new_group(list(range(place, team.size, size))) for place in range(size)]
    return groups[team.local.rank]


def sum_in_order(values_BM: torch.Tensor) -> torch.Tensor:
    """Return the sum over islands, added one after another."""
    total_M = values_BM[0].clone()
    for value_M in values_BM[1:]:
        total_M += value_M
    return total_M


def quantize(values_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 numbers and the fp32 scale of each block, by which the largest is 127."""
    blocks_KB = values_N.view(-1, BLOCK)
    scales_K = blocks_KB.abs().amax(1) / 127
    steps_K = torch.where(scales_K > 0, scales_K, torch.ones_like(scales_K))
    return (blocks_KB / steps_K[:, None]).round().to(torch.int8).view(-1), scales_K


def dequantize(bytes_N: torch.Tensor, scales_K: torch.Tensor) -> torch.Tensor:
    return (bytes_N.view(-1, BLOCK).float() * scales_K[:, None]).view(-1)
