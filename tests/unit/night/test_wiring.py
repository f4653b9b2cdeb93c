"""What a night is wired to: profiles that keep their promise, windows that fit, the markers that everybody sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard.errors import InvalidInput, Refused
from trainyard.night.wiring import choose_window, open_markers, require_schema, to_worker_config
from trainyard.serve.extraction.extraction import MAX_DOCUMENT_CHARS
from trainyard.serve.inference_server.profiles import EmbeddedEngine, LlamaServerEngine, ServerProfile, VllmEngine
from trainyard.settings import Settings
from trainyard.spec.night import Serving, read_night
from trainyard.stores.markers.local import LocalMarkers
from trainyard.stores.markers.remote import ObjectMarkers
from trainyard.stores.objects.addresses import open_store


def test_a_profile_whose_schema_would_not_bind_is_refused() -> None:
    engine = VllmEngine(type="vllm", model="m", reasoning_parser="olmo3")
    with pytest.raises(InvalidInput, match=r"E-PROFILE.*reasoning_parser and no thinking_switch"):
        require_schema(ServerProfile(engine=engine), Serving())
    assert require_schema(ServerProfile(engine=engine), Serving(thinking=True)).engine is engine
    assert require_schema(ServerProfile(engine=engine, thinking_switch="enable_thinking"), Serving()).engine is engine


def test_the_window_is_that_of_the_profile_s_context() -> None:
    small = LlamaServerEngine(type="llama_server", model="m.gguf", context=8_192)
    assert 10_000 < choose_window(ServerProfile(engine=small), Serving()) < 12_000
    vllm = VllmEngine(type="vllm", model="m", max_model_len=8_192)
    assert choose_window(ServerProfile(engine=vllm), Serving()) == choose_window(ServerProfile(engine=small), Serving())
    assert choose_window(ServerProfile(engine=EmbeddedEngine()), Serving()) == MAX_DOCUMENT_CHARS
    with pytest.raises(InvalidInput, match="E-PROFILE"):
        choose_window(ServerProfile(engine=EmbeddedEngine(model="tiny", context=2_048)), Serving())


def test_a_worker_polls_the_store_whatever_the_mode_of_its_config(tmp_path: Path) -> None:
    """The preset of the units is `inline`: a night on that machine trains its own markers."""
    alone = Settings(home=tmp_path)
    inline = read_night({"phase2": {"targets": [{"type": "embedded"}]}})
    assert to_worker_config(inline, alone) is inline
    shared = alone.model_copy(update={"weights_store": f"file://{tmp_path}/store"})
    remote = to_worker_config(inline, shared)
    assert (remote.phase2.mode, remote.phase2.targets) == ("remote", ())
    objects = open_store(str(shared.weights_store))
    assert isinstance(open_markers(remote, shared, objects), ObjectMarkers)
    assert isinstance(open_markers(inline, alone, None), LocalMarkers)


def test_the_targets_of_a_night_are_judged_as_those_of_a_chain() -> None:
    targets = [{"type": "vllm", "url": "http://127.0.0.1:8000"}]
    training = {"method": {"type": "lora", "rank": 64}}
    with pytest.raises(Refused, match=r"R-TARGET phase2\.targets\.0\.max_lora_rank"):
        read_night({"phase2": {"targets": targets, "training": training}})
    assert read_night({"phase2": {"targets": [{**targets[0], "max_lora_rank": 64}], "training": training}})
