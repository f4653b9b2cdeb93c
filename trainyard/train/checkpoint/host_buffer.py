"""The memory of device and host as tiers of checkpoints: training waits for one copy into the first, and nothing else.

A checkpoint goes GPU -> copy on the GPU -> host memory -> disk -> object store. The copy on the GPU (terabytes a
second) is made where it fits next to the peak of a training step; the way from there to the host (tens of gigabytes a
second) then overlaps with training. Elsewhere training waits for the copy into host memory. That one is laid out
exactly as the data of a safetensors file, so a background thread can write the file as one run of bytes, while training
changes the tensors again. Format: https://huggingface.co/docs/safetensors (header length, JSON header, data).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import psutil
import torch
from transformers.modeling_utils import str_to_torch_dtype

from trainyard.errors import TrainyardError
from trainyard.json_types import JsonObject
from trainyard.train.checkpoint.streams import Sealer, open_stream

DTYPE_NAMES = {dtype: name for name, dtype in str_to_torch_dtype.items()} | {torch.complex64: "C64"}
"""What safetensors calls the types of torch."""
WRITE_BYTES = 1 << 20
"""Bytes hashed and written at a time: what was hashed is still in the processor's cache when it is written."""
CACHE_LINE = 64
SPARE = 1.25
"""A second buffer, and a copy on the GPU, need this multiple of their size in free memory. Without the buffer a save
waits for the one before; without the copy, for the way into host memory."""

Shape = tuple[str, torch.dtype, tuple[int, ...]]


@dataclass(frozen=True)
class TensorLayout:
    """Layout of the tensors in the data of the file."""

    shapes: tuple[Shape, ...]
    """Name, type and shape, in the order of the file."""
    ends: tuple[int, ...]
    header: bytes

    @property
    def size(self) -> int:
        return self.ends[-1] if self.ends else 0

    def spans(self) -> Iterator[tuple[Shape, int, int]]:
        return zip(self.shapes, (0, *self.ends), self.ends, strict=False)


def plan_layout(shapes: tuple[Shape, ...]) -> TensorLayout:
    """Tensors of whole cache lines first: they all begin at one, and a copy to another place takes a fifth longer.
    Of the rest the wide types first, so that every tensor begins at a multiple of its element's size."""
    order = tuple(
        sorted(shapes, key=lambda shape: (count_bytes(shape) % CACHE_LINE != 0, -shape[1].itemsize, shape[0]))
    )
    ends = tuple(accumulate(map(count_bytes, order)))
    described: JsonObject = {
        name: {"dtype": dtype_name(name, dtype), "shape": list(shape), "data_offsets": [start, end]}
        for (name, dtype, shape), start, end in zip(order, (0, *ends), ends, strict=False)
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **described}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return TensorLayout(order, ends, len(text).to_bytes(8, "little") + text)


def count_bytes(shape: Shape) -> int:
    """Return bytes."""
    return torch.Size(shape[2]).numel() * shape[1].itemsize


def dtype_name(name: str, dtype: torch.dtype) -> str:
    """Raises `TypeError` for a type that safetensors has no name for: a mistake of the caller, not of a user."""
    if dtype not in DTYPE_NAMES:
        raise TypeError(f"{name} is {dtype}, which a safetensors file cannot store")
    return DTYPE_NAMES[dtype]


class HostBuffer:
    """A block of host memory that the tensors of a save are copied into; kept and used again by later saves.

    Fresh memory costs a page fault per 4 KiB, several times the copy itself: reuse makes staging cheap.
    """

    def __init__(self) -> None:
        self.data_N = torch.empty(0, dtype=torch.uint8)
        self.layout = plan_layout(())
        self._views: dict[str, torch.Tensor] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}
        self._device_copies: list[torch.Tensor] = []

    def reserve(self, size: int, *, pinned: bool = False) -> None:
        """Have at least `size` bytes, touched once, so that the first save does not pay for new memory."""
        if self.data_N.numel() < size or (pinned and not self.data_N.is_pinned()):
            self.data_N = torch.empty(size, dtype=torch.uint8, pin_memory=pinned).zero_()
            self.layout, self._views = plan_layout(()), {}

    @torch.no_grad()
    def stage(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy every tensor; when it returns, the originals may change, and `settle` has to be called before reading.

        From a GPU: on a side stream into pinned memory, from a copy on the GPU where that has the room.
        """
        self._lay_out(tensors)
        for device in {value.device for value in tensors.values() if value.is_cuda}:
            self._stage_device(device, {name: value for name, value in tensors.items() if value.device == device})
        for name, value in tensors.items():
            if not value.is_cuda:
                self._views[name].copy_(value)

    def _stage_device(self, device: torch.device, tensors: Mapping[str, torch.Tensor]) -> None:
        stream = self._streams.setdefault(device, torch.cuda.Stream(device))
        copied = fits_on_device(sum_bytes(tensors), device)
        sources = {name: value.clone() if copied else value for name, value in tensors.items()}
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for name, value in sources.items():
                self._views[name].copy_(value, non_blocking=True)
        if copied:
            self._device_copies += sources.values()
        else:
            stream.synchronize()

    def settle(self) -> None:
        """Wait until every tensor is in host memory, and free the copies on the GPU."""
        for stream in self._streams.values():
            stream.synchronize()
        self._device_copies.clear()

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """Return the copies, in the order of the file."""
        return self._views

    def write(self, path: Path, sealer: Sealer | None = None) -> str:
        """Write the safetensors file and return its SHA-256, computed on the way."""
        data = memoryview(self.data_N[: self.layout.size].numpy().data)
        with open_stream(path, sealer) as stream:  # plain, pieces larger than its buffer are written without a copy
            stream.write(self.layout.header)
            for start in range(0, len(data), WRITE_BYTES):
                stream.write(data[start : start + WRITE_BYTES])
        return stream.hexdigest()

    def _lay_out(self, tensors: Mapping[str, torch.Tensor]) -> None:
        shapes = tuple((name, value.dtype, tuple(value.shape)) for name, value in sorted(tensors.items()))
        pinned = any(value.is_cuda for value in tensors.values())
        if tuple(sorted(self.layout.shapes, key=lambda shape: shape[0])) == shapes and self._views:
            return
        layout = plan_layout(shapes)
        self.reserve(layout.size, pinned=pinned)
        self.layout = layout
        self._views = {
            name: self.data_N[start:end].view(dtype).view(shape) for (name, dtype, shape), start, end in layout.spans()
        }


def sum_bytes(tensors: Mapping[str, torch.Tensor]) -> int:
    return sum(value.numel() * value.element_size() for value in tensors.values())


def fits_in_memory(size: int) -> bool:
    """Return whether one more buffer of `size` bytes leaves the machine some room."""
    return bool(psutil.virtual_memory().available > SPARE * size)


def fits_on_device(size: int, device: torch.device) -> bool:
    """Return whether a copy of `size` bytes leaves a CUDA device the memory of its highest use so far."""
    free, _ = torch.cuda.mem_get_info(device)
    return has_room(size, free + torch.cuda.memory_reserved(device), torch.cuda.max_memory_allocated(device))


def has_room(size: int, capacity: int, peak: int) -> bool:
    """Return whether `size` bytes fit next to a `peak`, in a `capacity` that this process could have."""
    return capacity - peak > SPARE * size


def require_finite(tensors: Mapping[str, torch.Tensor], step: int) -> None:
    """The validation gate. Raises `E-NON-FINITE` naming the first tensor that contains NaN or infinity."""
    for name, value in tensors.items():
        if not (value.is_floating_point() or value.is_complex()):
            continue
        numbers = value.float() if value.element_size() == 1 else value  # 8-bit floats have no sum
        # One pass in the usual case: a finite sum has only finite terms.
        if not torch.isfinite(numbers.sum()) and not torch.isfinite(numbers).all():
            raise TrainyardError(
                f"The state of step {step} contains NaN or infinite values, first in {name}.",
                why="The training diverged; the checkpoint was not written, the one before it is untouched.",
                do="Lower hyperparameters.learning_rate, or use precision: fp32.",
                code="E-NON-FINITE",
            )
