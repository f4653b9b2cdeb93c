"""Send thousands of paths to every text parameter of the API in this process, and record the opened files.

    python -m tools.path_program FOLDER FIRST COUNT

Prints one JSON object: {requests, statuses, escapes, leaks, connections}. An audit hook of the interpreter sees every
file that is opened, listed, made, renamed or removed, and every connection; children get a strict environment and are
counted as files that were opened: they are given paths, and may not be given one outside.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import anyio
import httpx

from trainyard.operations.table import OPERATIONS, find_route
from trainyard.settings import load_settings
from trainyard.stores.secret_files import TokenFile
from trainyard.surfaces.invocation import local_fields
from trainyard.surfaces.rest.service import build_guarded_app

CANARY = "canary-7c1d0f-secret"
SEEDS = (
    "../{0}",
    "../../{0}",
    "{1}",
    "/{1}",
    "//{1}",
    "..//..//{0}",
    "....//{0}",
    "%2e%2e/{0}",
    "%2e%2e%2f{0}",
    "..%2f{0}",
    "..%252f{0}",
    "..%c0%af{0}",
    "file://{1}",
    "file:{1}",
    "FILE:///{1}",
    "..\\{0}",
    "C:\\{0}",
    "\\\\host\\{0}",
    "{1}\0",
    "a\0/../{0}",
    "/proc/self/root{1}",
    "//proc/self/root{1}",
    "/proc/self/cwd/../{0}",
    "/dev/fd/0",
    "~/../{1}",
    "~root",
    "./../{0}",
    "a/../../{0}",
    "link/{2}",
    "link",
    "#{1}",
    "?{1}",
    "{0}#/..",
    "..;/{0}",
    "\u2025/{0}",
    "\uff0e\uff0e/{0}",
    "\u2215{1}",
    "..\u2044{0}",
    "hub:../{0}",
    "http://127.0.0.1:1/{0}",
    "http://169.254.169.254/",
    "http://[::1]:1/",
    "http://2130706433/",
    "http://0x7f.1/",
    "http://metadata.google.internal/",
    "gs://../{0}",
    "s3://{1}",
    "data:,x",
    "{1}/..",
    "{1}/.",
    "x" * 5000,
    "../" * 200 + "{0}",
    "\n{1}",
    " {1}",
    "{1} ",
    "'{1}'",
    "$HOME/{0}",
    "`id`",
    "${{HOME}}",
    "default/../{0}",
    "default/assistant/../../{0}",
    "default/assistant/v1/../../..{1}",
    "/etc/passwd",
    "../../../etc/passwd",
)
"""{0} a relative path, {1} an absolute one, {2} a file name."""


class Watch:
    """Record of files and addresses that the interpreter opened."""

    def __init__(self, outside: Path, allowed_writes: tuple[Path, ...]) -> None:
        self.outside, self.allowed = str(outside), tuple(map(str, allowed_writes))
        self.on, self.escapes, self.connections = False, [], []  # type: tuple[bool, list[str], list[str]]
        self.now = ""

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event == "socket.connect":
            self.connections.append(f"{self.now}: {arguments[1]!r}")
        writes = event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "shutil.rmtree")
        if event == "open" or writes or event in ("os.listdir", "os.scandir", "subprocess.Popen"):
            named = arguments[:1] if event == "open" else arguments
            texts = [os.fsdecode(argument) for argument in flat(named) if isinstance(argument, str | bytes)]
            self.look(event, texts, writes or (event == "open" and is_writing(arguments)))

    def look(self, event: str, texts: list[str], writes: bool) -> None:
        for text in texts:
            self.on = False
            real = os.path.realpath(text) if "\0" not in text else ""
            self.on = True
            if real.startswith(self.outside) or real in ("/etc/passwd", "/etc/shadow"):
                self.escapes.append(f"{self.now}: {event} {text}")
            elif writes and event == "open" and not real.startswith(self.allowed):
                self.escapes.append(f"{self.now}: written {text}")


def flat(value: Any) -> Iterator[Any]:
    for item in value if isinstance(value, list | tuple) else ():
        yield from flat(item) if isinstance(item, list | tuple) else (item,)


def is_writing(arguments: tuple[Any, ...]) -> bool:
    flags = arguments[2] if len(arguments) > 2 and isinstance(arguments[2], int) else 0
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)) and isinstance(arguments[0], str | bytes)


def text_fields() -> list[tuple[str, str]]:
    """(operation, field) of everything that takes a text over a network, texts in parameters and chains included."""
    text_names = []
    for name, row in OPERATIONS.items():
        model = row.request
        fields = {} if row.local else model.model_fields
        for field, info in fields.items():
            kinds = str((info.annotation, *get_args(info.annotation)))
            if "str" in kinds or "Path" in kinds or "dict" in kinds:
                text_names.append((name, field))
    return text_names


def mutations(folder: Path, count: int) -> Iterator[str]:
    """Paths to a file outside of every root, spelled in many ways."""
    draw = random.Random(7)
    target = folder / "outside" / "secret.jsonl"
    relative = os.path.relpath(target, folder / "work" / "data")
    for number in range(count):
        seed = SEEDS[number] if number < len(SEEDS) else draw.choice(SEEDS)
        text = seed.format(relative.removeprefix("../"), str(target), target.name)
        for _ in range(0 if number < len(SEEDS) else draw.randint(1, 3)):
            position = draw.randrange(len(text) + 1)
            more = draw.choice(("../", "/", "./", "\0", "%2e", "\\", "..", "\u200b", "~", "//"))
            text = draw.choice((
                text[:position] + more + text[position:],
                text.replace("/", draw.choice(("//", "/./", "\\", "%2f", "/../x/")), 1),
                quote(text, safe=draw.choice(("", "/", "./"))), text.upper(), text[::-1],
                text + draw.choice(("/", "/..", "#", "?")),
            ))  # fmt: skip
        yield text


def given_with(field: str, text: str) -> Any:
    """A value for a field with the text in it, deep where the field takes a mapping."""
    node = {"type": "data_source", "config": {"path": text, "url": text}}
    chain = {"name": text[:60], "nodes": [node, {"type": "trainer", "config": {"base_model": text}}]}
    shapes: dict[str, Any] = {
        "files": [chain], "spec": chain, "tags": [text], "rows": [text], "prompts": [text], "targets": [text],
        "parameters": {"base_model": text, "documents": text, "dataset": {"path": text}, "name": text},
        "batch": {text: text}, "outputs": [text], "names": [text], "stop_ids": [text],
    }  # fmt: skip
    return shapes.get(field, text)


async def attack(folder: Path, first: int, count: int) -> dict[str, Any]:
    settings = load_settings(
        home=folder / "home", working_folder=folder / "work" / "data", api_requests_per_s=1e9, api_heavy_calls=64
    )
    token = TokenFile(settings.home).create("all", "admin", "", 1)
    app = build_guarded_app(settings)
    watch = Watch(folder / "outside", (folder / "home", Path("/dev/null"), Path("/tmp")))
    sys.addaudithook(watch)
    statuses: Counter[int] = Counter()
    leaks: list[str] = []
    fields = [text_field for text_field in text_fields() if text_field[0] not in ("backends install", "gc")]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app, raise_app_exceptions=False),
        base_url="http://127.0.0.1:8898", headers={"authorization": f"Bearer {token}"}, timeout=60,
    ) as client:  # fmt: skip
        for number, text in islice(enumerate(mutations(folder, first + count)), first, None):
            name, field = fields[number % len(fields)]
            watch.now, watch.on = f"{name} {field} {text[:120]!r}", True
            try:
                method, url, body = request_of(name, field, text)
                kind = {"content-type": "application/json"} if body else {}
                answer = await client.request(method, url, content=body, headers=kind)
            except (httpx.InvalidURL, UnicodeError, ValueError):
                continue
            finally:
                watch.on = False
            statuses[answer.status_code] += 1
            if CANARY in answer.text or "root:x:0" in answer.text:
                leaks.append(watch.now)
            if answer.status_code >= 500 and answer.status_code != 503:
                leaks.append(f"{watch.now} {answer.status_code} {answer.text[:200]}")
    return {
        "requests": sum(statuses.values()), "statuses": statuses, "escapes": watch.escapes[:20], "leaks": leaks[:20],
        "connections": watch.connections[:20], "fields": len(fields),
    }  # fmt: skip


def request_of(name: str, field: str, text: str) -> tuple[str, httpx.URL, str]:
    """Method, address and body of a request with the text in one field."""
    method, path = find_route(name)
    model, row = OPERATIONS[name].request, OPERATIONS[name]
    fields = {name: "x" for name, info in model.model_fields.items() if info.is_required()} | {
        field: given_with(field, text)
    }
    for local_name in local_fields(model) - {field}:
        fields.pop(local_name, None)
    for part in [part[1:-1] for part in path.split("/") if part.startswith("{")]:
        path = path.replace(f"{{{part}}}", quote(str(fields.pop(part, "x")), safe="/" if len(text) % 2 else ""))
    if method in ("GET", "DELETE"):
        return method, httpx.URL(path).copy_merge_params({key: str(value) for key, value in fields.items()}), ""
    body = fields.get(row.body, fields) if row.body else fields
    rest = "" if not row.body else "?" + "&".join(f"{k}={quote(str(v))}" for k, v in fields.items() if k != row.body)
    return method, httpx.URL(f"{path}{rest.removesuffix('?')}"), json.dumps(body)


def main() -> None:
    folder, first, count = Path(sys.argv[1]), *map(int, sys.argv[2:4])
    print(json.dumps(anyio.run(attack, folder, first, count)))


if __name__ == "__main__":
    main()
