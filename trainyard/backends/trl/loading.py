"""Base model, tokenizer and adapter of a training job (torch; imported in the child only).

Weights come from safetensors and code from the installed packages, always: `trust_remote_code` is False everywhere.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoTokenizer, PreTrainedTokenizerBase

from trainyard.backends.job import TrainingJob
from trainyard.data.renderers.tokenizer import choose_for_tokenizer
from trainyard.errors import InvalidInput, Refused
from trainyard.json_types import JsonObject
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.methods import Method, adapter_settings
from trainyard.spec.compat.run import base_reasons
from trainyard.spec.estimate.shape import BaseFacts, ModelLayout
from trainyard.train.methods.adapters import NEW, inject, load_adapter, read_config
from trainyard.train.methods.contract import Head, PolicyRequest
from trainyard.train.methods.coverage import measure_coverage
from trainyard.train.methods.loading import add_tokens, grow_vocabulary, load_model, require_same_base
from trainyard.train.methods.lora import TASKS, adapter_shape, load_quantised
from trainyard.train.methods.targets import targets
from trainyard.train.model.positions import position_options
from trainyard.train.model.precision import choose_frozen_dtype, find_accelerator


def pick_device(requested: Device) -> str:
    """Return torch's name of a GPU, else mps, else cpu; or of the requested device. Raises `E-DEVICE` if absent."""
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if requested is Device.AUTO:
        return next(name for name, present in here.items() if present)
    device = requested.facts.torch_type
    if not here[device] or find_accelerator(device) is not requested:
        raise InvalidInput(
            f"The device {requested.value!r} was requested, and this machine has none.",
            do="Use device: auto, which takes what is here.",
            code="E-DEVICE",
        )
    return device


def load_tokenizer(job: TrainingJob) -> PreTrainedTokenizerBase:
    """Return the base's tokenizer, with a padding token and a chat template. Raises as `read_tokenizer`."""
    tokenizer = read_tokenizer(job)
    tokenizer.chat_template = choose_for_tokenizer(tokenizer).text
    return tokenizer


def read_tokenizer(job: TrainingJob) -> PreTrainedTokenizerBase:
    """Return the base's tokenizer, with a padding token if it has any special one, and its chat template or none.

    Raises `Refused` (`R-BASE-MISMATCH`) for a base that no stage can train.
    """
    tokenizer = AutoTokenizer.from_pretrained(job.base, trust_remote_code=False)
    # The same rows as of a plan, which does not see a base that is not on its disk.
    config = AutoConfig.from_pretrained(job.base, trust_remote_code=False)
    base = BaseFacts.from_config(config.to_dict(), max(tokenizer.get_vocab().values(), default=-1) + 1)
    if base.layout is ModelLayout.DECODER and type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        base = replace(base, layout=ModelLayout.OTHER)
    if reasons := base_reasons(job.config, base, job.node or None):
        raise Refused(reasons)
    add_tokens(tokenizer, job.config.added_tokens)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token or find_special_token(tokenizer)
    return tokenizer


def find_special_token(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """Return the first special token of a tokenizer that names none, or None; the padding is masked, so any will do."""
    return next((token.content for _, token in sorted(tokenizer.added_tokens_decoder.items()) if token.special), None)


def template_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    template = tokenizer.chat_template
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def find_head(job: TrainingJob) -> Head:
    """Return the kind of the model's output: text, or one score a row."""
    return job.config.stage.facts.head


def load_base(job: TrainingJob, device: str) -> Any:
    """Return the base in float32, or in the half precision that a GPU computes in where it stays frozen.

    A quantised base is loaded as the native engine loads it, on its device. The score of a reward model is new: its
    first weights are drawn here.
    """
    if job.config.base_format:
        return load_quantised(policy_request(job, device), job.base)
    moves = job.config.method.type is Method.FULL
    dtype = torch.float32 if moves else choose_frozen_dtype(device, job.config.hyperparameters.precision)
    options = {"trust_remote_code": False, "use_safetensors": True, "dtype": dtype}
    model = load_model(job.base, find_head(job), {**options, **position_options(job.base, job.config.rope)})
    return grow_vocabulary(model, job.base, job.config.added_tokens)


def policy_request(job: TrainingJob, device: str) -> PolicyRequest:
    """Return the sources of the model, in the words of the native engine."""
    adapter = Path(job.adapter) if job.adapter else None
    return PolicyRequest(job.config, job.base, find_head(job), device, job.base_sha256, adapter)


def make_model(job: TrainingJob, device: str) -> Any:
    """Return the model that is trained, on its device."""
    if job.config.base_format:
        return with_adapter(load_base(job, device), job, device)
    return with_adapter(load_base(job, device), job).to(device)


def with_adapter(model: Any, job: TrainingJob, device: str = "cpu") -> Any:
    """Return the model that is trained: with a new adapter, with the earlier one, or as it is (full)."""
    if job.config.method.type is Method.FULL:
        return model
    if job.adapter is not None:
        folder = Path(job.adapter)
        require_same_base(folder, job.base_sha256, job.node or None)
        return load_adapter(model, folder, read_config(folder, find_head(job), trainable=True), NEW, device)
    torch.manual_seed(job.config.hyperparameters.seed)  # a new score has drawn before
    config = adapter_shape(job.config, TASKS[find_head(job)], targets(model, adapter_settings(job.config.method)))
    return inject(model, config, NEW)


def adapter_facts(model: Any, job: TrainingJob) -> JsonObject:
    """The shape of a model's adapter, and the share of the weights that it is on."""
    return {**config_facts(model.peft_config[NEW], job), "coverage": measure_coverage(model, NEW)}


def config_facts(config: Any, job: TrainingJob) -> JsonObject:
    """Return the shape of an adapter by PEFT's config."""
    targets = config.target_modules
    return {
        "profile": adapter_settings(job.config.method).profile,
        "rank": config.r,
        "alpha": config.lora_alpha,
        "dropout": config.lora_dropout,
        "target_modules": targets if isinstance(targets, str) else sorted(targets),
        "modules_to_save": sorted(config.modules_to_save or []),
        "dora": config.use_dora,
        "rslora": config.use_rslora,
    }
