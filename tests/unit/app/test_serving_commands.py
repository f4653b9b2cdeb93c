"""`trainyard serve --role model` and `trainyard chat` as a user runs them: real models, real processes, a pipe."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from trainyard.app.chat import RESET, ChatOutput, ChatTurn, ask, chat
from trainyard.app.context import Caller, Context
from trainyard.app.stack.stack import start_embedded
from trainyard.compute.services import EMBEDDED, Service, record_path, write_record
from trainyard.errors import NotFound, TrainyardError
from trainyard.operations.adapters import AskInput, EarlierTurn
from trainyard.operations.serving import ChatInput, ServeInput, chat_text, side_by_side
from trainyard.serve import embedded
from trainyard.settings import Settings, load_settings
from trainyard.stores.adapters import AdapterRegistry
from trainyard.stores.models import chat_template_sha256, resolve_model
from trainyard.stores.processes import process_start
from trainyard.surfaces.serve import serve
from trainyard.surfaces.streams import ServerEvent, follow_answers

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("model-server")]

START_S = 600.0
ASK: dict[str, Any] = {"messages": [{"role": "user", "content": "What is a chain?"}], "max_tokens": 6, "temperature": 0}


@dataclass
class Running:
    settings: Settings
    tiny: str
    client: httpx.Client
    record: Service
    log: Path
    """All that the command has printed."""

    def logprobs(self, model: str) -> list[float]:
        answer = self.client.post("/v1/chat/completions", json={"model": model, "logprobs": True, **ASK})
        assert answer.status_code == 200, answer.text
        return [token["logprob"] for token in answer.json()["choices"][0]["logprobs"]["content"]]

    def context(self, messages: list[str] | None = None, parts: list[Any] | None = None) -> Context:
        ignored: list[Any] = []
        return Context(
            self.settings,
            say=(messages if messages is not None else ignored).append,
            on_part=(parts if parts is not None else ignored).append,
        )


def register(here: Settings, folder: Path, role: str, base: str, facts: dict[str, Any] | None = None) -> None:
    """Register the next version of a role, trained on `base`: a LoRA adapter of random weights. The first is live."""
    source, registry = resolve_model(base, here), AdapterRegistry(here.adapters)
    assert source.path is not None
    shape = json.loads((source.path / "config.json").read_text())
    random, width = np.random.default_rng(registry.highest("default", role)), shape["hidden_size"]
    weights = {}
    for number in range(shape["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{number}.self_attn.q_proj.lora_"
        weights[f"{name}A.weight"] = random.normal(size=(2, width)).astype(np.float32)
        weights[f"{name}B.weight"] = random.normal(size=(width, 2)).astype(np.float32)
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2, "lora_alpha": 64, "target_modules": ["q_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(source.path)}))
    origin = {"base_model": base, "base_path": str(source.path), "base_sha256": source.sha256}
    template = {"chat_template_sha256": chat_template_sha256(source.path)}
    (folder / "training.json").write_text(json.dumps({**origin, **template}))
    version = registry.register("default", role, folder, facts=facts)
    if version.version == 1:
        registry.promote(version.name)


def command(here: Settings, *arguments: str) -> dict[str, Any]:
    """How a `trainyard` command is started on a home."""
    environment = {**os.environ, "TRAINYARD_HOME": str(here.home), "OMP_WAIT_POLICY": "passive"}
    return {"args": [sys.executable, "-m", "trainyard", *arguments], "env": environment, "cwd": here.home}


@pytest.fixture(scope="module")
def running(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """`trainyard serve` with two bases and a live adapter of each; its home calls it the embedded server."""
    here, work = load_settings(home=tmp_path_factory.mktemp("home")), tmp_path_factory.mktemp("work")
    tiny = str(tiny_model)
    for role, base in (("bot", "starter"), ("twin", tiny)):
        register(here, work / role, role, base)
    arguments = ["serve", "--role", "model", "--model", "starter", "--model", tiny, "--model", "starter"]
    arguments += ["--adapters", "bot", "--adapters", "default/twin", "--threads", "1"]
    log = work / "log"
    with log.open("wb") as stream:
        process = subprocess.Popen(**command(here, *arguments), stdout=stream, stderr=stream)
    try:
        deadline = time.monotonic() + START_S
        while not (match := re.search(r"(http://127\.0\.0\.1:\d+)/v1", log.read_text())):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        record = Service(process.pid, process_start(process.pid), match[1])
        write_record(record_path(here, EMBEDDED), record)
        with httpx.Client(base_url=match[1], timeout=START_S, trust_env=False) as client:
            yield Running(here, tiny, client, record, log)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130, log.read_text()


def test_only_what_is_served_is_printed(running: Running) -> None:
    loading, answering = running.log.read_text().splitlines()
    assert loading == f"loading starter, {running.tiny}, default/bot/v1, default/twin/v1"
    assert answering.startswith(f"starter, {running.tiny}, default/bot, default/twin at http://127.0.0.1:")


def test_each_request_goes_to_the_base_of_its_model(running: Running) -> None:
    listed = running.client.get("/v1/models").json()["data"]
    assert [(model["id"], model["parent"]) for model in listed] == [
        ("starter", None),
        (running.tiny, None),
        ("default/bot/v1", "starter"),
        ("default/twin/v1", running.tiny),
        ("default/bot", "starter"),
        ("default/twin", running.tiny),
    ]
    assert [model["max_model_len"] for model in listed] == [4096, 2048, 4096, 2048, 4096, 2048]
    answers = {name: running.logprobs(name) for name in ("starter", running.tiny, "default/bot", "default/twin")}
    assert len({tuple(logprobs) for logprobs in answers.values()}) == 4
    assert running.logprobs("default/bot/v1") == answers["default/bot"]
    assert running.logprobs("starter") == answers["starter"]
    unknown = running.client.post("/v1/chat/completions", json={"model": "gpt-4", **ASK})
    assert unknown.status_code == 404
    assert f"Served are: `starter`, `{running.tiny}`, `default/bot/v1`" in unknown.json()["error"]["message"]


def test_an_adapter_is_loaded_on_the_base_that_it_was_trained_on(running: Running) -> None:
    registry = AdapterRegistry(running.settings.adapters)
    folders = {role: registry.path(registry.show(f"default/{role}")) for role in ("bot", "twin")}
    load = {"lora_name": "mine", "lora_path": str(folders["twin"])}
    assert running.client.post("/v1/load_lora_adapter", json=load).status_code == 200
    assert running.client.get("/v1/models/mine").json()["parent"] == running.tiny
    assert running.logprobs("mine") == running.logprobs("default/twin")
    moved = {"lora_name": "mine", "lora_path": str(folders["bot"]), "load_inplace": True}
    refused = running.client.post("/v1/load_lora_adapter", json=moved)
    assert (refused.status_code, "belongs to 'starter'" in refused.text) == (400, True)
    assert running.client.post("/v1/unload_lora_adapter", json={"lora_name": "mine"}).status_code == 200
    assert running.client.post("/v1/unload_lora_adapter", json={"lora_name": "mine"}).status_code == 404


def test_chat_asks_both_and_loads_what_is_not_there(running: Running, tmp_path: Path) -> None:
    register(running.settings, tmp_path / "bot", "bot", "starter")
    messages: list[str] = []
    parts: list[ChatTurn] = []
    questions = ("What is a node?", "And a chain?", RESET, "", "What is a node?", "/quit", "Never asked")
    chat_input = ChatInput(adapter="bot/v2", questions=questions, max_tokens=8)
    written: list[dict[str, Any]] = []
    result = chat(chat_input, replace(running.context(messages, parts), on_progress=written.append))
    for node in ("base", "adapter"):
        texts = [event["text"] for event in written if (event["node"], event["event"]) == (node, "answer")]
        assert getattr(result.turns[0], node) in texts
        assert len(texts) > len(result.turns)
    assert [event["event"] for event in written].count("answered") == len(result.turns)
    assert (result.base, result.adapter, result.exit_code) == ("starter", "default/bot/v2", 0)
    assert [turn.question for turn in result.turns] == ["What is a node?", "And a chain?", "What is a node?"]
    assert list(result.turns) == parts
    assert result.turns[0] == result.turns[2]  # nothing is left of the first conversation
    assert all(turn.base and turn.adapter and turn.base != turn.adapter for turn in result.turns)
    assert messages == ["both conversations begin again"]  # no server was started
    assert running.client.get("/v1/models/default/bot/v2").json()["parent"] == "starter"
    other = chat(ChatInput(adapter="twin", questions=("Hello",), max_tokens=4), running.context())
    assert (other.base, other.adapter) == (running.tiny, "default/twin/v1")


def test_a_caller_without_a_terminal_sends_the_conversation_so_far(running: Running) -> None:
    questions = ("What is a node?", "And a chain?")
    turns = chat(ChatInput(adapter="bot", questions=questions, max_tokens=8), running.context()).turns
    first = ask(AskInput(adapter="bot", question=questions[0], max_tokens=8), running.context())
    assert (first.base, first.adapter) == (turns[0].base, turns[0].adapter)
    assert (first.base_model, first.adapter_version) == ("starter", "default/bot/v1")
    earlier = EarlierTurn(question=questions[0], base=first.base or "", adapter=first.adapter or "")
    second = ask(AskInput(adapter="bot", question=questions[1], turns=(earlier,), max_tokens=8), running.context())
    assert (second.base, second.adapter) == (turns[1].base, turns[1].adapter)
    remote_context = replace(running.context(), caller=Caller("default", tenant="default", remote=True))
    assert ask(AskInput(adapter="bot", question=questions[0], max_tokens=8), remote_context) == first
    refused = ask(AskInput(adapter="bot", question="node " * 5000, max_tokens=4), running.context())
    assert (refused.base, refused.adapter) == (None, None)
    assert refused.error is not None


def test_answers_are_streamed_and_end_with_what_ask_returns(running: Running) -> None:
    ask_input = AskInput(adapter="bot", question="What is a node?", max_tokens=8)

    async def whole() -> list[ServerEvent]:
        return [event async for event in follow_answers(ask_input, running.context(), None) if not event.comment]

    start, *answers, end = asyncio.run(whole())
    assert (start.event, end.event) == ("asked", "end")
    answer = ask(ask_input, running.context())
    assert json.loads(end.data) == answer.model_dump()
    for side in ("base", "adapter"):
        texts = [json.loads(event.data)["text"] for event in answers if json.loads(event.data)["side"] == side]
        assert texts == sorted(texts, key=len)
        assert texts[-1] == getattr(answer, side)
    unknown = AskInput(adapter="nobody", question="Why?")
    with pytest.raises(NotFound, match="E-ADAPTER-NOT-FOUND"):
        asyncio.run(anext(follow_answers(unknown, running.context(), None)))


def test_a_caller_who_goes_takes_the_question_along(running: Running) -> None:
    def count_cancelled() -> float:
        return float(
            re.findall(r"^trainyard_server_cancelled_total (\S+)", running.client.get("/metrics").text, re.M)[0]
        )

    async def leave_early(seed: int) -> None:
        question = "Tell me everything about nodes."
        ask_input = AskInput(adapter="bot", question=question, max_tokens=1500, temperature=1, seed=seed)
        events = follow_answers(ask_input, running.context(), None)
        async for event in events:
            if event.event == "answer":
                break
        await events.aclose()

    def leave_and_look(seed: int) -> bool:
        asyncio.run(leave_early(seed))
        deadline = time.monotonic() + 5
        while count_cancelled() == before and time.monotonic() < deadline:
            time.sleep(0.05)
        return count_cancelled() > before

    before = count_cancelled()
    # The tiny model draws its stop token at random: some answers end before the caller goes, each seed's elsewhere.
    assert any(leave_and_look(seed) for seed in range(20))


def test_a_question_that_is_refused_leaves_the_conversation_as_it_was(running: Running) -> None:
    questions = ("What is a node?", "node " * 5000, RESET, "What is a node?")
    result = chat(ChatInput(adapter="bot", questions=questions, max_tokens=4), running.context())
    first, refused, last = result.turns
    assert (refused.base, refused.adapter, result.exit_code) == (None, None, 1)
    assert "maximum context length is 4096" in str(refused.error)
    assert RESET in str(refused.error)
    assert (first.base, first.adapter) == (last.base, last.adapter)


@pytest.mark.slow  # it starts a model server of its own
def test_chat_reads_a_pipe_and_ends_its_server(running: Running, tmp_path: Path) -> None:
    here = load_settings(home=tmp_path / "alone")
    here.home.mkdir()
    register(here, tmp_path / "bot", "bot", "starter")
    arguments = ["chat", "bot", "--json", "--max-tokens", "8"]
    done = subprocess.run(
        **command(here, *arguments), input="What is a node?\n/reset\nAnd a chain?\n", text=True, capture_output=True,
        timeout=START_S, check=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["question"] for line in lines] == ["What is a node?", "And a chain?"]
    expected = chat(
        ChatInput(adapter="bot", questions=("What is a node?",), max_tokens=8, system=""), running.context()
    )
    assert (lines[0]["base"], lines[0]["adapter"]) == (expected.turns[0].base, expected.turns[0].adapter)
    assert "starting a model server with starter" in done.stderr
    assert not list(here.services.glob("chat-*"))


@pytest.mark.slow  # it starts a model server of its own
def test_up_serves_the_listed_bases_with_their_live_adapters(tiny_model: Path, tmp_path: Path) -> None:
    tiny = str(tiny_model)
    here = load_settings(home=tmp_path / "up", serve_models=("starter", "org/model", tiny), threads=1)
    for role, base in (("bot", "starter"), ("twin", tiny)):
        register(here, tmp_path / role, role, base)
    messages: list[str] = []
    try:
        url = start_embedded(here, messages.append)
        assert start_embedded(here, messages.append) == url
        listed = httpx.get(f"{url}/v1/models", trust_env=False).json()["data"]
    finally:
        embedded.stop(here)
    assert messages[1:] == [
        f"starting the embedded model server with starter, {tiny}",
        "default/bot/v1 answers again",
        "default/twin/v1 answers again",
    ]
    parents = {model["id"]: model["parent"] for model in listed}
    assert (parents["default/bot"], parents["default/twin"]) == ("starter", tiny)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"role": "model", "graph": "file:///x"}, "E-PARAMETER: --graph belongs to the role graph, not to model"),
        ({"role": "graph", "model": ("starter",)}, "E-PARAMETER: --model belongs to the role model, not to graph"),
        ({"role": "model", "model": ("nowhere",)}, "E-MODEL-NOT-FOUND"),
        ({"role": "model", "model": ("org/model",)}, "E-MODEL-NOT-FOUND: The model 'org/model' is not on this machine"),
        ({"role": "model", "adapters": ("nobody",)}, "E-ADAPTER-NOT-FOUND: No version of 'default/nobody' is live"),
        (
            {"role": "model", "adapters": ("twin",)},
            r"E-ADAPTER-MISMATCH: default/twin/v1 cannot be served: .*'starter'",
        ),
        ({"role": "model", "host": "0.0.0.0"}, r"E-AUTH: The server does not listen on 0\.0\.0\.0 without a token"),
    ],
)
def test_what_cannot_be_served_is_refused(running: Running, fields: dict[str, Any], code: str) -> None:
    with pytest.raises(TrainyardError, match=code):
        serve(ServeInput(**fields), running.context())


def test_a_taken_port_is_refused_before_a_model_is_read(running: Running) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(TrainyardError, match="E-PORT: Port"):
        serve(ServeInput(role="model", port=listener.getsockname()[1]), running.context())


def test_too_little_memory_is_refused_with_both_numbers(running: Running) -> None:
    context = Context(load_settings(home=running.settings.home, serve_memory_mb=1), say=lambda _text: None)
    numbers = r"The base 'starter' needs 0\.\d+ GiB of memory, and 0\.000977 GiB are left"
    with pytest.raises(TrainyardError, match=f"E-MEMORY-FIT: {numbers}"):
        serve(ServeInput(role="model"), context)


def test_an_empty_list_of_models_is_no_model(running: Running) -> None:
    context = Context(load_settings(home=running.settings.home, serve_models=()), say=lambda _text: None)
    with pytest.raises(TrainyardError, match="E-PARAMETER: No model is named, and serve_models is empty"):
        serve(ServeInput(role="model"), context)


def test_chat_without_a_user_needs_questions(running: Running) -> None:
    with pytest.raises(TrainyardError, match=r"E-PARAMETER: There are no questions\."):
        chat(ChatInput(adapter="bot"), running.context())


def test_answers_are_in_columns_where_there_is_room() -> None:
    columns = side_by_side("[b]one[/b] :smile:", "two " * 30, 80)
    rows = columns.splitlines()
    assert {len(row) for row in rows} == {80}
    assert "[b]one[/b] :smile:" in columns
    assert re.search(r"base .* adapter", rows[1])
    turn = ChatTurn(question="Why?", base="Because.", adapter="So.")
    text = chat_text(ChatOutput(base="starter", adapter="default/bot/v1", turns=(turn,)))
    assert text.endswith("base: Because.\nadapter: So.\n")
