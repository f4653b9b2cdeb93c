"""Recipe of the starter's weights, except the corpus: sizes, learning rates, template, seed."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from trainyard.data.renderers.templates import STARTER_TEMPLATE as CHAT_TEMPLATE
from trainyard.spec.chain import digest

PAD, END_OF_TEXT, TURN_START, TURN_END = "<|pad|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"


MANIFEST, CARD_FILE = "manifest.json", "README.md"


@dataclass(frozen=True)
class StarterRecipe:
    """Sizes of the model and of its training. The defaults are those of the shipped weights."""

    steps: int = 1500
    version: int = 3
    vocabulary: int = 4096
    layers: int = 4
    hidden: int = 256
    intermediate: int = 896
    heads: int = 4
    positions: int = 4096
    batch_rows: int = 16
    row_tokens: int = 256
    matrix_learning_rate: float = 0.02
    vector_learning_rate: float = 0.01
    warmup_steps: int = 60
    seed: int = 20

    @property
    def sha256(self) -> str:
        """Digest over the sizes and the chat template."""
        return digest({"recipe": asdict(self), "template": CHAT_TEMPLATE})
