"""Base and adapter as one model: in a folder of safetensors, or in one GGUF file; whole, or not there.

A child sums and measures (`serve/versions/merge_program.py`), so that torch stays out of this process. What it found is
in `merged.json` of the folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from trainyard.errors import InvalidInput, Unavailable
from trainyard.serve.children import child_threads, run_child
from trainyard.serve.conversion import files as gguf_files
from trainyard.serve.conversion.architectures import require_words_only
from trainyard.settings import Settings
from trainyard.stores.whole import write_folder, write_json_durably

PROGRAM = "trainyard.serve.versions.merge_program:main"
MERGED_FILE = "merged.json"
"""File that the child leaves, kept in the folder with the names of version and base."""
GGUF_MODEL = "model.gguf"
BACKEND = "llamacpp"
Format = Literal["safetensors", "gguf"]
DType = Literal["auto", "float32", "bfloat16", "float16"]


def merge_files(
    adapter: Path,
    base: Path,
    target: Path,
    settings: Settings,
    facts: Mapping[str, object],
    *,
    format: Format,
    dtype: DType,
) -> dict[str, object]:
    """Write the merged model of two folders as the folder `target`, which is not there; returns its `merged.json`.

    `facts` go into it, too. Raises `InvalidInput` (`E-MERGE`, `E-PARAMETER`), `Unavailable` (`E-PACKAGE-MISSING`,
    `E-CONVERT`) and what the child reports; nothing is left then.
    """
    require_words_only(adapter)
    environment = require_converter(settings, dtype) if format == "gguf" else None
    record = {**facts, "format": format}

    def write(folder: Path) -> None:
        with TemporaryDirectory(prefix="trainyard-merge-") as work:
            whole = folder if environment is None else Path(work) / adapter.parent.name
            spec: dict[str, object] = {"base": str(base), "adapter": str(adapter), "out": str(whole)}
            spec["threads"] = child_threads(settings)
            spec["dtype"] = dtype if environment is None else "float32"
            record.update(run_child(PROGRAM, Path(work) / "child", spec, MERGED_FILE, "The merge failed."))
            if environment is not None:
                gguf_files.convert(whole, folder / GGUF_MODEL, environment)
                if (whole / "chat_template.jinja").is_file():
                    shutil.copyfile(whole / "chat_template.jinja", folder / "chat_template.jinja")
        write_json_durably(folder / MERGED_FILE, record)

    target.parent.mkdir(parents=True, exist_ok=True)
    write_folder(target, write, facts=None)
    return record


def converter_environment(settings: Settings) -> Path:
    return settings.backend_envs.get(BACKEND) or settings.home / "envs" / BACKEND


def has_converter(settings: Settings) -> bool:
    return (gguf_files.find_tools(converter_environment(settings)) / "convert_hf_to_gguf.py").is_file()


def require_converter(settings: Settings, dtype: DType) -> Path:
    """llama.cpp's environment, whose converter writes float32."""
    if dtype not in ("auto", "float32"):
        raise InvalidInput(
            f"A GGUF file is written in float32, not in {dtype}.",
            do="Leave --dtype out; llama-quantize makes smaller files of it.",
            code="E-PARAMETER",
        )
    environment = converter_environment(settings)
    if not has_converter(settings):
        raise Unavailable(
            f"The converter of llama.cpp is not installed at {environment}.",
            do=f"Call `trainyard backends install {BACKEND}`.",
            code="E-PACKAGE-MISSING",
        )
    return environment
