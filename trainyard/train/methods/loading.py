"""Base models for training, and the record that a trained model or adapter carries.

Weights come from safetensors and code from the installed packages, always: `trust_remote_code` is False everywhere.

Added tokens: a tokenizer with words of its own, and a base whose embeddings and output layer have a row for each.

A new row begins as the mean of the rows that the tokenizer knew before, so that a new token is at first as likely as an
average one. Nothing is drawn: the same base and tokens give the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
import transformers
from transformers import AutoTokenizer

from trainyard.errors import InvalidInput, LimitExceeded, Reason, Refused
from trainyard.json_types import JsonObject
from trainyard.spec.axes.devices import Precision
from trainyard.stores.models import count_parameters, weight_files
from trainyard.stores.whole import file_sha256
from trainyard.train.methods.contract import Head, PolicyRequest
from trainyard.train.model.head import require_known_logits
from trainyard.train.model.positions import position_options
from trainyard.train.model.precision import ATTENTION_NAMES, AttentionSupport, choose_frozen_dtype


def add_tokens(tokenizer: Any, tokens: Sequence[str]) -> list[int]:
    """Add the tokens that the tokenizer does not have; returns their ids."""
    new = [token for token in tokens if token not in tokenizer.get_vocab()]
    tokenizer.add_tokens(new)
    return [int(tokenizer.convert_tokens_to_ids(token)) for token in new]


def grow_vocabulary(model: Any, folder: str, tokens: Sequence[str]) -> Any:
    """Return the model with a row for each added token; the same model without any."""
    if not tokens:
        return model
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    old_size = len(tokenizer)
    ids = add_tokens(tokenizer, tokens)
    if not ids:
        return model
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    for layer in dict.fromkeys((model.get_input_embeddings(), model.get_output_embeddings())):
        if layer is not None:
            set_to_mean(layer, ids, old_size)
    return model


@torch.no_grad()
def set_to_mean(layer: Any, ids: list[int], old_size: int) -> None:
    """Set the rows of new ids to the mean of the first `old_size` ones."""
    for value in (layer.weight, getattr(layer, "bias", None)):
        if value is not None:
            value[ids] = value[:old_size].float().mean(0).to(value.dtype)


TRAINING_FILE = "training.json"
"""Record of a training, in the folder of the weights that it made."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
KINDS: dict[Head, Any] = {
    "causal": transformers.AutoModelForCausalLM,
    "reward": transformers.AutoModelForSequenceClassification,
}

CLASSES: dict[Head, Any] = {
    "causal": transformers.MODEL_FOR_CAUSAL_LM_MAPPING,
    "reward": transformers.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
}
"""Head -> config class -> model class, as transformers maps them."""
KERNEL_FLAGS = {"fa3": "_supports_flash_attn", "fa2": "_supports_flash_attn", "sdpa": "_supports_sdpa"}
"""Attention kernel -> the attribute by which a model class of transformers says that it has it."""


def find_architecture(folder: str, head: Head) -> AttentionSupport:
    """Return the class that a base will be loaded as, with its attention kernels; no weight is read.

    Raises `InvalidInput` (`E-MODEL-INVALID`) for a model type that transformers has no class with this head for.
    """
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if type(config) not in CLASSES[head]:
        raise InvalidInput(
            f"transformers has no {head} model for the type {config.model_type}.",
            why="A reward model needs a class that gives a score." if head == "reward" else "",
            do="Use a base of another type, such as a Llama or a Qwen.",
            code="E-MODEL-INVALID",
        )
    classes = CLASSES[head][type(config)]
    model_class = classes[0] if isinstance(classes, tuple) else classes
    kernels = {name for name in ATTENTION_NAMES if getattr(model_class, KERNEL_FLAGS.get(name, ""), name == "eager")}
    heads = getattr(config.get_text_config(), "num_attention_heads", None)
    return AttentionSupport(model_class.__name__, frozenset(kernels), attends=heads is not None)


def default_attention(folder: str, head: Head = "causal") -> str:
    """Return the kernel that transformers takes when none is requested: sdpa where the model class has it, else eager.

    It is passed to every loader, so that the one in a model's config.json is never used. Raises as `find_architecture`.
    """
    return "sdpa" if "sdpa" in find_architecture(folder, head).kernels else "eager"


def require_memory(folder: str | Path, dtype: torch.dtype) -> None:
    """Refuse a model whose weights do not fit into the memory that is free now, before any of it is taken.

    A Hub name is not looked at. Raises `LimitExceeded` (`E-MEMORY-FIT`).
    """
    if not Path(folder).is_dir():
        return
    needed = sum(count_parameters(path) for path in weight_files(Path(folder))) * dtype.itemsize
    free = psutil.virtual_memory().available
    if needed > free:
        raise LimitExceeded(
            f"The model in {Path(folder).name} needs {needed / 2**30:.1f} GiB of memory.",
            why=f"{free / 2**30:.1f} GiB are free on this machine.",
            do="Use a smaller model or dtype, or end what takes the memory.",
            code="E-MEMORY-FIT",
        )


def exclude_cudnn_attention() -> None:
    """Let torch's SDPA choose among its flash, memory-efficient and plain kernels in this process.

    On Hopper it would take cuDNN's, which makes a plan for each new length of the keys: with every token of an answer.
    On an H200 one token took a layer 35 to 68 ms with it, and 1.7 to 4.4 without (docs/performance.md).
    """
    torch.backends.cuda.enable_cudnn_sdp(False)


def load_for_answers(folder: str, dtype: torch.dtype | str) -> Any:
    """Return a causal language model from safetensors, without remote code, that is not trained."""
    options: Any = {"dtype": dtype, "trust_remote_code": False, "use_safetensors": True}
    exclude_cudnn_attention()
    return KINDS["causal"].from_pretrained(folder, attn_implementation=default_attention(folder), **options).eval()


def load_teacher(folder: str, tokenizer: Any, device: str, precision: Precision) -> Any:
    """Return a frozen causal model on a device that reads the same tokens as the student's tokenizer.

    In half precision on a GPU that computes in it, else in float32. Raises `InvalidInput` (`E-MODEL-INVALID`) for
    another vocabulary, `LimitExceeded` (`E-MEMORY-FIT`) before any weight is read, and as `require_known_logits`.
    """
    teacher_tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    require_same_vocabulary(teacher_tokenizer.get_vocab(), tokenizer.get_vocab())
    dtype = choose_frozen_dtype(device, precision)
    if device == "cpu":
        require_memory(folder, dtype)
    teacher = load_for_answers(folder, dtype).requires_grad_(False).to(device)
    require_known_logits(teacher)
    return teacher


def require_same_vocabulary(teacher: Mapping[str, int], student: Mapping[str, int]) -> None:
    """Raise `InvalidInput` (`E-MODEL-INVALID`) where a token has not the same id in both."""
    different = sorted(token for token in teacher.keys() | student.keys() if teacher.get(token) != student.get(token))
    if different:
        raise InvalidInput(
            f"Teacher and student do not have the same vocabulary: {len(different):,} tokens differ, such as "
            f"{different[0]!r}.",
            why=f"Probabilities are compared token by token. The teacher has {len(teacher):,} tokens, the student "
            f"{len(student):,}.",
            do="Use a teacher of the student's family, or let it write rows with an ai_generator and train sft.",
            code="E-MODEL-INVALID",
        )


def load_base(request: PolicyRequest, folder: str, **options: Any) -> Any:
    """Return the base of `folder` on the request's device.

    float32 where its weights move or the device is a CPU; on a GPU a base that stays frozen is kept in half precision.
    `options` go to `from_pretrained`.
    """
    model = load_model(folder, request.head, {**load_options(request, base_dtype(request)), **options})
    model = grow_vocabulary(model, folder, request.config.added_tokens)
    return model if "device_map" in options else model.to(request.device)


def load_options(request: PolicyRequest, dtype: torch.dtype) -> JsonObject:
    """Return what `load_model` gets for a request."""
    options = {"trust_remote_code": False, "use_safetensors": True, "dtype": dtype}
    options |= position_options(request.base, request.config.rope)
    return {**options, "attn_implementation": request.attention} if request.attention is not None else options


def load_model(folder: str, head: Head, options: JsonObject) -> Any:
    """Return a causal model, or one with a single score per row (`reward`), whose padding token is set."""
    options = {**options}
    attention = options.pop("attn_implementation", None) or default_attention(folder, head)
    scores = {"num_labels": 1} if head == "reward" else {}
    exclude_cudnn_attention()
    model, loaded = KINDS[head].from_pretrained(
        folder, attn_implementation=attention, output_loading_info=True, **scores, **options
    )
    require_weights(model, loaded["missing_keys"], folder)
    if head == "reward" and model.config.pad_token_id is None:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        padding = tokenizer.pad_token_id
        model.config.pad_token_id = tokenizer.eos_token_id if padding is None else padding
    model.config.use_cache = False
    return model


def require_weights(model: Any, missing: Iterable[str], folder: str) -> None:
    """Raise `InvalidInput` (`E-MODEL-INVALID`) where a matrix of the model is not in the files, and so is random.

    Of a reward model the score is new.
    """
    matrices = {name for name, weight in model.named_parameters() if weight.ndim > 1 and not name.startswith("score.")}
    random = sorted(matrices.intersection(missing))
    if random:
        raise InvalidInput(
            f"The files of {folder} do not have {len(random)} weights of the model, such as {random[0]}.",
            why="transformers would begin with random ones in their place.",
            do="Download the model again, or correct config.json: layers, sizes and quantization_config.",
            code="E-MODEL-INVALID",
        )


def base_dtype(request: PolicyRequest) -> torch.dtype:
    """Return the dtype of the base's weights in memory."""
    if not request.config.method.facts.adapter:
        return torch.float32
    return choose_frozen_dtype(request.device, request.config.hyperparameters.precision)


def training_record(folder: str | Path) -> JsonObject:
    """Return the `training.json` of a folder of weights; empty for weights that were trained elsewhere."""
    path = Path(folder) / TRAINING_FILE
    if not path.is_file():
        return {}
    record: JsonObject = json.loads(path.read_text(encoding="utf-8"))
    return record


def require_same_base(adapter: Path, base_sha256: str, node: str | None = None) -> None:
    """Raise `Refused` (`R-BASE-MISMATCH`) unless the adapter was trained on exactly these base weights."""
    recorded = training_record(adapter).get("base_sha256")
    if recorded and base_sha256 and recorded != base_sha256:
        because = f"The earlier adapter belongs to base {recorded[:12]}, this trainer has base {base_sha256[:12]}."
        raise Refused([Reason("R-BASE-MISMATCH", node, "config.base_model", because, "the same base_model.")])


def lineage(request: PolicyRequest) -> list[JsonObject]:
    """Return everything that a policy comes from, oldest first.

    A base that this product trained lists its own ancestors, and so does an earlier adapter, which shares them with
    the base: each appears once.
    """
    records = ancestors(request.base, request.base_sha256)
    if request.adapter is not None:
        records += ancestors(request.adapter, file_sha256(request.adapter / ADAPTER_WEIGHTS))
    return [entry for at, entry in enumerate(records) if entry not in records[:at]]


def ancestors(folder: str | Path, sha256: str) -> list[JsonObject]:
    """Return what some weights come from and then those weights themselves."""
    record = training_record(folder)
    entry = {"stage": record.get("stage"), "method": record.get("method"), "sha256": sha256}
    scorer = record.get("reward_model_sha256")
    scored = {"scored_by": scorer} if scorer else {}
    return [*record.get("lineage", []), {**entry, "parents": record.get("parents", []), **scored}]
