"""The embedded server as a real process: OpenAI's shapes, adapters that come and go, limits, and who may ask."""

from __future__ import annotations

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from trainyard.data.generation.generate import generate
from trainyard.data.rows import DocumentRow, SftRow, read_rows, write_rows
from trainyard.serve.client.client import Completer
from trainyard.serve.server import main
from trainyard.spec.axes.data import Port
from trainyard.spec.nodes import AiGeneratorConfig
from trainyard.stores.models import chat_template_sha256, model_sha256

pytestmark = pytest.mark.xdist_group("model-server")

TOKEN = "a-token-for-tests"
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
ASK = {"messages": [{"role": "user", "content": "What is a chain?"}]}


def make_adapters(base: Path, folder: Path) -> None:
    """Two adapters of the base, `one` and `two`, and one of a narrower model, `narrow`."""
    for number, name in enumerate(("one", "two")):
        torch.manual_seed(number)
        model = AutoModelForCausalLM.from_pretrained(base)
        shape: dict[str, Any] = {"r": 4, "lora_alpha": 256, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
        adapted: Any = get_peft_model(model, LoraConfig(**shape, init_lora_weights=False))
        adapted.save_pretrained(folder / name)
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    other = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2))
    narrow: Any = get_peft_model(other, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
    narrow.save_pretrained(folder / "narrow")


@dataclass
class Server:
    client: httpx.Client
    adapters: Path
    model: Path
    port: int

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def chat(self, model: str = "tiny", **more: Any) -> dict[str, Any]:
        answer = self.post("/v1/chat/completions", model=model, **{**ASK, "max_tokens": 12, "seed": 7, **more})
        assert answer.status_code == 200, answer.text
        completion: dict[str, Any] = answer.json()
        return completion

    def text(self, model: str = "tiny", **more: Any) -> str:
        return str(self.chat(model, **more)["choices"][0]["message"]["content"])

    def refusal(self, path: str, **body: Any) -> tuple[int, str, str]:
        answer = self.post(path, **body)
        error = answer.json()["error"]
        assert error["code"] == answer.status_code
        return answer.status_code, error["type"], error["message"]


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the module, behind a token, with two adapters in its adapter root."""
    home = tmp_path_factory.mktemp("served")
    adapters = home / "adapters"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries
        make_adapters(tiny_model, adapters)
    model = home / "tiny"
    shutil.copytree(tiny_model, model)
    # The name that is given is the name that is served, so the model is given relative to its folder.
    command = [sys.executable, "-m", "trainyard.serve.server", "--model", "tiny", "--threads", "1"]
    command += ["--max-tokens", "3000"]
    environment = {**os.environ, "TRAINYARD_HOME": str(home), "TRAINYARD_TOKEN": TOKEN}
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        facts = json.loads(process.stdout.readline() or json.dumps({"log": (home / "log").read_text()}))
        with httpx.Client(
            base_url=facts["url"], headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60, trust_env=False
        ) as client:
            yield Server(client, adapters, model, facts["port"])
    finally:
        process.terminate()
        process.wait(timeout=120)
        process.stdout.close()


def test_health_and_models(server: Server) -> None:
    assert server.client.get("/health").json() == {"status": "ok"}
    listed = server.client.get("/v1/models").json()
    assert listed["object"] == "list"
    assert (listed["data"][0]["id"], listed["data"][0]["parent"]) == ("tiny", None)
    assert listed["data"][0]["root"] == str(server.model)


def test_a_chat_answer_has_openais_shape(server: Server) -> None:
    answer = server.chat(max_tokens=5)
    choice = answer["choices"][0]
    assert (answer["object"], answer["model"], choice["index"]) == ("chat.completion", "tiny", 0)
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] in ("length", "stop")
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert 1 <= usage["completion_tokens"] <= 5


def test_a_seed_gives_the_same_text_also_among_concurrent_requests(server: Server) -> None:
    alone = [server.text(seed=seed) for seed in range(4)]
    assert len(set(alone)) > 1
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda seed: server.text(seed=seed), [0, 1, 2, 3] * 3))
    assert together == alone * 3
    assert server.text(temperature=0, seed=1) == server.text(temperature=0, seed=2)
    assert server.text(top_p=1e-9, seed=5) == server.text(temperature=0)


def test_a_stream_says_the_same_as_the_whole(server: Server) -> None:
    whole = server.chat(max_tokens=20, logprobs=True, top_logprobs=2)["choices"][0]
    body = {
        "model": "tiny", **ASK, "max_tokens": 20, "seed": 7, "stream": True, "logprobs": True, "top_logprobs": 2,
        "stream_options": {"include_usage": True},
    }  # fmt: skip
    with server.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert chunks[-1]["usage"]["completion_tokens"] <= 20
    streamed = [chunk["choices"][0] for chunk in chunks[1:-1]]
    assert "".join(choice["delta"].get("content", "") for choice in streamed) == whole["message"]["content"]
    assert streamed[-1]["finish_reason"] == whole["finish_reason"]
    entries = [entry for choice in streamed if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert entries == whole["logprobs"]["content"]


def test_logprobs_are_the_models_own(server: Server) -> None:
    choice = server.chat(max_tokens=4, temperature=0, logprobs=True, top_logprobs=3)["choices"][0]
    for entry in choice["logprobs"]["content"]:
        assert entry["logprob"] <= 0
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]
        assert len(entry["top_logprobs"]) == 3
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]


def test_text_completion_echo_scores_the_prompt(server: Server) -> None:
    body = {"model": "tiny", "prompt": "The trainer counts", "temperature": 0, "logprobs": 1}
    answer = server.post("/v1/completions", **body, max_tokens=3).json()
    text = answer["choices"][0]["text"]
    scored = server.post("/v1/completions", **body, max_tokens=0, echo=True).json()["choices"][0]
    assert scored["text"] == "The trainer counts"
    assert scored["logprobs"]["token_logprobs"][0] is None
    assert all(value < 0 for value in scored["logprobs"]["token_logprobs"][1:])
    assert "".join(scored["logprobs"]["tokens"]) == "The trainer counts"
    both = server.post("/v1/completions", model="tiny", prompt=["The trainer counts"] * 2, temperature=0, max_tokens=3)
    assert [choice["text"] for choice in both.json()["choices"]] == [text, text]
    ids = server.post("/v1/completions", model="tiny", prompt=[10, 20, 30], temperature=0, max_tokens=1).json()
    assert ids["usage"]["prompt_tokens"] == 3


def test_a_stop_text_ends_the_answer_and_is_not_part_of_it(server: Server) -> None:
    free = server.text(max_tokens=30)
    stop = free[len(free) // 2 : len(free) // 2 + 3]
    stopped = server.chat(max_tokens=30, stop=[stop])["choices"][0]
    assert stopped["message"]["content"] == free[: free.find(stop)]
    assert stopped["finish_reason"] == "stop"


def test_json_schema_is_enforced_on_an_untrained_model(server: Server) -> None:
    schema = {
        "type": "object",
        "properties": {"question": {"type": "string"}, "level": {"enum": ["easy", "hard"]}, "n": {"type": "integer"}},
        "required": ["question", "level", "n"],
        "additionalProperties": False,
    }
    json_format = {"type": "json_schema", "json_schema": {"name": "row", "schema": schema}}
    for seed in range(3):
        choice = server.chat(seed=seed, max_tokens=80, response_format=json_format)["choices"][0]
        jsonschema.validate(json.loads(choice["message"]["content"]), schema)
        assert choice["finish_reason"] == "stop"
    assert isinstance(json.loads(server.text(max_tokens=60, response_format={"type": "json_object"})), dict)
    status, _, message = server.refusal(
        "/v1/chat/completions", model="tiny", **ASK, response_format=json_format, max_tokens=4
    )
    assert (status, "max_tokens is 4" in message) == (400, True)


def test_adapters_load_answer_and_unload_while_it_runs(server: Server) -> None:
    base = server.text()
    name, path = "acme/assistant/v1.0", str(server.adapters / "one")
    loaded = server.post("/v1/load_lora_adapter", lora_name=name, lora_path=path)
    assert (loaded.status_code, loaded.text) == (200, f"Success: LoRA adapter '{name}' added successfully.")
    tuned = server.text(name)
    assert tuned != base
    assert server.text() == base
    second = server.post("/v1/load_lora_adapter", lora_name="two", lora_path=str(server.adapters / "two"))
    assert second.status_code == 200
    assert len({server.text("two"), tuned, base}) == 3
    assert server.text(name) == tuned
    entry = next(model for model in server.client.get("/v1/models").json()["data"] if model["id"] == name)
    assert (entry["root"], entry["parent"]) == (path, "tiny")
    again = server.refusal("/v1/load_lora_adapter", lora_name=name, lora_path=path)
    assert again[:2] == (400, "InvalidUserInput")
    assert again[2].startswith(f"The lora adapter '{name}' has already been loaded.")
    inplace = server.post(
        "/v1/load_lora_adapter", lora_name=name, lora_path=str(server.adapters / "two"), load_inplace=True
    )
    assert inplace.status_code == 200
    assert server.text(name) == server.text("two")
    for adapter_name in (name, "two"):
        removed = server.post("/v1/unload_lora_adapter", lora_name=adapter_name)
        assert (removed.status_code, removed.text) == (
            200,
            f"Success: LoRA adapter '{adapter_name}' removed successfully.",
        )
    assert server.refusal("/v1/unload_lora_adapter", lora_name=name) == (
        404, "NotFoundError", f"The lora adapter '{name}' cannot be found.",
    )  # fmt: skip
    assert server.refusal("/v1/chat/completions", model=name, **ASK)[:2] == (404, "NotFoundError")
    assert server.text() == base


def test_an_alias_moves_between_versions(server: Server) -> None:
    for version in ("one", "two"):
        server.post("/v1/load_lora_adapter", lora_name=version, lora_path=str(server.adapters / version))
    assert server.post("/v1/aliases", alias="acme/live", model="one").json() == {"alias": "acme/live", "model": "one"}
    assert server.text("acme/live") == server.text("one")
    status, kind, message = server.refusal("/v1/unload_lora_adapter", lora_name="one")
    assert (status, kind, message) == (409, "ConflictError", "The lora adapter 'one' is what 'acme/live' means.")
    server.post("/v1/aliases", alias="acme/live", model="two")
    assert server.text("acme/live") == server.text("two")
    assert server.post("/v1/unload_lora_adapter", lora_name="one").status_code == 200
    listed = {model["id"]: model for model in server.client.get("/v1/models").json()["data"]}
    assert (listed["acme/live"]["alias_of"], listed["acme/live"]["parent"]) == ("two", "tiny")
    assert server.refusal("/v1/aliases", alias="x", model="nope")[0] == 404
    assert server.refusal("/v1/aliases", alias="two", model="tiny")[0] == 400
    assert server.post("/v1/aliases", alias="acme/live", model=None).status_code == 200
    assert server.refusal("/v1/aliases", alias="acme/live", model=None)[0] == 404
    assert server.post("/v1/unload_lora_adapter", lora_name="two").status_code == 200


def test_an_adapter_of_another_base_or_template_is_refused(server: Server, tiny_model: Path) -> None:
    folder = server.adapters / "dated"
    shutil.copytree(server.adapters / "one", folder)
    origin = {"base_sha256": model_sha256(tiny_model), "chat_template_sha256": chat_template_sha256(tiny_model)}
    load = {"lora_name": "dated", "lora_path": str(folder)}
    for change, code in (
        ({"base_sha256": "0" * 64}, "E-ADAPTER-MISMATCH: The adapter was trained on another base than 'tiny'."),
        ({"chat_template_sha256": "0" * 64}, "E-ADAPTER-MISMATCH: The adapter was trained with another chat template"),
    ):
        (folder / "training.json").write_text(json.dumps({**origin, **change}))
        status, _, message = server.refusal("/v1/load_lora_adapter", **load)
        assert status == 400
        assert message.startswith(code)
    (folder / "training.json").write_text("[")
    assert "E-ADAPTER-MISMATCH" in server.refusal("/v1/load_lora_adapter", **load)[2]
    (folder / "training.json").write_text(json.dumps(origin))
    assert server.post("/v1/load_lora_adapter", **load).status_code == 200
    assert server.post("/v1/unload_lora_adapter", lora_name="dated").status_code == 200


def test_an_adapter_that_does_not_fit_leaves_the_base_as_it_was(server: Server) -> None:
    base = server.text()
    narrow = server.refusal("/v1/load_lora_adapter", lora_name="n", lora_path=str(server.adapters / "narrow"))
    assert narrow[0] == 400
    assert "E-ADAPTER-MISMATCH: The adapter in narrow does not fit this base model." in narrow[2]
    assert server.text() == base
    assert server.refusal("/v1/chat/completions", model="n", **ASK)[0] == 404


@pytest.mark.parametrize(
    ("path", "status", "message"),
    [
        ("/etc", 400, "outside the server's adapter roots"),
        ("../adapters/one", 400, "outside the server's adapter roots"),
        ("{root}/../tiny", 400, "outside the server's adapter roots"),
        ("{root}/link", 400, "outside the server's adapter roots"),
        ("{root}/nope", 404, "No adapter found for"),
        ("{root}/pickled", 400, "E-MODEL-UNSAFE"),
        ("x\0y", 400, "outside the server's adapter roots"),
        ("{root}/round", 400, "outside the server's adapter roots"),
        ("{root}/" + "a" * 5000, 400, "outside the server's adapter roots"),
        ("{root}/" + "a/" * 2500, 400, "outside the server's adapter roots"),
        ("", 400, "Both 'lora_name' and 'lora_path' must be provided."),
    ],
    ids=lambda part: part[:20] if isinstance(part, str) else None,
)
def test_an_adapter_comes_only_from_the_roots(server: Server, path: str, status: int, message: str) -> None:
    link, pickled = server.adapters / "link", server.adapters / "pickled"
    if not pickled.exists():
        link.symlink_to(server.model)
        (server.adapters / "round").symlink_to("round")
        pickled.mkdir()
        (pickled / "adapter_config.json").write_text('{"peft_type": "LORA"}')
        (pickled / "adapter_model.bin").write_bytes(b"\x80\x04.")
    adapter_path = path.format(root=server.adapters)
    refused_with = server.refusal("/v1/load_lora_adapter", lora_name="x", lora_path=adapter_path)
    assert refused_with[0] == status
    assert message in refused_with[2]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"model": "nope"}, 404, "The model `nope` does not exist."),
        ({"model": "nope"}, 404, "Served are: `tiny`."),
        ({"functions": []}, 400, "`functions` is not supported by this server."),
        ({"tools": [TOOL]}, 400, "This model's chat template has no place for tools."),
        ({"tools": [TOOL], "tool_choice": "required"}, 400, "tool_choice: Input should be 'auto' or 'none'"),
        ({"n": 9}, 400, "n: Input should be less than or equal to 8"),
        ({"temperature": 3}, 400, "temperature: "),
        ({"messages": []}, 400, "messages: "),
        ({"messages": [{"role": "user"}]}, 400, "messages.0.content: Field required"),
        ({"top_logprobs": 2}, 400, "top_logprobs needs logprobs"),
        ({"max_tokens": 4000}, 400, "max_tokens is 4000; this server allows 3000."),
        ({"max_tokens": 2500}, 400, "This model's maximum context length is 2048 tokens. However, you requested"),
        ({"messages": [{"role": "user", "content": "hello " * 9000}]}, 400, "maximum context length is 2048"),
        ({"stop": ["a"] * 17}, 400, "stop takes at most 16 texts"),
        ({"response_format": {"type": "json_schema"}}, 400, "response_format.json_schema is missing."),
        ({"stream": True, "max_tokens": 2500}, 400, "maximum context length is 2048"),
        (
            {
                "stream": True,
                "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}},
            },
            400,
            "E-JSON-SCHEMA",
        ),
    ],
)
def test_a_bad_request_says_what_is_wrong(server: Server, body: dict[str, Any], status: int, message: str) -> None:
    refused_with = server.refusal("/v1/chat/completions", **{"model": "tiny", **ASK, **body})
    assert refused_with[0] == status
    assert message in refused_with[2]


def test_bodies_are_json_and_limited(server: Server) -> None:
    path = "/v1/chat/completions"
    assert server.client.post(path, content="{", headers={"content-type": "text/plain"}).status_code == 415
    assert server.client.post(path, content="{", headers={"content-type": "application/json"}).status_code == 400
    big = server.client.post(path, content=b" " * (5 << 20), headers={"content-type": "application/json"})
    assert (big.status_code, big.json()["error"]["type"]) == (413, "RequestTooLarge")
    assert server.client.get("/v1/nothing").json()["error"]["message"] == "GET /v1/nothing is not served here."


def test_only_the_token_opens_it_and_only_its_own_names(server: Server) -> None:
    url = f"http://127.0.0.1:{server.port}"
    assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
        for path in ("/v1/models", "/metrics"):
            refused = httpx.get(url + path, headers=headers, trust_env=False)
            assert (refused.status_code, refused.json()["error"]["type"]) == (401, "AuthenticationError")
    assert server.client.get("/v1/models", headers={"Host": "attacker.example"}).status_code == 400


def test_a_client_that_leaves_stops_its_generation(server: Server) -> None:
    def count_cancelled() -> float:
        lines = server.client.get("/metrics").text.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("trainyard_server_cancelled_total")))

    before = count_cancelled()
    # The schema keeps the untrained model from ending by itself before it is interrupted.
    endless = {"type": "array", "items": {"type": "string"}, "minItems": 400}
    long = {
        "model": "tiny", **ASK, "max_tokens": 1900,
        "response_format": {"type": "json_schema", "json_schema": {"schema": endless}},
    }  # fmt: skip
    with server.client.stream("POST", "/v1/chat/completions", json={**long, "stream": True}) as answer:
        next(answer.iter_lines())
    with pytest.raises(httpx.ReadTimeout):
        server.client.post("/v1/chat/completions", json=long, timeout=0.5)
    deadline = time.monotonic() + 120
    while count_cancelled() < before + 2 and time.monotonic() < deadline:
        time.sleep(0.1)
    assert count_cancelled() == before + 2


def test_metrics_count_what_was_done(server: Server) -> None:
    server.chat()
    text = server.client.get("/metrics").text
    for name in ("prompt_tokens_total", "generated_tokens_total", "waiting", "running", "adapters", "cancelled_total"):
        assert f"trainyard_server_{name}" in text
    assert 'trainyard_server_requests_total{path="/v1/chat/completions",status="200"}' in text


def test_off_loopback_it_starts_only_with_a_token(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--model", str(tiny_model), "--host", "0.0.0.0"]) == 5
    assert "E-AUTH: The server does not listen on 0.0.0.0 without a token." in capsys.readouterr().err


def test_the_generator_keeps_or_rejects_every_row_with_a_reason(server: Server, tmp_path: Path) -> None:
    """A random model, held to the schema, gives rows that are well formed."""
    document = DocumentRow("d0", "docs/chain.md", "markdown", "Chain", "A chain is a list of nodes.")
    write_rows(tmp_path / "documents" / "rows.arrow", Port.DOCUMENTS, [document])
    config = AiGeneratorConfig(
        model="tiny", engine="openai", count=4, wordings=2, max_tokens=400, temperature=1, retries=0, concurrency=2
    )
    complete = Completer(config, str(server.client.base_url.join("/v1")), "tiny", TOKEN)
    produced = generate(
        config, tmp_path / "documents", tmp_path / "out", complete=complete, report=lambda fraction, text: None
    )
    facts = produced.facts
    assert facts["asked"] == 4 == facts["kept"] + sum(facts["rejected"].values())
    assert facts["kept"] > 0
    assert facts["usage"]["completion_tokens"] > 0
    rows = list(read_rows(tmp_path / "out/sft/rows.arrow", Port.SFT))
    for row in rows:
        assert isinstance(row, SftRow)
        assert all(message.content.strip() for message in row.messages)
    accounting = json.loads((tmp_path / "out/sft/accounting.json").read_text())
    assert accounting["kept"] == len(rows)


def test_prompt_logprobs_are_those_of_the_model_by_id(server: Server) -> None:
    """What a distillation asks for: the likeliest tokens at each place, and the token there, as vLLM has it."""
    ids = [[5, 9, 17, 30], [7, 8, 9]]
    answer = server.post("/v1/completions", model="tiny", prompt=ids, max_tokens=1, temperature=0, prompt_logprobs=4)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    model = AutoModelForCausalLM.from_pretrained(server.model).eval()
    for row, choice in zip(ids, choices, strict=True):
        with torch.no_grad():
            logprobs_TV = model(torch.tensor([row])).logits[0].log_softmax(-1)
        first, *positions = choice["prompt_logprobs"]
        assert first is None
        assert len(positions) == len(row) - 1
        for at, (position_logprobs, token) in enumerate(zip(positions, row[1:], strict=True)):
            best = logprobs_TV[at].topk(4).indices.tolist()
            assert [int(token_id) for token_id in position_logprobs][:4] == best
            assert str(token) in position_logprobs
            assert [entry["rank"] for entry in position_logprobs.values()][:4] == [1, 2, 3, 4]
            for token_id, value in position_logprobs.items():
                assert value["logprob"] == pytest.approx(logprobs_TV[at][int(token_id)].item(), abs=1e-4)
    plain = server.post("/v1/completions", model="tiny", prompt=ids, max_tokens=1, temperature=0).json()["choices"]
    assert "prompt_logprobs" not in plain[0]
    status, _, message = server.refusal("/v1/completions", model="tiny", prompt=[[5] * 200] * 20, prompt_logprobs=999)
    assert (status, "log probabilities" in message) == (400, True)
