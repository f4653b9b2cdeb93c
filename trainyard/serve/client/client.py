"""The client of every OpenAI-compatible model server: ours, vLLM, or one at any base URL.

One `aiohttp.ClientSession` per server: 0.3 ms of CPU a request, because aiohttp's connection pool does not scan all
connections on every request, as httpx's does. It follows no redirect and uses no proxy. Retries (tenacity): 408, 429
and 5xx, lost connections, silence and broken replies, with exponential backoff and jitter or the server's Retry-After;
everything else fails at once.

    async with ChatClient(url, "llama3.2", concurrency=64) as client:
        completion = await client.complete([{"role": "user", "content": "Hello"}])

Keys come from environment variables (`api_key_from`) and are in no repr, log or error.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any, Self

import aiohttp
import httpx
import msgspec
import orjson
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from trainyard.errors import InvalidInput, Unavailable
from trainyard.json_types import JsonObject
from trainyard.serve.client.hosts import JudgedResolver
from trainyard.spec.nodes import AiGeneratorConfig

Messages = list[dict[str, str]]
FIRST_WAIT_S, MOST_WAIT_S = 0.5, 60.0
CONNECT_S = 10.0
MOST_BODY_BYTES = 64 << 20
QUOTE_CHARS = 300
TRANSIENT = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


class ServerError(Unavailable):
    """A model server failed. `status` is its HTTP status, if it got as far as one."""

    status: int | None = None

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.as_dict(), self.status)


class ServerUnreachable(ServerError):
    """No connection, or it broke before an answer."""

    default_code = "E-SERVER-UNREACHABLE"


class ServerTimeout(ServerError):
    """Connected, but no whole answer within the time allowed."""

    default_code = "E-SERVER-TIMEOUT"


class InvalidServerResponse(ServerError):
    """An answer that is cut off, is not JSON, or is not what the API promises."""

    default_code = "E-SERVER-RESPONSE"


class ServerRefused(ServerError):
    """An HTTP status that says no."""

    default_code = "E-SERVER-REFUSED"


def _rebuild(kind: type[ServerError], fields: dict[str, str], status: int | None) -> ServerError:
    error = kind(fields["what"], why=fields["why"], do=fields["do"], code=fields["code"])
    error.status = status
    return error


class Completion(msgspec.Struct, frozen=True):
    """A reply. `attempts` is 1 when the first request was answered."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    attempts: int


class _Message(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct):
    message: _Message
    finish_reason: str | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Chat(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_CHAT = msgspec.json.Decoder(_Chat)


class _Failure(Exception):
    """An attempt failed; becomes a `ServerError` when no attempt is left."""

    def __init__(
        self, kind: type[ServerError], detail: str, *, status: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.status, self.retry_after = kind, detail, status, retry_after


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, _Failure) and (error.status is None or error.status in TRANSIENT)


def api_key_from(variable: str | None) -> str | None:
    """The key in an environment variable; None for no variable. Raises `InvalidInput` (`E-API-KEY`) if it is unset."""
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise InvalidInput(
            f"The environment variable {variable}, which should contain an API key, is not set.",
            do=f"Set {variable} before `trainyard up`, or leave api_key_env out of the endpoint in trainyard.toml.",
            code="E-API-KEY",
        )
    key = os.environ[variable].strip()
    if not (key.isascii() and key.isprintable()):
        # httpx would quote the whole header in its error.
        raise InvalidInput(
            f"The API key in the environment variable {variable} has characters that no HTTP header can carry.",
            do=f"Set {variable} to the key alone, on one line.",
            code="E-API-KEY",
        )
    return key


def api_url(base_url: str) -> httpx.URL:
    """The address up to its version (`/v1` is added where none is). Raises `InvalidInput` (`E-ENDPOINT`)."""
    try:
        url = httpx.URL(base_url.rstrip("/"))
    except (httpx.InvalidURL, TypeError) as error:
        raise _bad_url("it cannot be read as a URL") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise _bad_url(f"its scheme is {url.scheme!r}" if url.scheme else "it has no scheme")
    if url.userinfo:
        raise _bad_url("it contains a password")
    path = url.path.rstrip("/")
    return url.copy_with(path=path if re.search(r"/v\d+\w*$", path) else f"{path}/v1", query=None, fragment=None)


def _bad_url(why: str) -> InvalidInput:
    return InvalidInput(
        "The address of the model server is not usable.",
        why=f"An OpenAI-compatible base URL is needed, and {why}.",
        do="Write it like http://127.0.0.1:8000/v1; a key belongs to an endpoint in trainyard.toml.",
        code="E-ENDPOINT",
    )


class ChatClient:
    """Asks one server. An async context manager; usable only inside it.

    Args:
        base_url: address of the API, with or without `/v1`.
        model: the server's name for the model or adapter.
        api_key: bearer token, or None.
        concurrency: most requests under way at a time.
        retries: attempts after the first one.
        timeout_s: seconds for one attempt, from sending to the last byte.
        first_wait_s: seconds before the second attempt; each later wait is twice as long.
        private_hosts: names that may lead to an address inside this network; None: every name, as the operator's own.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        api_key: str | None = None,
        *,
        concurrency: int = 8,
        retries: int = 4,
        timeout_s: float = 120.0,
        first_wait_s: float = FIRST_WAIT_S,
        private_hosts: Collection[str] | None = None,
    ) -> None:
        self.api, self.model = api_url(base_url), model
        self.concurrency, self.retries = concurrency, retries
        self.timeout_s, self.first_wait_s = timeout_s, first_wait_s
        self.requests = self.attempts = self.prompt_tokens = self.completion_tokens = 0
        self.template_options: Mapping[str, object] | None = None
        """Variables for the server's chat template (`chat_template_kwargs` of vLLM)."""
        self._api_key, self._private_hosts = api_key, private_hosts

    def __repr__(self) -> str:
        return f"ChatClient({str(self.api)!r}, {self.model!r}, concurrency={self.concurrency})"

    async def __aenter__(self) -> Self:
        headers = {"content-type": "application/json"}
        if self._api_key is not None:
            headers["authorization"] = f"Bearer {self._api_key}"
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self.concurrency,
                ssl=httpx.create_ssl_context() if self.api.scheme == "https" else True,
                resolver=None if self._private_hosts is None else JudgedResolver(self._private_hosts),
            ),
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, connect=min(CONNECT_S, self.timeout_s)),
        )
        self._slots = asyncio.Semaphore(self.concurrency)
        self._chat_url = str(self.api.copy_with(path=f"{self.api.path}/chat/completions"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    def usage(self) -> dict[str, int]:
        """Return the usage of the server so far; tokens as the server counts them."""
        return {
            "requests": self.requests,
            "attempts": self.attempts,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }

    async def complete(
        self,
        messages: Messages,
        schema: JsonObject | None = None,
        seed: int | None = None,
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
    ) -> Completion:
        """Return one chat completion. `schema` (JSON Schema) constrains the reply's text.

        Raises `ServerUnreachable`, `ServerTimeout`, `InvalidServerResponse` or `ServerRefused`, and `Refused`
        (`R-URL`) for a name that may not lead where it leads.
        """
        body: dict[str, object] = {"model": self.model, "messages": messages}
        options = {"seed": seed, "max_tokens": max_tokens, "temperature": temperature}
        body |= {name: value for name, value in options.items() if value is not None}
        if self.template_options:
            body["chat_template_kwargs"] = self.template_options
        if schema is not None:
            form = {"name": "reply", "strict": True, "schema": schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        self.requests += 1
        content = orjson.dumps(body)
        retrying = AsyncRetrying(
            retry=retry_if_exception(_is_transient),
            stop=stop_after_attempt(self.retries + 1),
            wait=self._wait_s,
            sleep=asyncio.sleep,
            reraise=True,
        )
        try:
            chat: _Chat = await retrying(self._chat, content)
        except _Failure as failure:
            raise self._error(failure, retrying.statistics["attempt_number"]) from None
        usage = chat.usage or _Usage()
        self.prompt_tokens += usage.prompt_tokens
        self.completion_tokens += usage.completion_tokens
        choice = chat.choices[0]
        return Completion(
            text=choice.message.content or "",
            finish_reason=choice.finish_reason or "",
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            attempts=retrying.statistics["attempt_number"],
        )

    def _wait_s(self, state: RetryCallState) -> float:
        """0.5, 1, 2 … s (times 0.5 to 1 by chance), or what the server's Retry-After says; at most 60 s."""
        failure = state.outcome.exception() if state.outcome else None
        retry_after = failure.retry_after if isinstance(failure, _Failure) else None
        # The jitter is taken from the system, never from the seeded generators that decide what is made.
        jitter = 0.5 + int.from_bytes(os.urandom(2)) / 131_072
        exponential = self.first_wait_s * 2 ** (state.attempt_number - 1)
        return float(min(MOST_WAIT_S, max(exponential * jitter, retry_after or 0.0)))

    async def _chat(self, content: bytes) -> _Chat:
        self.attempts += 1
        body = await self._send(content)
        try:
            chat = _CHAT.decode(body)
        except msgspec.ValidationError as error:
            raise _Failure(InvalidServerResponse, f"a field has another type than the API says: {error}") from error
        except (msgspec.DecodeError, RecursionError) as error:
            raise _Failure(InvalidServerResponse, f"the body is not JSON: {self._quote(body)}") from error
        if chat.error is not None:
            raise _Failure(InvalidServerResponse, f"status 200 with an error: {self._quote(orjson.dumps(chat.error))}")
        if not chat.choices:
            raise _Failure(InvalidServerResponse, "the reply has no choices")
        message = chat.choices[0].message
        if message.content is None:
            raise _Failure(InvalidServerResponse, f"the reply has no text ({message.refusal or 'content is null'})")
        return chat

    async def _send(self, content: bytes) -> bytes:
        """Return one attempt: the body of a 200 answer, or `_Failure`."""
        try:
            async with (
                self._slots,
                asyncio.timeout(self.timeout_s),
                self._http.post(self._chat_url, data=content, allow_redirects=False) as response,
            ):
                body = await self._read(response.content)
        except aiohttp.ClientError as error:
            kind = InvalidServerResponse if isinstance(error, aiohttp.ClientPayloadError) else ServerUnreachable
            # `str` of a broken protocol begins with a status that the server did not send.
            message = getattr(error, "message", "") or str(error) or type(error).__name__
            raise _Failure(kind, self._quote(message)) from error
        except TimeoutError as error:
            raise _Failure(ServerTimeout, f"no whole answer within {self.timeout_s:g} s") from error
        if response.status == 200:
            return body
        raise _Failure(
            ServerRefused,
            self._server_message(body),
            status=response.status,
            retry_after=parse_retry_after(response.headers.get("retry-after")),
        )

    async def _read(self, stream: aiohttp.StreamReader) -> bytes:
        """Return a body as it is after decompression, or `_Failure` once it is longer than `MOST_BODY_BYTES`."""
        body = bytearray()
        async for piece in stream.iter_any():
            body += piece
            if len(body) > MOST_BODY_BYTES:
                raise _Failure(InvalidServerResponse, f"the answer is longer than {MOST_BODY_BYTES:,} bytes")
        return bytes(body)

    def _server_message(self, body: bytes) -> str:
        """Return what an error body says: OpenAI's error object, vLLM's older one, or its beginning."""
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            return self._quote(body)
        error = value.get("error", value) if isinstance(value, dict) else value
        message = error.get("message") if isinstance(error, dict) else error
        return self._quote(str(message or value))

    def _quote(self, content: bytes | str) -> str:
        """Return the beginning of what was said, printable, in one line and without our key."""
        text = content if isinstance(content, str) else content[: 8 * QUOTE_CHARS].decode("utf-8", "replace")
        if self._api_key:
            text = text.replace(self._api_key, "***")
        printable = "".join(char if char.isprintable() else " " for char in text[:QUOTE_CHARS])
        return " ".join(printable.split()) or "(empty)"

    def _error(self, failure: _Failure, attempts: int) -> ServerError:
        """Return the typed error after the last attempt: server, attempts, what happened, what to do."""
        tried = f"{attempts} attempt{'s' if attempts > 1 else ''}"
        message = {
            ServerUnreachable: f"The model server at {self.api} could not be reached ({tried}).",
            ServerTimeout: f"The model server at {self.api} did not answer in time ({tried}).",
            InvalidServerResponse: f"The model server at {self.api} sent an answer that cannot be used ({tried}).",
            ServerRefused: f"The model server at {self.api} refused with status {failure.status} ({tried}).",
        }[failure.kind]
        error = failure.kind(message, why=f"{failure.detail.rstrip('.')}.", do=advice(failure.kind, failure.status))
        error.status = failure.status
        return error


ADVICE: dict[type[ServerError], str] = {
    ServerUnreachable: "Check that the server runs and that base_url is its address, then run again.",
    ServerTimeout: "Raise timeout_s, or lower concurrency or max_tokens.",
    InvalidServerResponse: "Check that base_url is the /v1 address of an OpenAI-compatible server, and read its log.",
    ServerRefused: "Correct what the server names; a prompt that is too long needs a smaller max_chars or max_tokens.",
}
STATUS_ADVICE = {
    401: "Name an endpoint of trainyard.toml with api_key_env in the chain; the chain's own base_url gets no key.",
    403: "Put a key that may use this model into the environment variable that the endpoint names.",
    404: "Check model and base_url; the server lists its models at /v1/models.",
    429: "Lower concurrency or raise retries.",
}


def advice(kind: type[ServerError], status: int | None) -> str:
    """Return what a person can do about a failure."""
    if status is not None and status >= 500:
        return "Look into the server's log, then run again."
    return STATUS_ADVICE.get(status or 0, ADVICE[kind])


def parse_retry_after(retry_after: str | None) -> float | None:
    """Retry-After in seconds; a date or nonsense counts as absent (RFC 9110 section 10.2.3 allows both forms)."""
    if retry_after is None or not re.fullmatch(r"\d{1,9}(\.\d+)?", retry_after.strip()):
        return None
    return float(retry_after)


class Completer(ChatClient):
    """`complete(messages, schema, seed) -> text`: what `trainyard.data.generation.generate` takes as `complete`.

    `model` is the server's name for the model; concurrency, retries, time, temperature and tokens are the config's.
    """

    def __init__(
        self, config: AiGeneratorConfig, base_url: str, model: str, api_key: str | None = None,
        private_hosts: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        limits: Any = {"concurrency": config.concurrency, "retries": config.retries, "timeout_s": config.timeout_s}
        super().__init__(base_url, model, api_key, private_hosts=private_hosts, **limits)
        self.config = config

    async def __call__(self, messages: Messages, schema: JsonObject | None, seed: int) -> str:
        completion = await self.complete(
            messages, schema, seed, max_tokens=self.config.max_tokens, temperature=self.config.temperature
        )
        return completion.text
