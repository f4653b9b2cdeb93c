"""Bodies of requests: JSON and protobuf, plain or compressed by zstd, read within limits before anything is built.

A step arrives as rows (`StepRequest`), whatever its encoding was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from google.protobuf.message import DecodeError
from pydantic import BaseModel, ValidationError

from trainyard.errors import InvalidInput, LimitExceeded, TrainyardError
from trainyard.surfaces.bodies import BATCHES, MAX_TINKER_BYTES, require_structure
from trainyard.surfaces.tinker.messages import BFLOAT16, FLOAT32, INT32, INT64, message_classes
from trainyard.surfaces.tinker.requests import Chunk, Datum, ForwardBackwardBody, TensorData

MAX_ROWS = 4096
MAX_ELEMENTS = 1 << 24
"""Of one tensor, its empty places included."""
DTYPES: dict[int, np.dtype[Any]] = {
    FLOAT32: np.dtype("<f4"),
    INT64: np.dtype("<i8"),
    INT32: np.dtype("<i4"),
    BFLOAT16: np.dtype("<u2"),
}
INT_TENSORS = ("target_tokens",)


@dataclass
class WireRow:
    """A datum: its tokens and the dense tensors of its loss."""

    tokens: np.ndarray
    inputs: dict[str, np.ndarray]


@dataclass
class StepRequest:
    """A forward or forward_backward of one model."""

    model_id: str
    seq_id: int | None
    loss: str
    settings: dict[str, Any]
    forward_only: bool
    rows: list[WireRow]
    digest: str = field(default="", repr=False)
    """Of the body: the same number with another body is refused."""
    error: TrainyardError | None = None
    """Why it is refused. It takes its number all the same: the client counts on from there."""


def decompress(body: bytes, encoding: str) -> bytes:
    """Return the body of a request as it was before its content encoding.

    Raises `InvalidInput` (`E-REQUEST-REFUSED`) for bytes that are not zstd, `LimitExceeded` (`E-BODY-LENGTH`) for a
    body that becomes longer than the limit; no more than that is decompressed.
    """
    if not encoding or encoding == "identity":
        return require_length(body)
    if encoding != "zstd":
        raise refused(f"The content encoding {encoding[:20]!r} is not known.", "Send zstd, or no encoding.")
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), "zstd") as stream:
            plain: bytes = stream.read(MAX_TINKER_BYTES + 1)
    except (OSError, pa.ArrowException) as error:
        raise refused(f"The body is not zstd: {error}.", "Compress it again.") from error
    return require_length(plain)


def require_length(body: bytes) -> bytes:
    """Raise `LimitExceeded` (`E-BODY-LENGTH`) for a body that is longer than the limit."""
    if len(body) > MAX_TINKER_BYTES:
        raise LimitExceeded(
            f"The body is longer than {MAX_TINKER_BYTES:,} bytes.",
            do="Send fewer rows at a time.",
            code="E-BODY-LENGTH",
        )
    return body


def read_json(body: bytes, model: type[BaseModel]) -> Any:
    """Return a JSON body as a request. Raises `InvalidInput` (`E-JSON`, `E-PARAMETER`) and `LimitExceeded`."""
    require_structure(body, BATCHES)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"The body is not JSON: {error}.", do="Send an object.", code="E-JSON") from error
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        location = ".".join(str(part) for part in first["loc"]) or "the body"
        raise InvalidInput(
            f"{location}: {first['msg']}.", do="Use a Tinker SDK of 0.19 to 0.38.", code="E-PARAMETER"
        ) from error


# Steps


def read_json_step(body: bytes, *, forward_only: bool) -> StepRequest:
    """Return a step that came as JSON."""
    request: ForwardBackwardBody = read_json(body, ForwardBackwardBody)
    step_input = request.forward_backward_input or request.forward_input
    if step_input is None:
        raise refused("The request has no data.", "Send forward_backward_input.")
    step = StepRequest(
        request.model_id, request.seq_id, step_input.loss_fn, dict(step_input.loss_fn_config or {}), forward_only, []
    )
    return complete(step, body, lambda: [row_of_json(datum) for datum in step_input.data])


def row_of_json(datum: Datum) -> WireRow:
    inputs = {name: dense_of_json(name, tensor) for name, tensor in datum.loss_fn_inputs.items()}
    return WireRow(tokens_of(datum.model_input.chunks), inputs)


def read_proto_step(body: bytes) -> StepRequest:
    """Return a step that came as protobuf. Raises `InvalidInput` (`E-REQUEST-REFUSED`)."""
    message = message_classes()["ForwardBackwardRequest"]()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise refused(f"The body is not a ForwardBackwardRequest: {error}.", "Send protobuf of the SDK.") from error
    settings: dict[str, Any] = {entry.key: entry.value for entry in message.loss_fn_config}
    for entry in message.loss_fn_config_v2:
        value = entry.value
        settings[entry.key] = value.text if value.HasField("text") else value.number
    step = StepRequest(message.model_id, message.seq_id or None, message.loss_fn, settings, message.forward_only, [])
    return complete(step, body, lambda: [row_of_proto(datum) for datum in message.data])


def row_of_proto(datum: Any) -> WireRow:
    """Return one datum. Raises `InvalidInput` (`E-REQUEST-REFUSED`) for one with fields that are not read."""
    if datum.model_input_spans or datum.loss_fn_input_spans:
        raise refused("The rows have provenance spans.", "Leave them out: only stable_reinforce reads them.")
    inputs = {entry.key: dense_of_proto(entry.key, entry.value) for entry in datum.loss_fn_inputs}
    return WireRow(tokens_of_proto(datum.model_input), inputs)


def complete(step: StepRequest, body: bytes, read_rows: Callable[[], list[WireRow]]) -> StepRequest:
    """Add the rows of a step and the digest of its body; a fault of the rows becomes its error."""
    step.digest = hashlib.sha256(body).hexdigest()
    try:
        step.rows = read_rows()
        if not step.rows:
            raise refused("The request has no data.", "Send at least one datum.")
        if len(step.rows) > MAX_ROWS:
            raise too_many_rows(len(step.rows))
        for index, row in enumerate(step.rows):
            require_targets(row, index)
    except TrainyardError as error:
        step.error = error
    return step


def require_targets(row: WireRow, index: int) -> None:
    """Raise `InvalidInput` (`E-REQUEST-REFUSED`) for a row whose tensors do not fit its tokens."""
    target = row.inputs.get("target_tokens")
    if target is None:
        raise refused(f"Datum {index} has no target_tokens.", "Give one target for each token of model_input.")
    if not len(row.tokens) or target.shape[:1] != (len(row.tokens),) or target.ndim > 2 or not target.size:
        shape = "x".join(map(str, target.shape))
        raise refused(
            f"Datum {index} has {len(row.tokens)} tokens and target_tokens of the shape {shape}.",
            "Give one target, or one list of targets, for each token of model_input.",
        )
    for name, value in row.inputs.items():
        if value.shape != target.shape:
            raise refused(f"{name} of datum {index} has another shape than target_tokens.", "Give one for each target.")
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise refused(f"{name} of datum {index} contains NaN or infinity.", "Give finite numbers.")


def tokens_of(chunks: list[Chunk]) -> np.ndarray:
    """Return the tokens of JSON chunks. Raises `InvalidInput` (`E-REQUEST-REFUSED`) for images and audio."""
    if any(chunk.type != "encoded_text" for chunk in chunks):
        raise refused("The model reads text alone.", "Leave image and audio chunks out.")
    return to_array("tokens", [token for chunk in chunks for token in chunk.tokens], np.int64)


def tokens_of_proto(chunks: Any) -> np.ndarray:
    """Return the tokens of protobuf chunks. Raises as `tokens_of`."""
    if any(not chunk.HasField("encoded_text") for chunk in chunks):
        raise refused("The model reads text alone.", "Leave image and audio chunks out.")
    parts = [from_bytes(chunk.encoded_text.tokens, DTYPES[INT32], "tokens") for chunk in chunks]
    return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


def dense_of_proto(name: str, tensor: Any) -> np.ndarray:
    """Return a protobuf tensor with every place filled. Raises `InvalidInput` (`E-REQUEST-REFUSED`)."""
    dtype = DTYPES.get(tensor.dtype)
    if dtype is None:
        raise refused(f"{name} has a dtype that is not known: {tensor.dtype}.", "Send float32 or int64.")
    shape = tuple(tensor.shape)
    if tensor.HasField("sparse_csr"):
        csr = tensor.sparse_csr
        values = widened(from_bytes(csr.values, dtype, name), tensor.dtype)
        crow, col = (from_bytes(part, DTYPES[INT64], name) for part in (csr.crow_indices, csr.col_indices))
        return typed(name, fill_csr(name, values, crow, col, shape))
    values = widened(from_bytes(tensor.dense, dtype, name), tensor.dtype)
    return typed(name, reshaped(name, values, shape or (len(values),)))


def dense_of_json(name: str, tensor: TensorData) -> np.ndarray:
    """Return a JSON tensor with every place filled. Raises `InvalidInput` (`E-REQUEST-REFUSED`)."""
    values = to_array(name, tensor.data, np.float32 if tensor.dtype == "float32" else np.int64)
    shape = tuple(tensor.shape) if tensor.shape is not None else (len(values),)
    if tensor.sparse_crow_indices is not None:
        indices = (tensor.sparse_crow_indices, tensor.sparse_col_indices)
        crow, col = (to_array(name, part or [], np.int64) for part in indices)
        return typed(name, fill_csr(name, values, crow, col, shape))
    return typed(name, reshaped(name, values, shape))


def to_array(name: str, values: Sequence[float], dtype: type[np.generic]) -> np.ndarray:
    """Return numbers of a JSON body. Raises `InvalidInput` (`E-REQUEST-REFUSED`) for one out of range of the type."""
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, dtype=dtype)
    except (OverflowError, ValueError) as error:
        raise refused(f"{name} contains a number that is out of range.", "Send numbers of 64 bits.") from error
    if dtype is np.int64 and any(value % 1 for value in values):
        raise refused(f"{name} are not whole numbers.", "Send int64.")
    return array


def typed(name: str, values: np.ndarray) -> np.ndarray:
    """Return whole numbers for tokens and floats for everything else. Raises `InvalidInput` for tokens that are not."""
    if name in INT_TENSORS:
        if values.dtype.kind == "f":
            raise refused(f"{name} are not whole numbers.", "Send int64.")
        return values.astype(np.int64)
    return values.astype(np.float32)


def widened(values: np.ndarray, dtype: int) -> np.ndarray:
    """Return bfloat16, whose bits are the upper half of a float32, as float32."""
    if dtype == BFLOAT16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


def from_bytes(data: bytes, dtype: np.dtype, name: str) -> np.ndarray:
    if len(data) % dtype.itemsize:
        raise refused(f"{name} has {len(data)} bytes, not a multiple of {dtype.itemsize}.", "Send whole numbers.")
    return np.frombuffer(data, dtype=dtype)


def reshaped(name: str, values: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if any(size < 0 for size in shape) or int(np.prod(shape, dtype=object)) != len(values):
        raise refused(f"{name} has {len(values)} values and the shape {shape}.", "Send as many as the shape says.")
    return values.reshape(shape)


def fill_csr(name: str, values: np.ndarray, crow: np.ndarray, col: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a sparse tensor as a dense one; places that it does not list are 0."""
    fits = len(shape) == 2 and min(shape) >= 0 and shape[0] * shape[1] <= MAX_ELEMENTS and len(crow) == shape[0] + 1
    ordered = fits and crow[0] == 0 and crow[-1] == len(values) == len(col) and bool((np.diff(crow) >= 0).all())
    if not ordered or (len(col) and not 0 <= int(col.min()) <= int(col.max()) < shape[1]):
        raise refused(f"{name} is not a sparse tensor of the shape {shape}.", "Send CSR indices within the shape.")
    dense = np.zeros(shape, dtype=values.dtype)
    dense[np.repeat(np.arange(shape[0]), np.diff(crow)), col] = values
    return dense


def too_many_rows(count: int) -> LimitExceeded:
    return LimitExceeded(
        f"A request has {count:,} rows, and takes at most {MAX_ROWS:,}.", do="Send several.", code="E-LIMIT"
    )


def refused(problem: str, do: str) -> InvalidInput:
    return InvalidInput(problem, do=do, code="E-REQUEST-REFUSED")


def step_body(step: StepRequest) -> bytes:
    """Return the rows of a step as a session takes them: safetensors."""
    from safetensors.numpy import save  # numpy's part of it: no torch in the service

    targets = [row.inputs["target_tokens"] for row in step.rows]
    names = sorted({name for row in step.rows for name in row.inputs} - {"target_tokens"})
    tensors: dict[str, np.ndarray] = {
        "lengths": np.array([len(row.tokens) for row in step.rows], dtype=np.int64),
        "widths": np.array([target.shape[1] if target.ndim == 2 else 0 for target in targets], dtype=np.int64),
        "input_ids": np.concatenate([row.tokens for row in step.rows]),
        "targets": np.concatenate([target.ravel() for target in targets]),
    }
    for name in names:
        parts = [present(row.inputs, name, target) for row, target in zip(step.rows, targets, strict=True)]
        tensors[f"input/{name}"] = np.concatenate(parts)
        tensors[f"has/{name}"] = np.array([name in row.inputs for row in step.rows], dtype=np.int64)
    return bytes(save(tensors))


def present(inputs: Mapping[str, np.ndarray], name: str, target: np.ndarray) -> np.ndarray:
    """Return the flat values of an input, zeros where a row does not have it."""
    return inputs[name].ravel() if name in inputs else np.zeros(target.size, dtype=np.float32)
