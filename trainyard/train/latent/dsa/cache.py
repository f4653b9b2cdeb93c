"""A layer of a cache with keys, values and index keys in room that is larger than they are.

transformers' own layer concatenates: each token that is read copies the keys and values of all tokens before it, which
is more memory traffic than sparse attention itself. Here a token is written behind the others. The room grows by a
quarter, so that a token is copied four times on average however long an answer becomes.

Shapes: B rows, H heads, S tokens, R room, C dimensions of a head, I dimensions of an index key.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import DynamicIndexedLayer

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
        """Return what is kept with what is added behind it, as a view of the room."""
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
