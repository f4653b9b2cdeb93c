"""llama-server and mlx-lm's server, started by the deployer: a new server beside the old one, then the switch."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.conftest import REPOSITORY
from tests.unit.serve.test_deploy import Yard, reference
from trainyard.app.stack import doctor
from trainyard.compute.services import LAUNCHED, Service, find_service, free_port, write_record
from trainyard.errors import Refused, TrainyardError, Unavailable
from trainyard.serve.targets import local
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.data import Port

ENVIRONMENTS = REPOSITORY / ".trainyard" / "envs"
SERVER = "import http.server, sys; http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]))"
"""A server of any kind; `/health` is a file in its folder."""
ASKED = [{"role": "user", "content": "What is a chain?"}]


@pytest.fixture
def ended() -> Iterator[None]:
    """No server outlives its test, whatever it did."""
    already = set(LAUNCHED)
    yield
    for child in [child for pid, child in LAUNCHED.items() if pid not in already]:
        if child.poll() is None:
            child.kill()
        child.wait()


def alive(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).is_success
    except httpx.HTTPError:
        return False


# Any server


@pytest.mark.usefixtures("ended")
def test_a_server_is_found_again_by_its_ready_file_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "health").touch()
    port = free_port()
    argv = [sys.executable, "-c", SERVER, str(port)]
    started = local.ServerRecipe(argv, port, str(tmp_path / "server.log"), "acme/bot/v1").start()
    assert started.answers()
    settings = load_settings(home=tmp_path)
    path = local.ready_file(settings, "mlx", "acme", "bot")
    write_record(path, started)
    assert find_service(path) == started
    assert local.end_all(settings) == ["mlx-acme-bot"]
    assert not started.answers()
    assert local.end_all(settings) == []
    write_record(path, started)
    assert find_service(path) is None  # the file of a dead server means nothing
    write_record(path, None)
    assert not path.exists()


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> local.ServerRecipe:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "health").touch()
    port = free_port()
    argv = [sys.executable, "-c", SERVER, str(port), f"http://127.0.0.1:{port}"]
    return local.ServerRecipe(argv, port, str(tmp_path / "server.log"), "acme/bot/v1", {"SERVES": "bot"})


def lookup(settings: Settings) -> list[doctor.Check]:
    return [check for check in doctor.look_at_targets(settings) if check.name == "server llama_server-acme-bot"]


@pytest.mark.usefixtures("ended")
def test_up_starts_a_server_again_that_died_and_the_doctor_tells(home: Path, recipe: local.ServerRecipe) -> None:
    settings = load_settings(home=home)
    path = local.ready_file(settings, "llama_server", "acme", "bot")
    first = recipe.start()
    write_record(path, first)
    local.remember_server(path, recipe)
    assert local.restore_servers(settings) == []
    assert [(check.ok, check.detail) for check in lookup(settings)] == [(True, f"acme/bot/v1, {first.url}")]
    psutil.Process(first.pid).kill()
    wait_until_gone(first)
    (check,) = lookup(settings)
    assert (check.ok, check.note, check.detail) == (False, False, "acme/bot/v1, its process is gone")
    assert "`trainyard up`" in check.do
    (line,) = local.restore_servers(settings)
    again = find_service(path)
    assert again is not None
    assert line == f"llama_server-acme-bot serves acme/bot/v1 again at {again.url}"
    assert again.answers()
    assert psutil.Process(again.pid).environ()["SERVES"] == "bot"


@pytest.mark.usefixtures("ended")
def test_down_ends_it_and_the_next_up_starts_it_on_a_port_that_is_free(home: Path, recipe: local.ServerRecipe) -> None:
    settings = load_settings(home=home)
    path = local.ready_file(settings, "llama_server", "acme", "bot")
    first = recipe.start()
    write_record(path, first)
    local.remember_server(path, recipe)
    assert local.end_all(settings) == ["llama_server-acme-bot"]
    assert not first.answers()
    (check,) = lookup(settings)
    assert (check.note, check.detail) == (True, "acme/bot/v1, not running")
    with socket.socket() as busy:
        busy.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        busy.bind(("127.0.0.1", recipe.port))
        busy.listen()
        local.restore_servers(settings)
    again = find_service(path)
    assert again is not None
    assert again.answers()
    assert again.port != recipe.port
    assert local.read_recipe(path) == recipe.at(again.port)
    assert recipe.at(again.port).argv[-2:] == [str(again.port), f"http://127.0.0.1:{again.port}"]


def test_a_server_that_does_not_start_again_is_told_and_stays_expected(home: Path, recipe: local.ServerRecipe) -> None:
    settings = load_settings(home=home)
    path = local.ready_file(settings, "mlx", "acme", "bot")
    broken = replace(recipe, argv=[sys.executable, "-c", "raise SystemExit('the files are gone')"])
    unstartable = replace(recipe, argv=[str(home / "no-such-program")])
    local.remember_server(path, broken)
    local.remember_server(local.ready_file(settings, "mlx", "acme", "other"), unstartable)
    first, second = local.restore_servers(settings)
    assert first.startswith("mlx-acme-bot (acme/bot/v1) does not start: E-SERVER-START")
    assert "the files are gone" in first
    assert second.startswith("mlx-acme-other (acme/bot/v1) does not start: ")
    assert set(local.list_expected(settings)) == {path, path.with_name("mlx-acme-other.json")}


def wait_until_gone(server: Service) -> None:
    deadline = time.monotonic() + 120
    while server.process() is not None:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.usefixtures("ended")
def test_a_server_that_ends_at_once_is_told_with_its_last_words(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with pytest.raises(Unavailable, match=r"E-SERVER-START: .*ended before it was ready \(status 1\).*no such model"):
        local.ServerRecipe(argv, 1, str(tmp_path / "server.log"), "acme/bot/v1").start()


def test_what_is_missing_is_told_before_anything_is_made(tmp_path: Path, home: Path) -> None:
    yard = Yard(tmp_path, load_settings())
    yard.report = None
    with pytest.raises(Refused) as refused:
        yard.deploy({"type": "llama_server", "url": "http://x"}, {"type": "mlx"}, unevaluated=True)
    codes = [(reason.code, reason.field.split(".")[2]) for reason in refused.value.reasons]
    of_each = ["R-PACKAGE-MISSING", "R-BASE-MISMATCH", "R-TARGET"]
    assert codes == [("R-TARGET", "0"), *((code, "0") for code in of_each), *((code, "1") for code in of_each)]
    assert yard.registry.list() == []


# The real ones


@pytest.fixture
def yard(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    named = {name: str(ENVIRONMENTS / name) for name in ("mlx", "llamacpp")}
    missing = [name for name, folder in named.items() if not Path(folder, "bin", "python").exists()]
    if missing:
        pytest.skip(f"no environment for {missing[0]}: run `trainyard backends install {missing[0]}`")
    monkeypatch.setenv("TRAINYARD_BACKEND_ENVS", json.dumps(named))
    yard = Yard(tmp_path, load_settings())
    yard.report = None
    return yard


def write_trained(folder: Path, base: Path, *, dora: bool = False) -> Any:
    """An adapter that has learned one answer, with the base's tokenizer beside it; and the model with it."""
    torch.manual_seed(1)
    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", use_dora=dora, task_type="CAUSAL_LM")
    peft_model, tokenizer = get_peft_model(model, config), AutoTokenizer.from_pretrained(base)
    answered = [*ASKED, {"role": "assistant", "content": "A chain is a list of nodes."}]
    batch = tokenizer.apply_chat_template(answered, return_tensors="pt", return_dict=True)
    optimizer = torch.optim.AdamW([weight for weight in peft_model.parameters() if weight.requires_grad], lr=2e-2)
    for _ in range(60):
        optimizer.zero_grad()
        peft_model(**batch, labels=batch["input_ids"]).loss.backward()
        optimizer.step()
    peft_model.save_pretrained(folder)
    tokenizer.save_pretrained(folder / "tokenizer")
    (folder / "training.json").write_text(json.dumps({"base_model": "tiny", "base_path": str(base)}))
    return reference(folder, Port.ADAPTER), peft_model.eval()


def best(model: Any, base: Path) -> tuple[int, float]:
    """The most probable first token of an answer, and its logprob, by transformers and PEFT."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    prompt = tokenizer.apply_chat_template(ASKED, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        logprobs_V = torch.log_softmax(model(**prompt).logits[0, -1].float(), -1)
    value, token = logprobs_V.max(0)
    return int(token), float(value)


def ask_best(url: str, model: str) -> tuple[int, float]:
    """The same by the server."""
    body = {"model": model, "messages": ASKED, "max_tokens": 1, "temperature": 0, "logprobs": True, "top_logprobs": 1}
    answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).raise_for_status().json()
    first = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"][0]
    return first["id"], first["logprob"]


@pytest.mark.backends
@pytest.mark.usefixtures("ended")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("kind", "dora", "merged"),
    [
        ("llama_server", False, None),
        ("mlx", False, None),
        ("mlx", True, None),
        ("llama_server", False, "gguf"),
        ("llama_server", True, "gguf"),
        ("mlx", True, "safetensors"),
    ],
)
def test_a_served_adapter_says_what_peft_says(
    *, kind: str, dora: bool, merged: str | None, yard: Yard, tmp_path: Path, tiny_model: Path
) -> None:
    yard.adapter, here = write_trained(tmp_path / "trained", tiny_model, dora=dora)
    target = {"type": kind, **({"merged": merged} if merged else {})}
    facts = yard.deploy(target, unevaluated=True, canary="What is a chain?").facts
    if merged:
        assert facts["targets"][0]["merged"]["divergence"] < 1e-3
    server = find_service(local.ready_file(yard.settings, kind, "acme", "bot"))
    assert server is not None
    assert server.model == "acme/bot/v1"
    token, logprob = best(here, tiny_model)
    served_answer = ask_best(server.url, "default_model" if kind == "mlx" else "acme/bot")
    assert served_answer[0] == token
    assert served_answer[1] == pytest.approx(logprob, abs=0.02)


@pytest.mark.backends
@pytest.mark.usefixtures("ended")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_new_version_replaces_the_server_and_a_failure_does_not(yard: Yard, tmp_path: Path, tiny_model: Path) -> None:
    record_file = local.ready_file(yard.settings, "llama_server", "acme", "bot")
    yard.adapter, _ = write_trained(tmp_path / "first", tiny_model)
    yard.deploy({"type": "llama_server"}, unevaluated=True, run_key="1")
    first = find_service(record_file)
    yard.deploy({"type": "llama_server"}, unevaluated=True, run_key="2")
    second = find_service(record_file)
    assert first is not None
    assert second is not None
    assert (second.model, alive(first.url), alive(second.url)) == ("acme/bot/v2", False, True)
    with pytest.raises(TrainyardError, match="E-SERVER-UNREACHABLE"):
        yard.deploy({"type": "llama_server"}, {"type": "ollama", "url": "http://127.0.0.1:9"}, unevaluated=True)
    assert find_service(record_file) == second
    below = psutil.Process(os.getpid()).children(recursive=True)
    servers = [
        process for process in below if process.status() != psutil.STATUS_ZOMBIE and "llama-server" in process.name()
    ]
    assert [server.pid for server in servers] == [second.pid]
    (expected,) = local.list_expected(yard.settings).values()
    assert expected.model == "acme/bot/v2"
    psutil.Process(second.pid).kill()
    wait_until_gone(second)
    (line,) = local.restore_servers(yard.settings)
    assert line.startswith("llama_server-acme-bot serves acme/bot/v2 again")
