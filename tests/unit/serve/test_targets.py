"""Targets: what each checks, and that vLLM's double refuses what vLLM refuses, in the same words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from trainyard.errors import InvalidInput, TrainyardError, Unavailable
from trainyard.serve.targets.calling import ask_canary, http_client
from trainyard.serve.targets.contract import AdapterCandidate, Canary, TargetDeployment
from trainyard.serve.targets.table import TARGETS
from trainyard.serve.targets.vllm import find_base_card, load_adapter
from trainyard.settings import load_settings
from trainyard.spec.axes.targets import TargetType
from trainyard.spec.nodes import Target
from trainyard.stores.adapters import AdapterRegistry
from trainyard.testing.vllm_server import VllmDouble, vllm_server

CANDIDATE = AdapterCandidate("adapter", "org/base", "/models/base", "b" * 64, "t" * 64, {"r": 8})


def make_adapter(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"w")
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8, **config}))
    return folder


@contextmanager
def site(
    tmp_path: Path, double: VllmDouble, candidate: AdapterCandidate = CANDIDATE, **target: Any
) -> Iterator[TargetDeployment]:
    registry = AdapterRegistry(tmp_path / "adapters")
    version = registry.register("acme", "bot", make_adapter(tmp_path / "trained"))
    target_config = Target.model_validate({"type": "vllm", "url": f"{double.url}/v1", **target})
    with http_client(target_config, target_config.url or "") as client:
        yield TargetDeployment(
            target_config, candidate, registry, http=client, canary=Canary("Hello?"), version=version
        )


def test_every_kind_of_target_has_a_row() -> None:
    assert set(TARGETS) == set(TargetType)


@pytest.mark.parametrize(
    ("served", "declared", "codes"),
    [
        ({"base": "org/base"}, None, []),
        ({"base": "alias", "root": "/models/base"}, None, []),
        ({"base": "other"}, None, ["R-BASE-MISMATCH"]),
        ({"base": "other"}, "org/base", []),
        ({"base": "org/base"}, "other", ["R-BASE-MISMATCH"]),
        ({"base": "other", "card": {"sha256": "b" * 64}}, None, []),
        ({"base": "org/base", "card": {"sha256": "c" * 64}}, None, ["R-BASE-MISMATCH"]),
        ({"base": "org/base", "card": {"chat_template_sha256": "x"}}, None, ["R-TEMPLATE-MISMATCH"]),
        ({"base": "org/base", "card": {"chat_template_sha256": "t" * 64}}, None, []),
    ],
)
def test_the_server_has_to_hold_the_same_base_and_template(
    tmp_path: Path, served: dict[str, Any], declared: str | None, codes: list[str]
) -> None:
    with vllm_server(**served) as double, site(tmp_path, double, base_model=declared) as deployment:
        assert [reason.code for reason in TARGETS[TargetType.VLLM].check(deployment)] == codes


@pytest.mark.parametrize(
    ("config", "limit", "expected"),
    [
        ({"r": 16}, None, []),
        ({"r": 17}, None, ["rank 17"]),
        ({"r": 64}, 64, []),
        ({"r": 8, "rank_pattern": {"q_proj": 32}}, None, ["rank 32"]),
        ({"r": 8, "use_dora": True}, None, ["dora"]),
        ({"r": 8, "modules_to_save": ["lm_head"]}, None, ["lm_head"]),
    ],
)
def test_what_vllm_cannot_serve_is_known_before_it_is_asked(
    tmp_path: Path, config: dict[str, Any], limit: int | None, expected: list[str]
) -> None:
    candidate = AdapterCandidate("adapter", "org/base", "", "", "", config)
    with vllm_server("org/base") as double, site(tmp_path, double, candidate, max_lora_rank=limit) as deployment:
        reasons = TARGETS[TargetType.VLLM].check(deployment)
    assert [reason.code for reason in reasons] == ["R-TARGET"] * len(expected)
    assert all(word in reason.because for word, reason in zip(expected, reasons, strict=True))


def test_the_path_is_mapped_to_what_the_server_sees(tmp_path: Path) -> None:
    shared = tmp_path / "seen-by-server"
    shared.symlink_to(tmp_path / "adapters")
    with vllm_server("org/base") as double:
        prefix = (str(tmp_path / "adapters"), str(shared))
        with site(tmp_path, double, path_prefix=prefix) as deployment:
            assert TARGETS[TargetType.VLLM].check(deployment) == []
            load_adapter(deployment)
            assert double.adapters == {"acme/bot/v1": str(shared / "acme" / "bot" / "v1")}


def test_a_prefix_that_does_not_hold_the_registry_is_refused(tmp_path: Path) -> None:
    with vllm_server("org/base") as double, site(tmp_path, double, path_prefix=("/elsewhere", "/x")) as deployment:
        (reason,) = TARGETS[TargetType.VLLM].check(deployment)
        assert reason.code == "E-ENDPOINT"


def test_a_base_that_the_server_names_by_its_own_path_is_recognised(tmp_path: Path) -> None:
    candidate = AdapterCandidate("adapter", "base", str(tmp_path / "models" / "base"), "", "", {"r": 8})
    prefix = (str(tmp_path), "/srv")
    with (
        vllm_server("served", root="/srv/models/base") as double,
        site(tmp_path, double, candidate, path_prefix=prefix) as deployment,
    ):
        assert TARGETS[TargetType.VLLM].check(deployment) == []


def test_a_version_that_is_loaded_already_is_left_and_a_stranger_of_its_name_refused(tmp_path: Path) -> None:
    with vllm_server("org/base") as double, site(tmp_path, double) as deployment:
        load_adapter(deployment)
        deployment.loaded = False
        load_adapter(deployment)
        assert deployment.loaded is False  # nothing was done, so nothing has to be undone
        double.adapters["acme/bot/v1"] = "/elsewhere"
        with pytest.raises(TrainyardError, match=r"E-CONFLICT: .* already serves acme/bot/v1, from '/elsewhere'"):
            load_adapter(deployment)


def test_a_vllm_without_runtime_loading_says_how_to_start_it(tmp_path: Path) -> None:
    with (
        vllm_server("org/base", runtime_updating=False) as double,
        site(tmp_path, double) as deployment,
        pytest.raises(Unavailable, match=r"R-TARGET: .*VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
    ):
        load_adapter(deployment)


def test_the_servers_own_words_reach_the_user(tmp_path: Path) -> None:
    with (
        vllm_server("org/base", max_lora_rank=4) as double,
        site(tmp_path, double) as deployment,
        pytest.raises(TrainyardError, match=r"status 500\. Why: LoRA rank 8 is greater than max_lora_rank 4\."),
    ):
        load_adapter(deployment)


def test_a_key_is_sent_and_a_missing_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target(type=TargetType.VLLM, endpoint="house")
    with pytest.raises(InvalidInput, match=r"E-ENDPOINT: trainyard\.toml has no endpoint 'house'"):
        http_client(target, "", load_settings())
    with vllm_server("org/base", api_key="secret") as double:
        house = load_settings(endpoints={"house": {"base_url": f"{double.url}/v1", "api_key_env": "TARGET_KEY"}})
        with pytest.raises(InvalidInput, match=r"E-API-KEY: The environment variable TARGET_KEY"):
            http_client(target, "", house)
        monkeypatch.setenv("TARGET_KEY", "secret")
        with site(tmp_path, double, url=None) as deployment:
            with (
                http_client(Target(type=TargetType.VLLM), double.url) as deployment.http,
                pytest.raises(Unavailable, match=r"E-AUTH: .* refused the API key.*is asked without a key"),
            ):
                TARGETS[TargetType.VLLM].check(deployment)
            with http_client(target, "", house) as deployment.http:
                assert TARGETS[TargetType.VLLM].check(deployment) == []


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v1/models", '{"data": 3}'),
        ("/v1/models", '{"data": []}'),
        ("/v1/models", "<html>"),
        ("/v1/models", '{"data": [{"id'),
        ("/v1/chat/completions", '{"choices": []}'),
    ],
)
def test_garbage_is_no_server(tmp_path: Path, path: str, answer: str) -> None:
    step = find_base_card if path == "/v1/models" else ask_canary
    with (
        vllm_server("org/base", broken={path: (200, answer)}) as double,
        site(tmp_path, double) as deployment,
        pytest.raises(Unavailable, match=r"E-SERVER-RESPONSE: .* is not an OpenAI-compatible server"),
    ):
        step(deployment)


def post(double: VllmDouble, path: str, **body: Any) -> tuple[int, str]:
    response = httpx.post(f"{double.url}{path}", json=body)
    if response.headers["content-type"].startswith("text/plain"):
        return response.status_code, response.text
    return response.status_code, response.json()["error"]["message"]


def test_the_double_speaks_vllms_words(tmp_path: Path) -> None:
    good = str(make_adapter(tmp_path / "good"))
    load, unload = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
    with vllm_server("org/base") as double:
        assert post(double, load, lora_name="a", lora_path=good) == (
            200,
            "Success: LoRA adapter 'a' added successfully.",
        )
        status, text = post(double, load, lora_name="a", lora_path=good)
        assert status == 400
        assert text.startswith("The lora adapter 'a' has already been loaded.")
        assert post(double, load, lora_name="a") == (400, "Both 'lora_name' and 'lora_path' must be provided.")
        assert post(double, load, lora_name="b", lora_path="/none") == (
            404,
            "Loading lora b failed: No adapter found for /none",
        )
        assert post(double, unload, lora_name="a") == (200, "Success: LoRA adapter 'a' removed successfully.")
        assert post(double, unload, lora_name="a") == (404, "The lora adapter 'a' cannot be found.")
        assert post(double, "/v1/chat/completions", model="a", messages=[{"role": "user", "content": "x"}]) == (
            404,
            "The model `a` does not exist.",
        )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"use_dora": True}, "vLLM does not yet support DoRA."),
        ({"modules_to_save": ["lm_head"]}, "vLLM only supports modules_to_save being None."),
        ({"r": 17}, "LoRA rank 17 is greater than max_lora_rank 16."),
    ],
)
def test_the_double_refuses_what_vllm_refuses(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    path = make_adapter(tmp_path / "odd", **config)
    with vllm_server("org/base") as double:
        assert post(double, "/v1/load_lora_adapter", lora_name="a", lora_path=str(path)) == (500, message)
        assert double.adapters == {}
