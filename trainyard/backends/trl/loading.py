"""Base model, tokenizer and adapter of a training job (torch; imported in the child only).

Weights come from safetensors and code from the installed packages, always: `trust_remote_code` is False everywhere.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, TaskType
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from trainyard.backends.job import TrainingJob
from trainyard.errors import InvalidInput
from trainyard.spec.axes import Device, Method
from trainyard.train.methods.adapters import NEW, inject
from trainyard.train.methods.loading import require_same_base
from trainyard.train.methods.lora import adapter_shape, targets
from trainyard.train.templates import PLAIN_TEMPLATE


def pick_device(asked: Device) -> str:
    """cuda, then mps, then cpu; or the one asked for. Raises `E-DEVICE` when that one is not here."""
    here = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if asked is Device.AUTO:
        return next(name for name, present in here.items() if present)
    if not here[asked.value]:
        raise InvalidInput(
            f"The device {asked.value!r} was asked for, and this machine has none.",
            do="Use device: auto, which takes what is here.",
            code="E-DEVICE",
        )
    return asked.value


def load_tokenizer(job: TrainingJob) -> PreTrainedTokenizerBase:
    """The base's tokenizer, with a padding token and a chat template."""
    tokenizer = AutoTokenizer.from_pretrained(job.base, trust_remote_code=False)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if not tokenizer.chat_template:
        tokenizer.chat_template = PLAIN_TEMPLATE
    return tokenizer


def template_sha256(tokenizer: PreTrainedTokenizerBase) -> str:
    template = tokenizer.chat_template
    text = template if isinstance(template, str) else json.dumps(template, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def load_base(job: TrainingJob, device: str) -> Any:
    """The base in float32; in bfloat16 where it stays frozen on a GPU that computes in it."""
    frozen = job.config.method is not Method.FULL
    dtype = torch.bfloat16 if frozen and device == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    model = AutoModelForCausalLM.from_pretrained(job.base, trust_remote_code=False, use_safetensors=True, dtype=dtype)
    model.config.use_cache = False
    return model


def with_adapter(model: Any, job: TrainingJob) -> Any:
    """The model that is trained: with a new adapter, with the earlier one, or as it is (full)."""
    if job.config.method is Method.FULL:
        return model
    if job.adapter is not None:
        require_same_base(Path(job.adapter), job.base_sha256, job.node or None)
        return PeftModel.from_pretrained(model, job.adapter, is_trainable=True)
    config = adapter_shape(job.config, TaskType.CAUSAL_LM, targets(model, job.config.lora))
    return inject(model, config, NEW)


def trainable(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def lora_facts(model: Any, job: TrainingJob) -> dict[str, Any] | None:
    """The adapter's shape as it is in the model, which for a continued adapter is the earlier one's."""
    if not isinstance(model, PeftModel):
        return None
    config: Any = model.peft_config["default"]
    targets = config.target_modules
    return {
        "profile": job.config.lora.profile,
        "rank": config.r,
        "alpha": config.lora_alpha,
        "dropout": config.lora_dropout,
        "target_modules": targets if isinstance(targets, str) else sorted(targets),
        "modules_to_save": sorted(config.modules_to_save or []),
        "dora": config.use_dora,
        "rslora": config.use_rslora,
    }
