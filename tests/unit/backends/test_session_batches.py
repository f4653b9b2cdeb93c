"""Lists of numbers of a call as tensors: those that PyTorch makes of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainyard.backends.native.sessions.batches import find_bounds, tensor_of_lists


@given(st.data())
def test_lists_of_numbers_are_the_tensors_of_pytorch(data: st.DataObject) -> None:
    numbers = data.draw(st.sampled_from([st.integers(-(2**63), 2**63 - 1), st.floats(width=64), st.booleans()]))
    width = data.draw(st.integers(0, 4))
    values = data.draw(st.lists(st.lists(numbers, min_size=width, max_size=width), max_size=4))
    expected, tensor = torch.tensor(values), tensor_of_lists(values)
    assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape)
    assert torch.equal(tensor.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("values", [[[1, 2.5]], [[True, 2]], 5, [], [[]], [[1, 2], [3.5, 4]]])
def test_mixed_numbers_are_the_tensors_of_pytorch(values: Any) -> None:
    expected, tensor = torch.tensor(values), tensor_of_lists(values)
    assert (tensor.dtype, tensor.tolist()) == (expected.dtype, expected.tolist())


@pytest.mark.parametrize("values", ["ab", [["a"]], [[None]], {"a": 1}, None, [[1], [[2]]], [[2**80]]])
def test_what_has_no_numbers_is_an_error(values: Any) -> None:
    with pytest.raises((ValueError, TypeError, RuntimeError, OverflowError)):
        tensor_of_lists(values)


@given(st.lists(st.lists(st.integers(-100, 400), min_size=3, max_size=3), min_size=1, max_size=4), st.booleans())
def test_the_bounds_of_lists_are_those_of_their_tensor(rows: list[list[int]], has_ignored: bool) -> None:
    ignored = -100 if has_ignored else None
    value = tensor_of_lists(rows)
    unmasked = [number for row in rows for number in row if number != ignored] or [0]
    assert find_bounds(value, rows, ignored) == find_bounds(value, None, ignored) == (min(unmasked), max(unmasked))
