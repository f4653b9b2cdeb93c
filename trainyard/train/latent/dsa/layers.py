"""Layers with sparse attention: the full-attention layers of a model of transformers, by hooks and its attention
interface, so that the model's own code stays as it is and every trace can be removed.

Shapes: B rows, T queries, D hidden.

A layer of a cache with keys, values and index keys in room that is larger than they are.

transformers' own layer concatenates: each token that is read copies the keys and values of all tokens before it, which
is more memory traffic than sparse attention itself. Here a token is written behind the others. The room grows by a
quarter, so that a token is copied four times on average however long an answer becomes.

Shapes: B rows, H heads, S tokens, R room, C dimensions of a head, I dimensions of an index key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicIndexedLayer, DynamicLayer
from transformers.masking_utils import eager_mask

from trainyard.errors import InvalidInput
from trainyard.json_types import JsonObject
from trainyard.train.latent.dsa.attention import SELECTOR, Chooser, LayerInput, Selection, Selector, attend
from trainyard.train.latent.dsa.indexer import LightningIndexer
from trainyard.train.model.head import evaluating

LEAST_ROOM = 64
"""Tokens that a new room has free at least."""


class RoomyIndexedLayer(DynamicIndexedLayer):
    """`DynamicIndexedLayer` without copies. With gradients it concatenates: writing in place would change what a
    backward pass reads."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.rooms: dict[str, torch.Tensor] = {}

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append keys and values (B, H, T, C); returns all of them."""
        if torch.is_grad_enabled():
            return super().update(key_states, value_states, *args, **kwargs)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        keys: Any = self.keys
        values: Any = self.values
        self.keys = self._append("keys", keys, key_states, 2)
        self.values = self._append("values", values, value_states, 2)
        return self.keys, self.values

    def update_indexer(self, indexer_key_states: torch.Tensor) -> torch.Tensor:
        """Append index keys (B, T, I); returns all of them."""
        if torch.is_grad_enabled():
            return super().update_indexer(indexer_key_states)
        if not self.is_indexer_initialized:
            self.lazy_initialization_indexer(indexer_key_states)
        stored_keys: Any = self.indexer_keys
        self.indexer_keys = self._append("indexer_keys", stored_keys, indexer_key_states, 1)
        return self.indexer_keys

    def reset(self) -> None:
        super().reset()
        self.rooms = {}

    def _append(self, name: str, stored: torch.Tensor, added: torch.Tensor, dim: int) -> torch.Tensor:
        """Return the cached entries followed by the new ones, as a view of the buffer."""
        before = stored.shape[dim] if stored.numel() else 0
        after = before + added.shape[dim]
        room = self.rooms.get(name)
        if room is None or not fits(room, stored, after, dim):
            room = added.new_empty([*added.shape[:dim], after + max(LEAST_ROOM, after // 4), *added.shape[dim + 1 :]])
            if before:
                room.narrow(dim, 0, before).copy_(stored)
            self.rooms[name] = room
        room.narrow(dim, before, after - before).copy_(added)
        return room.narrow(dim, 0, after)


def fits(room: torch.Tensor, stored: torch.Tensor, length: int, dim: int) -> bool:
    """Return whether a room has what is kept at its beginning and place for the rest. Rows that were selected, repeated
    or
    moved to another device are tensors of their own."""
    is_shared = stored.numel() == 0 or stored.data_ptr() == room.data_ptr()
    alike = stored.numel() == 0 or (stored.dtype == room.dtype and stored.shape[0] == room.shape[0])
    writable = not room.is_inference() or torch.is_inference_mode_enabled()
    return is_shared and alike and writable and length <= room.shape[dim]


KERNEL = "trainyard_dsa"
"""Name under which transformers knows the attention of this folder."""
SELECTION = "trainyard_selection"
"""Attribute of the decoder around the layers."""


@dataclass(frozen=True)
class AttentionLayer:
    """An attention layer of a model that can get a selector."""

    name: str
    """Of the module in the transformers model."""
    num_heads: int
    hidden_size: int


def find_layers(base: Any) -> list[AttentionLayer]:
    """Full-attention layers of a model, found by a pass over one token.

    Raises `InvalidInput` (`E-MODEL-INVALID`) for a model that has none in transformers' attention interface, or only
    such with an indexer of their own.
    """
    names = {module: name for name, module in base.named_modules()}
    size = base.config.get_text_config().hidden_size
    attention_layers: list[AttentionLayer] = []

    def record(module: torch.nn.Module, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        if options.get("sliding_window") is None and not hasattr(module, "indexer"):
            attention_layers.append(AttentionLayer(names[module], query.shape[1], size))
        return attend(module, query, key, value, mask, **options)

    before = use_kernel(base, f"{KERNEL}_probe", record)
    try:
        with evaluating(base):
            base(input_ids=torch.zeros((1, 1), dtype=torch.long, device=base.device), use_cache=False)
    finally:
        base.set_attn_implementation(before)
    if not attention_layers:
        raise InvalidInput(
            f"{type(base).__name__} has no layer for sparse attention.",
            why="It needs full attention that goes through transformers' attention interface, without an indexer.",
            do="Use a base such as a Llama, a Qwen or a GPT-2.",
            code="E-MODEL-INVALID",
        )
    return attention_layers


@dataclass
class Installed:
    """A selection that a transformers model computes with, until `remove`."""

    base: Any
    kernel: str
    """The attention that it had before."""
    handles: list[Any]

    def remove(self) -> None:
        """Let the model attend as it did before."""
        for handle in self.handles:
            handle.remove()
        for module in self.base.modules():
            for name in {SELECTOR, SELECTION} & vars(module).keys():
                delattr(module, name)
        self.base.set_attn_implementation(self.kernel)


def install(base: Any, layers: Sequence[AttentionLayer], choosers: Sequence[Chooser], shared: Selection) -> Installed:
    """Let the layers of a transformers model attend to what their choosers select."""
    decoder = base.base_model
    setattr(decoder, SELECTION, shared)
    shared.fused = bool(base._supports_sdpa)
    handles = [decoder.register_forward_pre_hook(remember_positions, with_kwargs=True)]
    for layer, chooser in zip(layers, choosers, strict=True):
        module = base.get_submodule(layer.name)
        setattr(module, SELECTOR, Selector(chooser, shared))
        handles.append(module.register_forward_pre_hook(remember_input, with_kwargs=True))
    return Installed(base, use_kernel(base, KERNEL, attend), handles)


def use_kernel(base: Any, name: str, kernel: Callable[..., Any]) -> str:
    """Let a model compute its attention by a function; returns the name of the one before."""
    AttentionInterface.register(name, kernel)
    AttentionMaskInterface.register(name, eager_mask)
    before = str(base.config._attn_implementation)
    base.set_attn_implementation(name)
    return before


def remember_positions(decoder: torch.nn.Module, _args: tuple[Any, ...], keywords: JsonObject) -> None:
    """Keep the positions that a model was given for all of its layers."""
    shared: Selection = getattr(decoder, SELECTION)
    shared.positions_BT, shared.fewest_seen = keywords.get("position_ids"), None


def remember_input(module: torch.nn.Module, args: tuple[Any, ...], keywords: JsonObject) -> None:
    """Keep what an attention layer is called with, and let its cache have room for index keys."""
    hidden_BTD = args[0] if args else keywords["hidden_states"]
    caches = [value for value in (*args, *keywords.values()) if isinstance(value, Cache)]
    selector: Selector = getattr(module, SELECTOR)
    selector.layer_input = LayerInput(hidden_BTD, caches[0] if caches else None)
    if caches and isinstance(selector.chooser, LightningIndexer):
        number: Any = module.layer_idx
        make_room(caches[0], int(number))


def make_room(cache: Cache, layer: int) -> None:
    """Replace an empty layer of a cache by one that has room for index keys too."""
    while len(cache.layers) <= layer:
        cache.layers.append(DynamicLayer())
    cache_layer = cache.layers[layer]
    if type(cache_layer) is DynamicLayer and not cache_layer.is_initialized:
        cache.layers[layer] = RoomyIndexedLayer()
