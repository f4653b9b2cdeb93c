"""`python -m trainyard_worker.axolotl_schema CONFIG.yaml RESULT.json`, in axolotl's own interpreter.

Two questions, since the first alone lets a misspelt key pass: does axolotl's schema accept the values, and does it know
every key? The answer is written as {"errors": [...], "unknown": [[key, nearest]...]}.
"""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from axolotl.utils.schemas.config import AxolotlInputConfig
from axolotl.utils.schemas.datasets import DPODataset, KTODataset, SFTDataset
from pydantic import BaseModel, ValidationError

DATASETS: tuple[type[BaseModel], ...] = (SFTDataset, DPODataset, KTODataset)


def list_keys(models: Iterable[type[BaseModel]]) -> set[str]:
    """Names and aliases of the fields of models."""
    fields = [(name, field.alias) for model in models for name, field in model.model_fields.items()]
    return {name for pair in fields for name in pair if name}


def unknown(config: Mapping[str, object], keys: set[str], prefix: str = "") -> list[list[str]]:
    """[key, the nearest known one] of every key that the schema would pass over in silence."""
    wrong = sorted(set(config) - keys)
    return [[f"{prefix}{key}", next(iter(difflib.get_close_matches(key, keys, n=1)), "")] for key in wrong]


def validate(config: dict[str, Any]) -> dict[str, Any]:
    wrong = unknown(config, list_keys([AxolotlInputConfig]))
    for number, part in enumerate(config.get("datasets") or []):
        wrong += unknown(part, list_keys(DATASETS), f"datasets.{number}.")
    try:
        AxolotlInputConfig(**config)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, problem['loc'])) or 'config'}: {problem['msg']}" for problem in error.errors()]
    else:
        problems = []
    return {"errors": problems, "unknown": wrong}


def main(config: Path, result: Path) -> None:
    result.write_text(json.dumps(validate(yaml.safe_load(config.read_text(encoding="utf-8")))), encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
