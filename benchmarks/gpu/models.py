"""Base models from configs, with random weights: published shapes on a card, tiny ones of the same kind in a rehearsal.

`write_base` writes a folder as the Hub has it. A shape that is too large for a disk is made on the card, block by block
(`RandomWeights`): 70 billion weights in nf4 take 40 GiB there and are never anywhere in full precision.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from accelerate import init_empty_weights
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, PreTrainedTokenizerFast

from benchmarks.gpu.platform import Platform
from trainyard.data.rows import LabelledRow, Message, PreferenceRow, Row, SftRow, TextRow
from trainyard.loading import load_object
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.methods import Method
from trainyard.spec.axes.quantization import Quantization
from trainyard.spec.estimate.shape import ModelShape
from trainyard.train.methods.contract import Head, PolicyRequest
from trainyard.train.methods.loading import KINDS, base_dtype
from trainyard.train.methods.table import METHODS
from trainyard.train.quantization import align_train_eval, load_config, output_layer

SHAPES: dict[str, dict[str, Any]] = {
    "small": {
        "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024, "tie_word_embeddings": True,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3", "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "qwen3-4b": {
        "model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "tie_word_embeddings": True,
    },
    "olmo3-7b": {
        "model_type": "olmo3", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 100278, "tie_word_embeddings": False,
        "sliding_window": 4096,
    },
    "llama-70b": {
        "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False,
    },
}  # fmt: skip
"""The sizes in the `config.json` of the published models, and one that a CPU trains as well."""
TINY = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1024,
}  # fmt: skip
CONTEXT = 8192
WORDS, SPECIAL = 1000, ("<pad>", "<end>", "<user>", "<assistant>")
TEMPLATE = (
    "{% for message in messages %}{{ '<' + message['role'] + '> ' + message['content'] + ' <end> ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant> ' }}{% endif %}"
)
DEVIATION = 0.02
"""Of the random weights."""
MEAN_TOKENS, SPREAD, SHORTEST = 300, 0.75, 16
"""Of the lognormal lengths of chat rows."""


def shape_values(name: str, platform: Platform) -> dict[str, Any]:
    """The config of a shape; in a rehearsal a tiny model of the same kind."""
    values = SHAPES[name]
    if platform.rehearsal:
        values = {**values, **TINY, **({"head_dim": 16} if "head_dim" in values else {})}
    return {"max_position_embeddings": CONTEXT, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None, **values}


def model_shape(name: str, platform: Platform) -> ModelShape:
    """The same as the memory plan reads it."""
    shape = ModelShape.from_config(AutoConfig.for_model(**shape_values(name, platform)).to_dict())
    assert shape is not None, name
    return shape


def write_base(folder: Path, name: str, platform: Platform) -> Path:
    """A base with random bf16 weights and a tokenizer of one token a word."""
    write_config(folder, name, platform)
    config = AutoConfig.from_pretrained(folder)
    model = random_model(config, platform.device, torch.bfloat16, "causal")
    model.save_pretrained(folder, max_shard_size="4GB")
    return folder


def write_config(folder: Path, name: str, platform: Platform) -> Path:
    """The same without weights, for `RandomWeights`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = AutoConfig.for_model(**shape_values(name, platform))
    config.architectures = [KINDS["causal"]._model_mapping[type(config)].__name__]
    config.save_pretrained(folder)
    vocabulary = {word: index for index, word in enumerate([*SPECIAL, *(f"w{index}" for index in range(WORDS))])}
    plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    plain.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_object=plain, pad_token="<pad>", eos_token="<end>", chat_template=TEMPLATE)
    tokenizer.save_pretrained(folder)
    return folder


# Random weights


def empty_model(config: Any, head: Head) -> Any:
    """A model without weights: its buffers are real, its parameters are on torch's meta device."""
    with init_empty_weights(include_buffers=False):
        model = KINDS[head].from_config(config, attn_implementation=config._attn_implementation)
    model.config.use_cache = False
    return model


def random_model(config: Any, device: str, dtype: torch.dtype, head: Head) -> Any:
    """A model with random weights, made on the device."""
    torch.manual_seed(0)
    model = empty_model(config, head)
    fill_parameters(model, device, dtype)
    return model.to(device)


def fill_parameters(model: Any, device: str, dtype: torch.dtype) -> None:
    """Random matrices, and norms of one, in the place of parameters that have no content yet."""
    for name, parameter in list(model.named_parameters()):
        if parameter.device.type == "meta":
            parent, _, leaf = name.rpartition(".")
            value = torch.empty(parameter.shape, dtype=dtype, device=device)
            value = value.fill_(1) if value.ndim == 1 else value.normal_(0, DEVIATION)
            setattr(model.get_submodule(parent), leaf, torch.nn.Parameter(value, requires_grad=False))
    model.tie_weights()


def random_quantised(config: Any, request: PolicyRequest) -> Any:
    """A model whose linear layers are quantised one by one, as `load_quantised` leaves a base that was read."""
    torch.manual_seed(0)
    format = request.config.quantization or Quantization.NF4
    model, how = empty_model(config, request.head), load_config(format, request.device)
    layers, head, dtype = load_object("bitsandbytes.nn"), output_layer(model), base_dtype(request)
    for name, layer in list(model.named_modules()):
        if type(layer) is torch.nn.Linear and layer is not head:
            sizes, packing = (layer.in_features, layer.out_features), {"quant_type": format.value}
            quantized = layers.Linear4bit(
                *sizes, bias=layer.bias is not None, compute_dtype=how.bnb_4bit_compute_dtype, device="meta", **packing
            )
            weight = torch.empty(sizes[1], sizes[0], dtype=dtype, device=request.device).normal_(0, DEVIATION)
            quantized.weight = layers.Params4bit(weight, requires_grad=False, **packing).to(request.device)
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, quantized)
    fill_parameters(model, request.device, dtype)
    model = model.to(request.device)
    model.is_loaded_in_4bit = model.is_quantized = True
    model.config.quantization_config = how
    align_train_eval(model)
    for parameter in model.parameters():
        if parameter.ndim == 1 and parameter.is_floating_point():
            parameter.data = parameter.data.float()
    return model


def random_base(request: PolicyRequest, folder: str) -> Any:
    """What a method's own `load` returns, with random weights in place of those of a file."""
    config = AutoConfig.from_pretrained(folder)
    config._attn_implementation = request.attention or "sdpa"
    if request.config.method.facts.quantised:
        return random_quantised(config, request)
    return random_model(config, request.device, base_dtype(request), request.head)


@contextmanager
def random_weights() -> Iterator[None]:
    """While the block runs, every method makes its base in memory from the config in the base's folder."""
    before = dict(METHODS)
    METHODS.update({method: replace(METHODS[method], load=random_base) for method in Method if method in METHODS})
    try:
        yield
    finally:
        METHODS.update(before)


# Rows


def chat_rows(count: int, longest: int, *, mean: int = MEAN_TOKENS) -> list[SftRow]:
    """Rows of lognormal length, at most `longest` tokens, whose second half is the answer."""
    chance = random.Random(0)
    lengths = [chance.lognormvariate(math.log(mean) - SPREAD**2 / 2, SPREAD) for _ in range(count)]
    return [chat_row(chance, min(longest, max(SHORTEST, round(length)))) for length in lengths]


def full_rows(count: int, length: int) -> list[SftRow]:
    """Rows of exactly `length` tokens."""
    chance = random.Random(0)
    return [chat_row(chance, length) for _ in range(count)]


def chat_row(chance: random.Random, length: int) -> SftRow:
    """A question and an answer; the template adds two tokens to each."""
    prompt_length = length // 2
    return SftRow(
        [
            Message("user", draw_words(chance, prompt_length - 2)),
            Message("assistant", draw_words(chance, length - prompt_length - 2)),
        ]
    )


def preference_rows(count: int, length: int) -> list[PreferenceRow]:
    """Pairs of `length` tokens a side: three quarters are prompt."""
    chance = random.Random(0)
    prompt_length = 3 * length // 4
    return [
        PreferenceRow(
            [Message("user", draw_words(chance, prompt_length - 2))],
            [Message("assistant", draw_words(chance, length - prompt_length - 2))],
            [Message("assistant", draw_words(chance, length - prompt_length - 2))],
        )
        for _ in range(count)
    ]


def rows_of_ports(count: int, length: int) -> dict[Port, list[Row]]:
    """The same number of rows for each kind of stage."""
    pairs, chance = preference_rows(count, length), random.Random(1)
    return {
        Port.SFT: list(full_rows(count, length)),
        Port.PREFERENCE: list(pairs),
        Port.LABELLED: [LabelledRow(pair.prompt, pair.chosen, bool(at % 2)) for at, pair in enumerate(pairs)],
        Port.TEXT: [TextRow(draw_words(chance, length)) for _ in range(count)],
    }


def draw_words(chance: random.Random, count: int) -> str:
    return " ".join(f"w{int(WORDS * chance.random() ** 2)}" for _ in range(count))
