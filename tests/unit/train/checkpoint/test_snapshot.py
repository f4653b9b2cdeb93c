"""A saved state: everything that decides the next number, verified before it is taken, or nothing of it."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tests.selection import choose_by_default
from tests.unit.train.session.engines import (
    accumulate,
    copy_gradients,
    copy_weights,
    make_batch,
    make_config,
    make_session,
    same,
    train_step,
)
from trainyard.errors import Conflict, Corrupt, InvalidInput, NotFound, TrainyardError
from trainyard.spec.axes.devices import Precision
from trainyard.spec.axes.optimizers import Optimizer
from trainyard.spec.axes.stages import Stage
from trainyard.stores.files import DISK
from trainyard.stores.whole import describe_files, seal
from trainyard.train.checkpoint.state import (
    PARTS,
    Snapshot,
    flatten,
    random_state,
    rebuild,
    require_same,
    restore_random_state,
)
from trainyard.train.session.session import Session

# The form on the disk

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.uint8, torch.bool]
TENSORS = st.builds(
    lambda shape, dtype: torch.arange(math.prod(shape)).reshape(shape).to(dtype),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(DTYPES),
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6)
NAMES = st.text(max_size=3) | st.sampled_from(["a", "b", "a/b", "__tensor__", "__tuple__", "__items__"])
KEYS = NAMES | st.integers() | st.none() | st.tuples(st.integers(), st.text(max_size=2))
VALUES = st.recursive(
    PLAIN | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(NAMES, inner, max_size=3)
        | st.dictionaries(KEYS, inner, max_size=3)
    ),
    max_leaves=12,
)


def alike(value: Any, other: Any) -> bool:
    """Equal in value and kind, all the way down; a dictionary also in its order."""
    if isinstance(value, torch.Tensor):
        return isinstance(other, torch.Tensor) and value.dtype == other.dtype and torch.equal(value, other)
    if type(value) is not type(other):
        return False
    if isinstance(value, dict):
        return alike(list(value.items()), list(other.items()))
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(alike, value, other))
    return bool(value == other)


@given(VALUES)
@example({"a/b": torch.zeros(1), "a": {"b": torch.ones(1)}})
@settings(max_examples=200, deadline=None)
def test_any_state_comes_back_from_its_flat_form(value: Any) -> None:
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(flatten(value, "state", tensors))
    assert alike(rebuild(json.loads(text), tensors), value)


def test_numbers_that_json_has_no_words_for_come_back() -> None:
    text = json.dumps(flatten([math.inf, -math.inf, math.nan, np.float32(0.5), np.int64(3), np.bool_(True)], "x", {}))
    infinite, least, nan, *rest = json.loads(text)
    assert (infinite, least, rest) == (math.inf, -math.inf, [0.5, 3, True])
    assert math.isnan(nan)


def test_what_a_checkpoint_does_not_hold_is_refused_when_it_is_written() -> None:
    with pytest.raises(TypeError, match="state/optimizer/seen is a set, which a checkpoint cannot store"):
        flatten({"optimizer": {"seen": {1, 2}}}, "state", {})


def test_every_generator_is_put_back() -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.normal()), float(torch.rand(()))]

    np.random.normal()  # leaves a second normal number in numpy's state
    tensors: dict[str, torch.Tensor] = {}
    values = json.dumps(flatten(random_state(), "random", tensors))
    expected = draw()
    draw()
    restore_random_state(rebuild(json.loads(values), {name: value.clone() for name, value in tensors.items()}))
    assert draw() == expected


# Going on


def went_on(session: Session, batches: int) -> tuple[Any, ...]:
    """What a session gives from inside its accumulation to the end of two further steps."""
    losses = [accumulate(session, make_batch()) for _ in range(batches)]
    session.step()
    session.zero_grad()
    losses += train_step(session, [make_batch()] * 3) + train_step(session, [make_batch()] * 3)
    tensors, values = session.snapshot().flat()
    return losses, json.dumps(values["parts"]), {name: value.clone() for name, value in tensors.items()}


def equal(state: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return bool(state[:2] == other[:2]) and alike(state[2], other[2])


OPTIMIZERS = [
    Optimizer.ADAMW,
    Optimizer.SGD,
    Optimizer.ADAMW_8BIT,
    Optimizer.ADAFACTOR,
    Optimizer.MUON,
    Optimizer.SCHEDULE_FREE_ADAMW,
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("inside", choose_by_default([1], [0, 1, 2]))
def test_a_loaded_state_goes_on_to_the_same_bits(optimizer: Optimizer, inside: int, tmp_path: Path) -> None:
    """From before, inside and late in an accumulation of three, with dropout and a schedule."""
    schedule = "constant" if optimizer is Optimizer.SCHEDULE_FREE_ADAMW else "cosine"
    config = make_config(optimizer=optimizer, schedule=schedule)
    session = make_session(tmp_path, config)
    for _ in range(2):
        train_step(session, [make_batch()] * 3)
    for _ in range(inside):
        accumulate(session, make_batch())
    session.save("here")
    expected = went_on(session, 3 - inside)
    other = make_session(tmp_path, config, seed=5)
    other.load("here")
    assert equal(went_on(other, 3 - inside), expected)


@pytest.mark.parametrize("dropped", PARTS)
def test_without_any_one_part_the_bits_are_others(dropped: str, tmp_path: Path) -> None:
    def begin(seed: int) -> Session:
        return make_session(tmp_path, make_config(warmup_ratio=0.5), precision=Precision.FP16, seed=seed)

    session = begin(0)
    session.backward(session.forward(make_batch()).forward_id, scale=1e38)  # an overflow, so that the scale has moved
    session.step()
    session.zero_grad()
    train_step(session, [make_batch()])
    accumulate(session, make_batch())
    session.save("here")
    expected = went_on(session, 1)
    whole = begin(5)
    whole.load("here")
    complete = {name: part for name, part in read_saved_parts(tmp_path / "saved" / "here").items() if name != dropped}
    assert equal(went_on(whole, 1), expected)
    other = begin(5)
    other.restore(Snapshot(complete, {}))
    assert not equal(went_on(other, 1), expected)


def read_saved_parts(folder: Path) -> dict[str, Any]:
    values = json.loads((folder / "state.json").read_text())
    return dict(rebuild(values["parts"], load_file(folder / "state.safetensors")))


def test_loading_drops_what_was_pending_and_keeps_what_was_stale(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    session.save("fresh")
    accumulate(session, make_batch())
    session.step()
    session.save("stale")
    session.zero_grad()
    pending = session.forward(make_batch())
    session.load("fresh")
    with pytest.raises(Conflict, match="E-STEP"):
        session.backward(pending.forward_id)
    assert not copy_gradients(session)
    assert session.global_step == 0
    session.load("stale")
    with pytest.raises(Conflict, match="E-STEP"):
        session.backward(session.forward(make_batch()).forward_id)
    assert session.global_step == 1


# Weights alone


def test_weights_alone_are_saved_and_taken(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    accumulate(session, make_batch())
    saved = session.save("small", kind="weights")
    assert saved["kind"] == "weights"
    assert read_saved_parts(Path(saved["path"])).keys() == {"weights"}
    other = make_session(tmp_path, make_config(learning_rate=5e-4), seed=5)  # another config may take weights
    train_step(other, [make_batch()])
    state = other.engine.optimizer.state_dict()["state"][0]["exp_avg"].clone()
    before = other.generators.states.torch
    other.load("small", optimizer=False)
    assert same(copy_weights(other), copy_weights(session))
    assert torch.equal(before, other.generators.states.torch)
    assert torch.equal(other.engine.optimizer.state_dict()["state"][0]["exp_avg"], state)
    assert other.global_step == 1


def test_more_than_weights_is_not_taken_from_weights_alone(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    session.save("small", kind="weights")
    with pytest.raises(InvalidInput, match=r"E-STEP: The saved state 'small' contains only weights.*optimizer: false"):
        session.load("small")


# Refusals of save


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "a b", "x" * 129])
def test_a_name_that_is_no_plain_file_name_is_refused(name: str, tmp_path: Path) -> None:
    session = make_session(tmp_path)
    with pytest.raises(InvalidInput, match=r"E-NAME: .*is not a valid name for a saved state"):
        session.save(name)
    with pytest.raises(NotFound, match="E-NOT-FOUND"):
        session.load(name)
    assert not list(tmp_path.rglob("*state*"))


def test_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"E-STEP: There is no kind 'half' of saved state. Do: Use full or weights"):
        make_session(tmp_path).save("here", kind="half")


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    first = session.save("here")
    train_step(session, [make_batch()])
    with pytest.raises(Conflict, match="E-FILE-EXISTS: A state named 'here' is there already"):
        session.save("here")
    assert session.load("here")["sha256"] == first["sha256"]
    assert session.save("there")["sha256"] == first["sha256"]  # the same state has the same digest
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["here", "there"]


# Refusals of load, each of which leaves the session as it was


@pytest.fixture
def busy(tmp_path: Path) -> Session:
    """A session with a saved state `here`, in the middle of an accumulation."""
    session = make_session(tmp_path)
    train_step(session, [make_batch()])
    session.save("here")
    accumulate(session, make_batch())
    return session


def refuse(session: Session, error: type[TrainyardError], message: str, *, optimizer: bool = True) -> TrainyardError:
    """Loading `here` fails with a message, and neither weights nor gradients nor a pending graph are touched."""
    pending = session.forward(make_batch())
    before = [*copy_weights(session), *copy_gradients(session), session.generators.states.torch]
    with pytest.raises(error, match=message) as raised:
        session.load("here", optimizer=optimizer)
    assert same(before, [*copy_weights(session), *copy_gradients(session), session.generators.states.torch])
    session.backward(pending.forward_id)
    return raised.value


def change(folder: Path, **identity: Any) -> None:
    """Rewrite a saved state as another program would have written it."""
    values = json.loads((folder / "state.json").read_text())
    values["identity"] |= identity
    (folder / "state.json").write_text(json.dumps(values))
    (folder / "manifest.json").unlink()
    seal(DISK, folder, describe_files(folder))


def test_a_state_that_is_not_there_is_told_with_those_that_are(busy: Session) -> None:
    with pytest.raises(NotFound, match=r"E-NOT-FOUND: There is no saved state 'gone'\. Why: There are: here\."):
        busy.load("gone")


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "manifest.json"])
def test_a_damaged_state_is_refused(name: str, busy: Session, tmp_path: Path) -> None:
    path = tmp_path / "saved" / "here" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    refuse(busy, Corrupt, "E-CHECKPOINT-CORRUPT: The saved state 'here' is damaged: ")
    path.unlink()
    refuse(busy, Corrupt, "E-CHECKPOINT-CORRUPT", optimizer=False)


def test_a_state_that_was_never_one_is_refused(busy: Session, tmp_path: Path) -> None:
    folder = tmp_path / "saved" / "here"
    (folder / "state.safetensors").write_bytes(b"not tensors")
    (folder / "manifest.json").unlink()
    seal(DISK, folder, describe_files(folder))
    refuse(busy, Corrupt, "E-CHECKPOINT-CORRUPT: The state in here cannot be read")


def test_another_config_is_refused(busy: Session, tmp_path: Path) -> None:
    other = make_session(tmp_path, make_config(learning_rate=5e-4))
    refuse(other, Corrupt, "E-CHECKPOINT-MISMATCH: The checkpoint was made with another config")
    half = make_session(tmp_path, precision=Precision.BF16)
    refuse(half, Corrupt, "E-CHECKPOINT-MISMATCH: The checkpoint was made with another precision.*has fp32.*has bf16")


def test_other_library_versions_are_refused(busy: Session, tmp_path: Path) -> None:
    change(tmp_path / "saved" / "here", versions={"torch": "1.0", "transformers": "3.0"})
    error = refuse(busy, Corrupt, "E-CHECKPOINT-MISMATCH: The checkpoint was made with other library versions")
    assert "'torch': '1.0'" in error.why
    assert torch.__version__ in error.why


def test_another_model_is_refused_even_for_weights_alone(busy: Session, tmp_path: Path) -> None:
    other = make_session(tmp_path, make_config(Stage.REWARD))
    before = copy_weights(other)
    with pytest.raises(
        Corrupt, match="E-CHECKPOINT-MISMATCH: The checkpoint belongs to another model or method: parameter/"
    ):
        other.load("here", optimizer=False)
    assert same(before, copy_weights(other))


def test_another_schedule_is_refused(busy: Session, tmp_path: Path) -> None:
    other = make_session(tmp_path, total_steps=7)
    refuse(other, Corrupt, "E-CHECKPOINT-MISMATCH: The checkpoint's learning rate has total_steps 6, this run's has 7")


def test_another_number_of_devices_is_refused(busy: Session, tmp_path: Path) -> None:
    folder = tmp_path / "saved" / "here"
    values = json.loads((folder / "state.json").read_text())
    tensors = load_file(folder / "state.safetensors")
    states = [{"__tensor__": "state/random/torch"}] * (torch.cuda.device_count() + 1)
    values["parts"]["random"]["cuda"] = states
    (folder / "state.json").write_text(json.dumps(values))
    save_file(tensors, folder / "state.safetensors")
    change(folder)
    refuse(busy, Corrupt, "E-CHECKPOINT-MISMATCH: The checkpoint contains the random .* .* CUDA devices, this machine")


def test_what_changes_bits_but_not_meaning_is_told() -> None:
    here = {"config": "a", "precision": "fp32", "versions": {}, "threads": 1, "deterministic": True, "tf32": False}
    here |= {"cublas": "", "python": "3.11.1"}
    assert require_same(Snapshot({}, here), here) == []
    assert require_same(Snapshot({}, {**here, "threads": 4}), here) == ["threads 4 -> 1"]
