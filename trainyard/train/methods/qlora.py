"""QLoRA (arXiv 2305.14314): a low-rank adapter on a frozen base that is quantized to 4 or 8 bits."""

from __future__ import annotations

from typing import Any

import torch

from trainyard.train.methods.contract import PolicyRequest
from trainyard.train.methods.loading import load_base
from trainyard.train.quantization.formats import align_train_eval, convert, load_config, stored_config


def load_quantised(request: PolicyRequest, folder: str) -> Any:
    """Return the base in the requested quantization format (default nf4, double quantization) on the request's device.

    Norms, embeddings and the output layer keep the dtype that they are loaded in, which they have in serving, too. The
    paper's code makes norms float32: their states are then cast back for each layer that reads them.
    """
    format, precision = request.config.base_format, request.config.hyperparameters.precision
    assert format is not None, "the method qlora"
    # accelerate, below TRL, compares the number of the GPU and takes a `cuda` without one for another device
    place = torch.cuda.current_device() if request.device == "cuda" else request.device
    quantization = load_config(format, request.device, stored_config(folder), precision)
    # transformers lets a `None` replace the base's own config: its packed weights would be left out, for random ones
    given = {} if quantization is None else {"quantization_config": quantization}
    model = load_base(request, folder, **given, device_map={"": place})
    convert(model, format, request.device, precision)
    align_train_eval(model)
    return model
