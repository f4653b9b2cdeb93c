"""Any of the three layouts into any other. All ways lead over PEFT's, so a layout more is two functions and a row."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from trainyard.callbacks import ignore
from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound
from trainyard.serve.conversion.adapters import CONFIG_FILE, WEIGHTS_FILE, Adapter, read_adapter, write_adapter
from trainyard.serve.conversion.architectures import Layout
from trainyard.serve.conversion.gguf import gguf_to_peft, peft_to_gguf
from trainyard.serve.conversion.mlx import MLX_FILE, mlx_to_peft, peft_to_mlx
from trainyard.serve.conversion.tensors import Tensor
from trainyard.stores.files import DISK, make_folders
from trainyard.stores.whole import flush_tree, move_folder

GGUF_ENDING = ".gguf"
TOKENIZER_FOLDER = "tokenizer"
"""With the chat template of the training; a GGUF file has no place for it."""


@dataclass(frozen=True)
class Ways:
    """From a layout to PEFT's and back: (source, target, folder of the base or None)."""

    to_peft: Callable[[Path, Path, Path | None], None]
    from_peft: Callable[[Path, Path, Path | None], None]


def copy_adapter(source: Path, target: Path, _base: Path | None) -> None:
    write_adapter(read_adapter(source), target)


def require_base(base: Path | None) -> Path:
    if base is None:
        raise InvalidInput(
            "The base of the adapter is not known.",
            why="The names and the order of rows in a GGUF adapter depend on the architecture of its base.",
            do="Name the base with --base: a folder, `starter`, or a Hub name that is on this machine.",
            code="E-CONVERT",
        )
    return base


LAYOUTS: dict[Layout, Ways] = {
    Layout.PEFT: Ways(copy_adapter, copy_adapter),
    Layout.MLX: Ways(
        lambda source, target, base: mlx_to_peft(source, target, str(base or "")),
        lambda source, target, _: peft_to_mlx(source, target),
    ),
    Layout.GGUF: Ways(
        lambda source, target, base: gguf_to_peft(source, target, require_base(base)),
        lambda source, target, base: peft_to_gguf(source, target, require_base(base)),
    ),
}


def detect_layout(source: Path) -> Layout:
    """Return the layout of an adapter, seen from its files. Raises `NotFound` (`E-ADAPTER-NOT-FOUND`)."""
    if source.is_file() and source.suffix == GGUF_ENDING:
        return Layout.GGUF
    for layout, weights in ((Layout.PEFT, WEIGHTS_FILE), (Layout.MLX, MLX_FILE)):
        if (source / weights).is_file() and (source / CONFIG_FILE).is_file():
            return layout
    raise NotFound(
        f"There is no adapter in {source}.",
        why=f"An adapter is a folder with {CONFIG_FILE} and {WEIGHTS_FILE} or {MLX_FILE}, or a {GGUF_ENDING} file.",
        do="Name the folder of a trained adapter, or the file.",
        code="E-ADAPTER-NOT-FOUND",
    )


def convert(
    source: Path,
    target: Path,
    to: Layout,
    base: Path | None = None,
    *,
    try_run: Callable[[Path], object] = ignore,
    complete: Callable[[Path], object] = ignore,
) -> Layout:
    """Write the adapter `source` in another layout as `target`, whole or not at all; returns the layout it was in.

    `base` is the folder of its base model, which only GGUF needs. `try_run` gets the written adapter, read back into
    PEFT's layout, and raises for one that does not run; `complete` adds files to a written folder.
    Raises `Conflict` (`E-FILE-EXISTS`),
    `NotFound` (`E-ADAPTER-NOT-FOUND`), `InvalidInput` (`E-CONVERT`, `E-ADAPTER-INVALID`) and `Corrupt`.
    """
    layout = detect_layout(source)
    if target.exists():
        raise Conflict(
            f"{target} exists already.",
            do="Name a folder or file that is not there; nothing is overwritten.",
            code="E-FILE-EXISTS",
        )
    make_folders(DISK, target.parent)
    with TemporaryDirectory(dir=target.parent, prefix=f".{target.name}-") as work:
        peft, output = Path(work) / "peft", Path(work) / "made"
        LAYOUTS[layout].to_peft(source, peft, base)
        LAYOUTS[to].from_peft(peft, output, base)
        if output.is_dir() and (source / TOKENIZER_FOLDER).is_dir():
            shutil.copytree(source / TOKENIZER_FOLDER, output / TOKENIZER_FOLDER)
        LAYOUTS[to].to_peft(output, Path(work) / "again", base)
        require_same_adapter(read_adapter(peft), read_adapter(Path(work) / "again"), target)
        try_run(Path(work) / "again")
        if output.is_dir():
            complete(output)
        flush_tree(DISK, Path(work))
        move_folder(DISK, output, target)
    return layout


def require_same_adapter(source: Adapter, again: Adapter, target: Path) -> None:
    """Compare an adapter with what is read from its converted files. Raises `Corrupt` (`E-CORRUPT`)."""
    parts = [(source.a, again.a), (source.b, again.b), (source.m, again.m)]
    wrong = {name for before, after in parts for name in before.keys() ^ after.keys()}
    wrong |= {
        name
        for before, after in parts
        for name in before.keys() & after.keys()
        if not is_same_tensor(before[name], after[name])
    }
    if not wrong and math.isclose(source.scale, again.scale, rel_tol=1e-5):
        return
    raise Corrupt(
        f"The adapter was converted, and {target.name} read again is another one.",
        why=f"{min(wrong)} differs ({len(wrong)} in all)." if wrong else f"Its scale is {again.scale:.6g}.",
        do="Deploy the adapter to a target that reads PEFT adapters, and report this adapter.",
        code="E-CORRUPT",
    )


def is_same_tensor(before: Tensor, after: Tensor) -> bool:
    """Whether two tensors have the same numbers; of another dtype, the same shape."""
    if before.dtype != after.dtype:
        return before.shape == after.shape
    return np.array_equal(before.bits, after.bits)
