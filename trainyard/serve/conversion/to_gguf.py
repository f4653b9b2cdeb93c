"""`python -m trainyard.serve.conversion.to_gguf TOOLS BASE OUT`: a model of transformers as a GGUF file, in float32.

Uses llama.cpp's own converter classes, in a process of its own. They know a tokenizer by the digest of what it makes of
a test sentence, and refuse every other. Where the digest is unknown this asks the tokenizer itself: if the rule that
cuts a text into words is GPT-2's, spelled out in `tokenizer.json`, the file says so; anything else stays refused
(`E-CONVERT`). The caller compares the ids of both sides afterwards, so a wrong answer would not pass.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from trainyard.errors import InvalidInput
from trainyard.loading import load_object

GPT2_RULE = {"type": "ByteLevel", "use_regex": True}
"""GPT-2's rule as the tokenizers library spells it: its regular expression is the one that is built in there."""


def find_tokenizer_rule(base: Path) -> str:
    """llama.cpp's name of a tokenizer's rule, for one that its table of digests does not know.

    Raises `InvalidInput` (`E-CONVERT`).
    """
    tokenizer = json.loads((base / "tokenizer.json").read_text(encoding="utf-8"))
    rule = tokenizer.get("pre_tokenizer") or {}
    plain = not rule.get("add_prefix_space") and not tokenizer.get("normalizer")
    if plain and {key: rule.get(key) for key in GPT2_RULE} == GPT2_RULE:
        return "gpt-2"
    raise InvalidInput(
        "llama.cpp does not know the tokenizer of this base model.",
        why=f"Its rule for cutting text into words is {json.dumps(rule)[:200]}, and no file can say that.",
        do="Use a base of a family that llama.cpp knows, or another backend.",
        code="E-CONVERT",
    )


def find_converter(base: Path) -> Any:
    """The converter class of the base's architecture, which asks the tokenizer where its own table has no answer.

    Raises `InvalidInput` (`E-CONVERT`) for an architecture that llama.cpp does not have.
    """
    conversion = load_object("conversion")
    hyper = conversion.ModelBase.load_hparams(base, False)
    architecture = conversion.get_model_architecture(hyper, conversion.ModelType.TEXT)
    try:
        model_class = conversion.get_model_class(architecture)
    except NotImplementedError as error:
        raise InvalidInput(
            f"llama.cpp has no models of architecture {architecture}.",
            do="Use another base model, or another backend.",
            code="E-CONVERT",
        ) from error

    class Converter(model_class):  # type: ignore[misc, valid-type]
        model_arch = model_class.model_arch

        def get_vocab_base_pre(self, tokenizer: object) -> str:
            try:
                return str(super().get_vocab_base_pre(tokenizer))
            except NotImplementedError:
                return find_tokenizer_rule(base)

    return Converter


def reach(tools: Path) -> None:
    """Put llama.cpp's converter and its own gguf package first, and behind ours what only its environment has."""
    first = [str(tools), str(tools / "gguf-py")]
    last = [str(path) for path in tools.parent.glob("lib/python3*/site-packages")]
    sys.path[:] = [*first, *(path for path in sys.path if path not in (*first, *last)), *last]


def convert(tools: Path, base: Path, out: Path) -> None:
    """Write the GGUF file `out` of the model folder `base`."""
    reach(tools)
    converter = find_converter(base)
    kind = load_object("gguf").LlamaFileType.ALL_F32
    with torch.inference_mode():
        converter(base, kind, out, model_name=base.name).write()


if __name__ == "__main__":
    convert(*(Path(argument) for argument in sys.argv[1:4]))
