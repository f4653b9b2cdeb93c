"""Schedules of the learning rate."""

from __future__ import annotations

from enum import StrEnum


class Schedule(StrEnum):
    LINEAR = "linear"
    COSINE = "cosine"
    CONSTANT = "constant"
    CONSTANT_WITH_WARMUP = "constant_with_warmup"
    COSINE_WITH_RESTARTS = "cosine_with_restarts"
    POLYNOMIAL = "polynomial"
    REDUCE_ON_PLATEAU = "reduce_on_plateau"
    WSD = "wsd"
    INVERSE_SQRT = "inverse_sqrt"
    ONE_CYCLE = "one_cycle"
