"""Load the tokenizer of a model as its training does; for a process that only renders, without torch.

transformers works without torch for tokenizers, and imports it wherever it finds it, which costs 3 s of CPU. `None` in
`sys.modules` makes a package absent (https://docs.python.org/3/reference/import.html#the-module-cache), so that the
same `AutoTokenizer` of the same transformers is loaded in 0.5 s.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from trainyard.loading import load_object

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def render_without_torch() -> None:
    """Make torch absent in this process, which must not train, serve or measure afterwards: it only renders rows."""
    if "torch" not in sys.modules and "transformers" not in sys.modules:
        os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it would say that it found no PyTorch
        sys.modules["torch"] = None  # type: ignore[assignment]


def load_tokenizer(location: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder or of the cache. Raises `OSError` where there is none."""
    collects = gc.isenabled()
    gc.disable()  # the import makes a million objects that stay
    try:
        auto_tokenizer = load_object("transformers:AutoTokenizer")
    finally:
        if collects:
            gc.enable()
    tokenizer: PreTrainedTokenizerBase = auto_tokenizer.from_pretrained(location, trust_remote_code=False)
    return tokenizer
