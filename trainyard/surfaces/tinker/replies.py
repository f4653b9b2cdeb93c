"""Replies of a session as the SDK reads them: protobuf for steps and samples, JSON for everything else."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trainyard.surfaces.tinker.bodies import StepRequest
from trainyard.surfaces.tinker.futures import Answer
from trainyard.surfaces.tinker.messages import FLOAT32, INT32, make_message
from trainyard.surfaces.tinker.requests import Sample

EMPTY_LOGPROB = -99999.0
"""Of a place of a top-k table without a token."""
STOP, LENGTH = 0, 1
STOP_NAMES = ("stop", "length")
Pairs = Sequence[Sequence[Sequence[float]]]


def step_answer(step: StepRequest, result: Mapping[str, Any]) -> Answer:
    """Return the output of a step: the loss summed over its rows, and the log-probability of each target."""
    flat = np.frombuffer(base64.b64decode(result["logprobs"]), dtype="<f4")
    targets = [row.inputs["target_tokens"] for row in step.rows]
    parts = np.split(flat, np.cumsum([target.size for target in targets])[:-1])
    metrics = {"loss:sum": float(result["loss"])}
    records = [batched(group) for group in rectangular(parts, [target.shape[1:] for target in targets])]
    message = make_message(
        "ForwardBackwardOutput",
        loss_fn_output_type="ArrayRecord",
        loss_fn_outputs=records,
        metrics=[make_message("NumberEntry", key=name, value=value) for name, value in metrics.items()],
    )
    outputs = [
        {"logprobs": {"data": part.tolist(), "dtype": "float32", "shape": list(target.shape)}}
        for part, target in zip(parts, targets, strict=True)
    ]
    plain = {"loss_fn_output_type": "ArrayRecord", "loss_fn_outputs": outputs, "metrics": metrics}
    return Answer(plain, message.SerializeToString())


def rectangular(
    parts: Sequence[np.ndarray], shapes: Sequence[tuple[int, ...]]
) -> list[tuple[list[np.ndarray], tuple[int, ...]]]:
    """Return the rows in groups of neighbours that have the same number of targets for a position."""
    groups: list[tuple[list[np.ndarray], tuple[int, ...]]] = []
    for part, shape in zip(parts, shapes, strict=True):
        if groups and groups[-1][1] == shape:
            groups[-1][0].append(part)
        else:
            groups.append(([part], shape))
    return groups


def batched(group: tuple[list[np.ndarray], tuple[int, ...]]) -> Any:
    """Return rows of different lengths as one record."""
    parts, trailing = group
    offsets = np.concatenate([[0], np.cumsum([part.nbytes for part in parts])]).astype("<i8")
    tensor = make_message(
        "BatchedTensor", data=b"".join(part.tobytes() for part in parts), offsets=offsets.tobytes(), dtype=FLOAT32,
        trailing_shape=list(trailing),
    )  # fmt: skip
    entry = make_message("FieldEntry", key="logprobs", value=tensor)
    return make_message("ArrayRecord", type_tag="ArrayRecord", fields=[entry], num_datums=len(parts))


def sample_answer(
    request: Sample, completions: Sequence[Mapping[str, Any]], scores: Mapping[str, Any] | None
) -> Answer:
    """Return the samples, and the log probabilities of the prompt that the request asks for."""
    sequences = [
        make_message(
            "SampledSequence",
            stop_reason=STOP if completion["stop_reason"] == "end" else LENGTH,
            tokens=np.array(completion["ids"], dtype="<i4").tobytes(),
            logprobs=np.array(completion["logprobs"], dtype="<f4").tobytes(),
            **(
                {"topk_sampled_logprobs": topk(completion["likeliest"], request.topk_sample_logprobs)}
                if request.topk_sample_logprobs
                else {}
            ),
        )
        for completion in completions
    ]
    message = make_message("SampleResponse", sequences=sequences)
    plain: dict[str, Any] = {
        "type": "sample",
        "sequences": [
            {
                "stop_reason": STOP_NAMES[sequence.stop_reason],
                "tokens": list(completion["ids"]),
                "logprobs": list(completion["logprobs"]),
            }
            for sequence, completion in zip(sequences, completions, strict=True)
        ],
    }
    if scores is not None:
        add_scores(message, plain, request, scores)
    return Answer(plain, message.SerializeToString())


def add_scores(message: Any, plain: dict[str, Any], request: Sample, scores: Mapping[str, Any]) -> None:
    """Add the log-probabilities of the prompt in the forms that the request names."""
    hidden = 0
    if request.prompt_logprobs_last_n is not None:
        hidden = len(scores["logprobs"]) - request.prompt_logprobs_last_n
    logprobs = [None if at < hidden else value for at, value in enumerate(scores["logprobs"])]
    if request.prompt_logprobs:
        values = [float("nan") if value is None else value for value in logprobs]
        message.prompt_logprobs = np.array(values, dtype="<f4").tobytes()
        plain["prompt_logprobs"] = logprobs
    if request.topk_prompt_logprobs:
        rows: list[Any] = [[], *scores["likeliest"]]
        rows = [[] if at < hidden else row for at, row in enumerate(rows)]
        message.topk_prompt_logprobs.CopyFrom(topk(rows, request.topk_prompt_logprobs))
        plain["topk_prompt_logprobs"] = [row or None for row in rows]
    if request.target_prompt_logprobs is not None:
        message.target_prompt_logprobs.CopyFrom(target_tensor(request, scores["targets"]))
    if request.prompt_alt_tokens_k:
        draws = np.array(scores["draws"], dtype=np.float64).reshape(-1, request.prompt_alt_tokens_k, 2)
        shape = list(draws.shape[:2])
        tokens, values_TK = draws[..., 0].astype("<i4"), draws[..., 1].astype("<f4")
        message.prompt_alt_tokens.tokens.CopyFrom(tensor_of(tokens, INT32, shape))
        message.prompt_alt_tokens.logprobs.CopyFrom(tensor_of(values_TK, FLOAT32, shape))


def topk(rows: Pairs, k: int) -> Any:
    """Return a dense table of tokens and log-probabilities, a row for each position."""
    ids = np.zeros((len(rows), k), dtype="<i4")
    values = np.full((len(rows), k), EMPTY_LOGPROB, dtype="<f4")
    for at, row in enumerate(rows):
        for rank, (token, value) in enumerate(row[:k]):
            ids[at, rank], values[at, rank] = int(token), value
    return make_message("TopkLogprobs", token_ids=ids.tobytes(), logprobs=values.tobytes(), k=k, length=len(rows))


def target_tensor(request: Sample, rows: Sequence[Sequence[float]]) -> Any:
    """Return the log-probabilities of the named tokens in the layout in which the request named them."""
    tensor = request.target_prompt_logprobs
    assert tensor is not None, "checked when the request was read"
    assert tensor.shape is not None, "checked when the request was read"
    dense = np.array(rows, dtype="<f4").reshape(tensor.shape)
    if tensor.sparse_crow_indices is None:
        return tensor_of(dense, FLOAT32, tensor.shape)
    crow, col = np.array(tensor.sparse_crow_indices, "<i8"), np.array(tensor.sparse_col_indices or [], "<i8")
    values = dense[np.repeat(np.arange(len(dense)), np.diff(crow)), col].astype("<f4")
    csr = make_message("SparseCsr", values=values.tobytes(), crow_indices=crow.tobytes(), col_indices=col.tobytes())
    return make_message("Tensor", sparse_csr=csr, dtype=FLOAT32, shape=tensor.shape)


def tensor_of(values: np.ndarray, dtype: int, shape: Sequence[int]) -> Any:
    return make_message("Tensor", dense=values.tobytes(), dtype=dtype, shape=list(shape))
