"""Optimizers."""

from __future__ import annotations

from enum import StrEnum


class Optimizer(StrEnum):
    ADAMW = "adamw"
    SGD = "sgd"
    ADAMW_8BIT = "adamw_8bit"
    PAGED_ADAMW_8BIT = "paged_adamw_8bit"
    ADAFACTOR = "adafactor"
    LION = "lion"
    MUON = "muon"
    SCHEDULE_FREE_ADAMW = "schedule_free_adamw"
    GALORE = "galore"
    ADEMAMIX = "ademamix"
