"""Spec of a sweep: a chain, the settings that are varied with their ranges, how trials are chosen and stopped.

The range of a setting is written like a call: `uniform(0, 0.2)`, `loguniform(1e-5, 1e-3)`, `int(8, 64, 8)`,
`choice(8, 16, 32)`. A plain value is the same in every trial.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, Field, model_validator

from trainyard.errors import InvalidInput
from trainyard.spec.axes.axis import Strict
from trainyard.spec.axes.stages import EvalMetric
from trainyard.spec.chain import ChainSpec
from trainyard.spec.nodes import Name

Scalar = bool | int | float | str | None
CALL = re.compile(r"(?P<word>[a-z]+)\((?P<arguments>.*)\)", re.DOTALL)
MAX_FINITE = 10_000
"""Values of one range above which it counts as continuous."""


class Range(BaseModel):
    """Numbers between two ends, both included; in logarithmic scale with `log`, at multiples of `step` from `low`."""

    model_config = {"extra": "forbid", "frozen": True}

    type: Literal["float", "int"]
    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def values(self) -> tuple[Scalar, ...] | None:
        """Return every value, if they can be counted."""
        step = self.step or (1 if self.type == "int" and not self.log else None)
        if step is None:
            return None
        count = math.floor((self.high - self.low) / step + 1e-9) + 1
        if count > MAX_FINITE:
            return None
        return tuple(self.number(self.low + index * step) for index in range(count))

    @property
    def corners(self) -> tuple[Scalar, ...]:
        """Return the values that are checked before the first trial: both ends."""
        values = self.values or (self.number(self.low), self.number(self.high))
        return (values[0], values[-1])

    def number(self, value: float) -> int | float:
        return round(value) if self.type == "int" else float(value)


class Choice(BaseModel):
    """Choice among values without an order."""

    model_config = {"extra": "forbid", "frozen": True}

    type: Literal["choice"] = "choice"
    options: tuple[Scalar, ...] = Field(min_length=1)

    @property
    def values(self) -> tuple[Scalar, ...]:
        return self.options

    @property
    def corners(self) -> tuple[Scalar, ...]:
        return self.options


Varied = Annotated[Range | Choice, Field(discriminator="type")]

FORMS = (
    "uniform(LOW, HIGH[, STEP]), loguniform(LOW, HIGH), int(LOW, HIGH[, STEP]), logint(LOW, HIGH) or choice(A, B, ...)"
)


def parse_range(path: str, text: str) -> Range | Choice:
    """Read the range of a setting. Raises `InvalidInput` (`E-PARAMETER`) naming the path."""
    match = CALL.fullmatch(text.strip())
    word, arguments = (match["word"], split_arguments(match["arguments"])) if match else ("", [])
    numbers = [number for number in arguments if isinstance(number, int | float) and not isinstance(number, bool)]
    if word == "choice" and arguments and len(set(map(repr, arguments))) == len(arguments):
        return Choice(options=tuple(arguments))
    limits = {"uniform": 3, "int": 3, "loguniform": 2, "logint": 2}
    if word in limits and len(numbers) == len(arguments) and 2 <= len(numbers) <= limits[word]:
        low, high, step = numbers[0], numbers[1], numbers[2] if len(numbers) == 3 else None
        whole = word.endswith("int")
        log = word.startswith("log")
        fits = low < high and (step is None or 0 < step <= high - low) and (low > 0 or not log)
        if fits and (not whole or all(float(number).is_integer() for number in numbers)):
            return Range(type="int" if whole else "float", low=low, high=high, step=step, log=log)
    raise InvalidInput(
        f"{path}: {text!r} is not a range.",
        why="LOW has to be below HIGH, above 0 in a logarithmic range; int takes whole numbers; choices differ.",
        do=f"Write {FORMS}.",
        code="E-PARAMETER",
    )


def split_arguments(text: str) -> list[object]:
    """Values between commas: JSON where it reads as JSON, else a word."""
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    return [read_value(part) for part in parts]


def read_value(text: str) -> object:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if not isinstance(value, list | dict) else text


def is_range(value: object) -> bool:
    """Whether a parameter is written like a call; a misspelt word is one too, so that it is refused."""
    return isinstance(value, str) and CALL.fullmatch(value.strip()) is not None


class SweepSpec(Strict):
    """A sweep, complete: what `TRAINYARD_HOME/sweeps/NAME/sweep.json` contains."""

    name: Name
    chain: ChainSpec
    trainer: str = Field(min_length=1, description="Id of the trainer whose metric is compared.")
    parameters: dict[str, Varied] = Field(min_length=1, description="Setting -> its range.")
    trials: int = Field(16, ge=1, le=10_000, description="How many sets of values are tried.")
    metric: EvalMetric = Field(EvalMetric.LOSS, description="Metric of the evaluation that decides.")
    direction: Literal["min", "max"] = Field("min", description="Which end of the metric is the better one.")
    scheduler: Literal["asha", "none"] = Field("asha", description="Whether trials stop at rungs.")
    sampler: Literal["tpe", "random", "grid"] = Field("tpe", description="How values are chosen.")
    seed: int = Field(0, ge=0, le=2**31 - 1, description="Of the sampler.")
    reduction: int = Field(3, ge=2, le=64, description="One trial of so many continues at a rung.")
    rungs: tuple[int, ...] = Field((), description="Steps at which trials stop, ascending; the last step is not one.")
    steps: int | None = Field(None, ge=1, description="Steps of a whole training, where every trial has the same.")
    parallel: int = Field(1, ge=1, le=64, description="Trials at a time.")

    @model_validator(mode="after")
    def grid_is_finite(self) -> SweepSpec:
        if self.sampler == "grid" and (
            endless := [path for path, parameter in self.parameters.items() if not parameter.values]
        ):
            raise ValueError(f"a grid needs finite ranges: give {', '.join(endless)} a step, or use choice")
        return self

    def grid(self) -> Iterator[dict[str, Scalar]]:
        """Yield every combination of a finite sweep."""
        values = [parameter.values or () for parameter in self.parameters.values()]
        for combination in itertools.product(*values):
            yield dict(zip(self.parameters, combination, strict=True))

    @property
    def levels(self) -> tuple[int, ...]:
        """Return the steps at which trials are compared: the rungs and the end."""
        return (*self.rungs, self.steps) if self.steps is not None else ()


def corners(parameters: Mapping[str, Range | Choice], most: int) -> Iterator[dict[str, Scalar]]:
    """Combinations of the values that are checked before the first trial, at most `most`."""
    values = [parameter.corners for parameter in parameters.values()]
    for combination in itertools.islice(itertools.product(*values), most):
        yield dict(zip(parameters, combination, strict=True))


def rung_steps(steps: int, reduction: int, first: int | None = None) -> tuple[int, ...]:
    """Steps of the rungs below the end: `first`, times `reduction`, and so on.

    By default the first is two rungs below the end, so that a trial that is not promoted costs a ninth of a training.
    """
    step = first or max(1, math.ceil(steps / reduction**2))
    rungs = []
    while step < steps:
        rungs.append(step)
        step *= reduction
    return tuple(rungs)
