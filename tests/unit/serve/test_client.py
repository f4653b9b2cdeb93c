"""The client against a server that fails in each way: typed errors, pinned messages, bounded attempts, no key shown."""

from __future__ import annotations

import asyncio
import pickle
import re
import time
from collections.abc import Sequence

import pytest

from trainyard.errors import InvalidInput, Unavailable
from trainyard.serve.client.client import (
    ChatClient,
    Completer,
    Completion,
    InvalidServerResponse,
    ServerError,
    ServerRefused,
    ServerTimeout,
    ServerUnreachable,
    api_key_from,
    api_url,
    parse_retry_after,
)
from trainyard.spec.nodes import AiGeneratorConfig
from trainyard.testing.scripted_server import (
    Behaviour,
    Exchange,
    ScriptedServer,
    die,
    drop,
    error_body,
    garbage,
    half_json,
    half_reply,
    hang,
    no_choices,
    ok,
    slow,
    status,
    wrong_types,
)

HELLO = [{"role": "user", "content": "Hello there"}]
KEY = "sk-very-secret"


def make_client(server: ScriptedServer, *, retries: int = 2, timeout_s: float = 60, concurrency: int = 4) -> ChatClient:
    return ChatClient(
        server.url, "scripted", KEY, concurrency=concurrency, retries=retries, timeout_s=timeout_s, first_wait_s=0.01
    )


async def complete_hello(
    script: Sequence[Behaviour], *, timeout_s: float = 60, retries: int = 2
) -> tuple[Completion, ChatClient]:
    with ScriptedServer(script) as server:
        async with make_client(server, timeout_s=timeout_s, retries=retries) as client:
            return await client.complete(HELLO), client


async def test_a_completion_carries_text_tokens_and_attempts() -> None:
    completion, client = await complete_hello([ok("Good morning to you")])
    assert completion == Completion("Good morning to you", "stop", 2, 4, 1)
    assert client.usage() == {"requests": 1, "attempts": 1, "prompt_tokens": 2, "completion_tokens": 4}


async def test_options_and_schema_are_sent_only_when_given() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    with ScriptedServer() as server:
        async with make_client(server) as client:
            await client.complete(HELLO)
            completion = await client.complete(HELLO, schema, 7, max_tokens=9, temperature=0.0)
    assert server.requests[0] == {"model": "scripted", "messages": HELLO}
    form = {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}}
    options = {"seed": 7, "max_tokens": 9, "temperature": 0.0, "response_format": form}
    assert server.requests[1] == {"model": "scripted", "messages": HELLO, **options}
    assert completion.text == '{"a": "text 1.0"}'


PASSING = {
    "408": status(408),
    "429": status(429),
    "500": status(500),
    "503": status(503),
    "drop": drop(),
    "half_reply": half_reply(),
    "half_json": half_json(),
    "garbage": garbage(),
    "error_body": error_body(),
    "wrong_types": wrong_types(),
    "no_choices": no_choices(),
}


@pytest.mark.parametrize("behaviour", PASSING.values(), ids=PASSING.keys())
async def test_a_passing_failure_is_tried_again(behaviour: Behaviour) -> None:
    completion, client = await complete_hello([behaviour, behaviour, ok("at last")])
    assert (completion.text, completion.attempts) == ("at last", 3)
    assert client.usage()["attempts"] == 3


FAILURES = [
    (
        status(503, "warming up"),
        ServerRefused,
        r"refused with status 503 \(3 attempts\)\. Why: warming up\. Do: Look into",
    ),
    (
        status(429, "too fast"),
        ServerRefused,
        r"refused with status 429 \(3 attempts\)\. Why: too fast\. Do: Lower concurr",
    ),
    (
        hang(),
        ServerTimeout,
        r"did not answer in time \(3 attempts\)\. Why: no whole answer within 0\.2 s\. Do: Raise timeo",
    ),
    (slow(1), ServerTimeout, r"did not answer in time \(3 attempts\)"),
    (drop(), ServerUnreachable, r"could not be reached \(3 attempts\)\. Why: Server disconnected\. Do: Check that"),
    (die(), ServerUnreachable, r"could not be reached \(3 attempts\)\. Why: .*\. Do: Check that the server runs"),
    (
        half_reply(),
        InvalidServerResponse,
        r"cannot be used \(3 attempts\)\. Why: Response payload is not completed: .*Not enough data",
    ),
    (half_json(), InvalidServerResponse, r"\(3 attempts\)\. Why: the body is not JSON: .*\. Do: Check that base_url"),
    (
        garbage(),
        InvalidServerResponse,
        r"\(3 attempts\)\. Why: the body is not JSON: <html><body>Bad gateway</body></html>\.",
    ),
    (error_body(), InvalidServerResponse, r"\(3 attempts\)\. Why: status 200 with an error: .*the engine is gone"),
    (
        wrong_types(),
        InvalidServerResponse,
        r"a field has another type than the API says: Expected `str \| null`, got `int`",
    ),
    (no_choices(), InvalidServerResponse, r"\(3 attempts\)\. Why: the reply has no choices\."),
    (ok(lambda _: None), InvalidServerResponse, r"Why: the reply has no text \(content is null\)\."),  # type: ignore[arg-type, return-value]
]


@pytest.mark.parametrize(("behaviour", "kind", "message"), FAILURES, ids=[str(n) for n in range(len(FAILURES))])
async def test_a_lasting_failure_names_server_attempts_cause_and_remedy(
    behaviour: Behaviour, kind: type[ServerError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        await complete_hello([behaviour] * 5, timeout_s=0.2 if kind is ServerTimeout else 60)
    assert re.match(r"E-SERVER-[A-Z]+: The model server at http://127\.0\.0\.1:\d+/v1 ", str(caught.value))
    assert caught.value.exit_code == 7


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (400, "Correct what the server names; a prompt that is too long needs a smaller max_chars"),
        (401, "Name an endpoint of trainyard.toml with api_key_env in the chain"),
        (403, "Put a key that may use this model into the environment variable"),
        (404, "Check model and base_url; the server lists its models"),
        (422, "Correct what the server names"),
    ],
)
async def test_a_refusal_is_final(code: int, remedy: str) -> None:
    with pytest.raises(
        ServerRefused, match=rf"E-SERVER-REFUSED: .* status {code} \(1 attempt\)\. .* Do: {remedy}"
    ) as caught:
        await complete_hello([status(code)])
    assert caught.value.status == code


async def test_retry_after_is_kept() -> None:
    started = time.monotonic()
    completion, _ = await complete_hello([status(429, retry_after=0.3), ok("now")])
    assert completion.text == "now"
    assert time.monotonic() - started >= 0.3


def test_retry_after_may_be_a_date_or_nonsense() -> None:
    assert parse_retry_after("12") == 12
    assert parse_retry_after(" 1.5 ") == 1.5
    assert (
        parse_retry_after(None)
        is parse_retry_after("Fri, 31 Dec 1999 23:59:59 GMT")
        is parse_retry_after("-3")
        is parse_retry_after("9" * 30)
        is None
    )


async def test_retries_zero_means_one_attempt() -> None:
    with pytest.raises(ServerRefused, match=r"status 500 \(1 attempt\)"):
        await complete_hello([status(500)], retries=0)


async def test_nobody_listens() -> None:
    with ScriptedServer() as server:
        url = server.url
    async with ChatClient(url, "m", retries=1, first_wait_s=0.01) as client:
        with pytest.raises(ServerUnreachable, match=r"E-SERVER-UNREACHABLE: .*could not be reached \(2 attempts\)"):
            await client.complete(HELLO)


async def test_at_most_concurrency_requests_are_under_way_on_as_many_connections() -> None:
    with ScriptedServer(then=slow(0.01)) as server:
        async with make_client(server, concurrency=5) as client:
            await asyncio.gather(*(client.complete(HELLO) for _ in range(40)))
            assert len(server.connections) == 5
    assert server.most_busy == 5


async def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    with ScriptedServer() as server:
        async with make_client(server, retries=1) as client:
            await client.complete(HELLO)
            server._loop.call_soon_threadsafe(lambda: [each.close() for each in list(server.connections)])
            await asyncio.sleep(0.05)
            assert (await client.complete(HELLO)).text == "Reply 1."


async def test_the_key_is_sent_and_never_shown() -> None:
    with ScriptedServer([status(401, f"no such key: {KEY}")], api_key=KEY) as server:
        client = make_client(server)
        async with client:
            with pytest.raises(ServerRefused, match=r"no such key: \*\*\*") as caught:
                await client.complete(HELLO)
    assert len(server.requests) == 1
    for printed in (repr(client), str(caught.value), repr(caught.value), str(client.usage())):
        assert KEY not in printed


async def test_what_a_server_says_is_quoted_short_and_printable() -> None:
    with pytest.raises(ServerRefused) as caught:
        await complete_hello([status(400, "\x1b[31m" + "very\nlong " * 200)])
    assert "\x1b" not in caught.value.why
    assert len(caught.value.why) <= 301


@pytest.mark.parametrize(
    ("reply_body", "quoted"),
    [
        (b"<html>too large</html>", "<html>too large</html>."),
        (b'{"object": "error", "message": "unknown model"}', "unknown model."),
        (b'{"error": "plain words"}', "plain words."),
        (b'{"detail": [1]}', "{'detail': [1]}."),
        (b"[]", "[]."),
        (b"", "(empty)."),
    ],
)
async def test_error_bodies_of_any_form_are_quoted(reply_body: bytes, quoted: str) -> None:
    async def refuse(exchange: Exchange) -> None:
        exchange.reply(400, reply_body)

    with pytest.raises(ServerRefused) as caught:
        await complete_hello([refuse])
    assert caught.value.why == quoted


async def test_errors_cross_processes_with_their_status() -> None:
    with pytest.raises(ServerRefused) as caught:
        await complete_hello([status(400, "no")])
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (type(copy), copy.status, str(copy)) == (ServerRefused, 400, str(caught.value))
    assert isinstance(copy, Unavailable)


@pytest.mark.parametrize(
    ("base_url", "used"),
    [
        ("http://host:8000", "http://host:8000/v1"),
        ("http://host:8000/", "http://host:8000/v1"),
        ("http://host:8000/v1/", "http://host:8000/v1"),
        ("https://host/openai/v1", "https://host/openai/v1"),
        ("https://host/api/v1beta", "https://host/api/v1beta"),
        ("https://host/proxy", "https://host/proxy/v1"),
    ],
)
def test_a_base_url_may_name_the_version_or_not(base_url: str, used: str) -> None:
    assert str(api_url(base_url)) == used


@pytest.mark.parametrize(
    ("base_url", "why"),
    [
        ("localhost:8000", "its scheme is 'localhost'"),
        ("host", "it has no scheme"),
        ("ftp://host/v1", "its scheme is 'ftp'"),
        ("http://me:secret@host/v1", "it contains a password"),
        ("http://[::1", "it cannot be read as a URL"),
    ],
)
def test_a_base_url_that_cannot_work_is_refused_without_showing_it(base_url: str, why: str) -> None:
    with pytest.raises(InvalidInput, match=rf"E-ENDPOINT: .*{re.escape(why)}.* Do: Write it like http") as caught:
        api_url(base_url)
    assert "secret" not in str(caught.value)


def test_a_key_comes_from_a_named_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_KEY", f" {KEY}\n")
    assert api_key_from("LLAMA_KEY") == KEY
    assert api_key_from(None) is None
    monkeypatch.setenv("LLAMA_KEY", "sk-a\nb")
    with pytest.raises(
        InvalidInput, match=r"E-API-KEY: .* LLAMA_KEY has characters that no HTTP header can carry"
    ) as caught:
        api_key_from("LLAMA_KEY")
    assert "sk-a" not in str(caught.value)
    monkeypatch.delenv("LLAMA_KEY")
    with pytest.raises(InvalidInput, match=r"E-API-KEY: The environment variable LLAMA_KEY, .* is not set"):
        api_key_from("LLAMA_KEY")


async def test_a_completer_asks_with_the_configs_options() -> None:
    config = AiGeneratorConfig(model="m", temperature=0.1, max_tokens=77, concurrency=2, retries=0, timeout_s=5)
    with ScriptedServer(then=ok("text")) as server:
        async with Completer(config, server.url, "served-name") as complete:
            assert await complete(HELLO, None, 3) == "text"
    asked_for = {"model": "served-name", "messages": HELLO, "seed": 3, "max_tokens": 77, "temperature": 0.1}
    assert server.requests == [asked_for]
    assert complete.usage()["requests"] == 1
    assert complete.retries == 0
