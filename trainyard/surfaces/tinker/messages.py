"""The protobuf messages of the wire, from a table of their fields.

A field that this server does not read (images, provenance) has no row: protobuf keeps it aside, and `bodies` refuses
what it would ignore. Types: b bytes, s string, i int32, l int64, u uint32, d double, t bool, e enum, or a message.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "trainyard_tinker"
Fields = tuple[tuple[int, str, str], ...]
MESSAGES: dict[str, Fields] = {
    "SparseCsr": ((1, "values", "b"), (2, "crow_indices", "b"), (3, "col_indices", "b")),
    "Tensor": ((1, "dense", "b?"), (2, "sparse_csr", "SparseCsr"), (3, "dtype", "i"), (4, "shape", "l*")),
    "EncodedTextChunk": ((1, "tokens", "b"),),
    "Chunk": ((1, "encoded_text", "EncodedTextChunk"), (2, "image", "b?"), (3, "dmel", "b?")),
    "InputEntry": ((1, "key", "s"), (2, "value", "Tensor")),
    "Datum": (
        (1, "model_input", "Chunk*"),
        (2, "loss_fn_inputs", "InputEntry*"),
        (3, "model_input_spans", "b*"),
        (4, "loss_fn_input_spans", "b*"),
    ),
    "NumberEntry": ((1, "key", "s"), (2, "value", "d")),
    "ConfigValue": ((1, "number", "d?"), (2, "text", "s?")),
    "ConfigEntry": ((1, "key", "s"), (2, "value", "ConfigValue")),
    "ForwardBackwardRequest": (
        (1, "model_id", "s"),
        (2, "seq_id", "i"),
        (3, "data", "Datum*"),
        (4, "loss_fn", "s"),
        (5, "loss_fn_config", "NumberEntry*"),
        (6, "forward_only", "t"),
        (7, "loss_fn_config_v2", "ConfigEntry*"),
    ),
    "BatchedTensor": ((1, "data", "b"), (2, "offsets", "b"), (3, "dtype", "i"), (4, "trailing_shape", "l*")),
    "FieldEntry": ((1, "key", "s"), (2, "value", "BatchedTensor")),
    "ArrayRecord": ((1, "type_tag", "s"), (2, "fields", "FieldEntry*"), (3, "num_datums", "l")),
    "ForwardBackwardOutput": (
        (1, "loss_fn_output_type", "s"),
        (2, "loss_fn_outputs", "ArrayRecord*"),
        (3, "metrics", "NumberEntry*"),
    ),
    "TopkLogprobs": ((1, "token_ids", "b"), (2, "logprobs", "b"), (3, "k", "u"), (4, "length", "u")),
    "SampledSequence": (
        (1, "stop_reason", "i"),
        (2, "tokens", "b"),
        (3, "logprobs", "b?"),
        (4, "topk_sampled_logprobs", "TopkLogprobs"),
    ),
    "PromptAltTokens": ((1, "tokens", "Tensor"), (2, "logprobs", "Tensor")),
    "SampleResponse": (
        (1, "sequences", "SampledSequence*"),
        (2, "prompt_logprobs", "b?"),
        (3, "topk_prompt_logprobs", "TopkLogprobs"),
        (4, "prompt_cache_hit_tokens", "i"),
        (5, "target_prompt_logprobs", "Tensor"),
        (6, "prompt_alt_tokens", "PromptAltTokens"),
    ),
}
"""Message -> (number, name, type) of its fields; `*` is repeated, `?` has presence. A map is a list of its entries."""
FLOAT32, INT64, INT32, BFLOAT16 = 1, 2, 3, 4
"""Numbers of the dtypes."""
KINDS = descriptor_pb2.FieldDescriptorProto
TYPES = {
    "b": KINDS.TYPE_BYTES,
    "s": KINDS.TYPE_STRING,
    "i": KINDS.TYPE_INT32,
    "l": KINDS.TYPE_INT64,
    "u": KINDS.TYPE_UINT32,
    "d": KINDS.TYPE_DOUBLE,
    "t": KINDS.TYPE_BOOL,
}


@cache
def message_classes() -> dict[str, Any]:
    """Return the classes of the messages by name, in a pool of their own."""
    file = descriptor_pb2.FileDescriptorProto(name="trainyard_tinker.proto", package=PACKAGE, syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in fields:
            add_field(message, number, field, kind)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in MESSAGES}


def add_field(message: Any, number: int, name: str, kind: str) -> None:
    """Add one field of the table to a descriptor."""
    base = kind.rstrip("*?")
    field = message.field.add(name=name, number=number)
    field.label = KINDS.LABEL_REPEATED if kind.endswith("*") else KINDS.LABEL_OPTIONAL
    if base in TYPES:
        field.type = TYPES[base]
    else:
        field.type, field.type_name = KINDS.TYPE_MESSAGE, f".{PACKAGE}.{base}"
    if kind.endswith("?"):
        field.proto3_optional = True
        field.oneof_index = len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")


def make_message(name: str, **fields: Any) -> Any:
    """Return a new message."""
    return message_classes()[name](**fields)
