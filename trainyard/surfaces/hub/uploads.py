"""Uploads of large files by the LFS batch API: one request, or parts that are put together.

    POST /{repo}.git/info/lfs/objects/batch    what has to be uploaded, with signed links
    PUT  /lfs/upload/{grant}                   a whole content
    PUT  /lfs/part/{grant}/{number}            a part, in any order, again if need be
    POST /lfs/complete/{grant}                 the parts are put together
    POST /lfs/verify/{grant}                      whether it is stored

Clients send no token with the links: a link is signed for one content of one tenant, its length and a day. Room is
reserved when the first bytes come. A content becomes visible when its length and its SHA-256 are right.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import secrets
import shutil
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import anyio.to_thread
import orjson
from starlette.requests import Request
from starlette.responses import Response

from trainyard.errors import Denied, InvalidInput, TrainyardError, Unavailable
from trainyard.json_types import JsonObject
from trainyard.stores.repositories.names import SHA256, Kind
from trainyard.stores.repositories.repository import Repositories
from trainyard.stores.repositories.storage import Staging
from trainyard.stores.whole import BLOCK_BYTES
from trainyard.surfaces.hub.replies import STATUS, reply_json
from trainyard.surfaces.hub.requests import Call, read_body, receive_file

LINK_S = 86_400.0
PART_BYTES = 32 << 20
MOST_PARTS = 1000
MOST_OBJECTS = 1000
"""In one batch."""
MOST_FILE_BYTES = 5 << 40
LFS_TYPE = "application/vnd.git-lfs+json"


@dataclass(frozen=True)
class Grant:
    """Permission to upload one content."""

    tenant: str
    sha256: str
    size: int
    expires: float

    @property
    def part_bytes(self) -> int:
        return max(PART_BYTES, math.ceil(self.size / MOST_PARTS))

    @property
    def parts(self) -> int:
        return math.ceil(self.size / self.part_bytes)


class UploadRoutes:
    """Handlers of uploads."""

    def __init__(self, repositories: Repositories, staging: Staging) -> None:
        self.repositories, self.staging = repositories, staging
        self.key = secrets.token_bytes(32)

    # Links

    def sign(self, grant: Grant) -> str:
        text = base64.urlsafe_b64encode(orjson.dumps(asdict(grant))).decode().rstrip("=")
        return f"{text}.{self.digest(text)}"

    def digest(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()

    def read_grant(self, word: str) -> Grant:
        """Return what a link permits. Raises `Denied` (`E-AUTH`) for one that is wrong or too old."""
        text, _, signature = word.partition(".")
        if hmac.compare_digest(self.digest(text).encode(), signature.encode()):
            grant = Grant(**orjson.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))
            if time.time() < grant.expires:
                return grant
        raise Denied("The link of this upload is wrong or too old.", do="Start the upload again.", code="E-AUTH")

    # Routes

    def offer(self, call: Call, kind: Kind = "models") -> Response:
        """Answer for each content: it is stored, or where to upload it, or why it is refused."""
        name = call.repository(kind, call.words[0], write=True)
        self.repositories.require(name)
        body = call.json()
        objects = body.get("objects")
        if body.get("operation") != "upload" or not isinstance(objects, list) or len(objects) > MOST_OBJECTS:
            raise InvalidInput(
                f"An LFS batch has the operation upload and at most {MOST_OBJECTS:,} objects.", code="E-JSON"
            )
        transfers = body.get("transfers") or ["basic"]
        base = str(call.request.base_url).rstrip("/")
        answers: list[JsonObject] = []
        offered = 0
        for entry in objects:
            answer = self.offer_object(name.tenant, entry, base, offered, "multipart" in transfers)
            offered += answer["size"] if "actions" in answer else 0
            answers.append(answer)
        return reply_json({"transfer": "basic", "objects": answers}, headers={"content-type": LFS_TYPE})

    def offer_dataset(self, call: Call) -> Response:
        return self.offer(call, "datasets")

    def offer_object(self, tenant: str, entry: object, base: str, offered: int, in_parts: bool) -> JsonObject:
        """Return the answer for one content; `offered` are the bytes of those before it."""
        sha256, size = parse_object(entry)
        facts: JsonObject = {"oid": sha256, "size": size}
        if self.repositories.has(tenant, sha256, size):
            return facts
        try:
            self.repositories.quotas.require_room(tenant, offered + size)
        except TrainyardError as error:
            message = " ".join((error.what, error.why, error.do))
            return {**facts, "error": {"code": STATUS[type(error)], "message": message}}
        grant = Grant(tenant, sha256, size, time.time() + LINK_S)
        word = self.sign(grant)
        verify = {"href": f"{base}/lfs/verify/{word}", "header": {}}
        if not in_parts or size <= PART_BYTES:
            return {**facts, "actions": {"upload": {"href": f"{base}/lfs/upload/{word}"}, "verify": verify}}
        header = {f"{number}": f"{base}/lfs/part/{word}/{number}" for number in range(1, grant.parts + 1)}
        upload = {
            "href": f"{base}/lfs/complete/{word}", "header": {"chunk_size": f"{grant.part_bytes}", **header},
        }  # fmt: skip
        return {**facts, "actions": {"upload": upload, "verify": verify}}

    async def take_whole(self, request: Request, words: tuple[str, ...]) -> Response:
        """Store a content that comes in one request."""
        grant = self.read_grant(words[0])
        require_length(request, grant.size)
        path = self.staging.root / f"{grant.sha256}.{secrets.token_hex(8)}"
        with ExitStack() as exit_stack:
            exit_stack.callback(path.unlink, missing_ok=True)
            store = await anyio.to_thread.run_sync(
                exit_stack.enter_context, self.repositories.reserving(grant.tenant, {grant.sha256: grant.size})
            )
            require_digest(await receive_file(request, path, grant.size), grant)
            await anyio.to_thread.run_sync(store, grant.sha256, path)
        return reply_json({})

    async def take_part(self, request: Request, words: tuple[str, ...]) -> Response:
        """Keep one part. Its ETag is its SHA-256."""
        grant, number = self.read_grant(words[0]), int(words[1])
        if not 1 <= number <= grant.parts:
            raise InvalidInput(f"The upload has the parts 1 to {grant.parts}.", code="E-PARAMETER")
        size = min(grant.part_bytes, grant.size - (number - 1) * grant.part_bytes)
        require_length(request, size)
        folder = self.folder(words[0])
        if not folder.exists():
            await anyio.to_thread.run_sync(self.begin, folder, grant)
        path = folder / f"{number}.{secrets.token_hex(8)}"
        try:
            digest = await receive_file(request, path, size)
            path.replace(folder / f"{number}")
        finally:
            path.unlink(missing_ok=True)
        await anyio.to_thread.run_sync(self.repositories.quotas.extend, grant.tenant, grant.sha256, grant.size)
        return Response(status_code=200, headers={"etag": f'"{digest}"'})

    def begin(self, folder: Path, grant: Grant) -> None:
        """Reserve room and make the folder of the parts, for the first part that comes."""
        quotas = self.repositories.quotas
        reserved = quotas.reserve(grant.tenant, {grant.sha256: grant.size})
        try:
            folder.mkdir()
        except FileExistsError:  # another part was faster, and its reservation is enough
            quotas.settle(grant.tenant, dict.fromkeys(reserved, False))

    async def complete(self, request: Request, words: tuple[str, ...]) -> Response:
        """Put the parts together."""
        grant, folder = self.read_grant(words[0]), self.folder(words[0])
        await read_body(request)
        await anyio.to_thread.run_sync(self.join, folder, grant)
        return reply_json({})

    def join(self, folder: Path, grant: Grant) -> None:
        """Store the content of all parts. Raises `InvalidInput` (`E-BODY-LENGTH`, `E-CORRUPT`)."""
        if self.repositories.has(grant.tenant, grant.sha256, grant.size):  # the client asks again
            shutil.rmtree(folder, ignore_errors=True)
            return
        missing = [f"{number}" for number in range(1, grant.parts + 1) if not (folder / f"{number}").exists()]
        if missing:
            raise InvalidInput(f"Parts are missing: {', '.join(missing[:10])}.", code="E-BODY-LENGTH")
        joining = folder.with_name(f"{folder.name}.joining")
        try:
            folder.rename(joining)
        except OSError as error:
            raise Unavailable("The parts are being put together.", do="Ask again.", code="E-UNAVAILABLE") from error
        is_new = False
        try:
            require_digest(join_parts(joining, grant.parts), grant)
            is_new = self.repositories.store_reserved(grant.tenant, grant.sha256, joining / "whole", grant.size)
        finally:
            shutil.rmtree(joining, ignore_errors=True)
            self.repositories.quotas.settle(grant.tenant, {grant.sha256: is_new})

    async def verify(self, request: Request, words: tuple[str, ...]) -> Response:
        """Answer whether a content is stored. Raises `InvalidInput` (`E-NOT-FOUND`)."""
        await read_body(request)
        grant = self.read_grant(words[0])
        if not await anyio.to_thread.run_sync(self.repositories.has, grant.tenant, grant.sha256, grant.size):
            raise InvalidInput("The content is not stored.", do="Upload it again.", code="E-NOT-FOUND")
        return reply_json({})

    def folder(self, word: str) -> Path:
        return self.staging.root / hashlib.sha256(word.encode()).hexdigest()


def join_parts(folder: Path, parts: int) -> str:
    """Write the parts to the file `whole`, removing each, and return its SHA-256."""
    hasher = hashlib.sha256()
    with (folder / "whole").open("wb") as stream:
        for path in (folder / f"{number}" for number in range(1, parts + 1)):
            with path.open("rb") as part:
                while block := part.read(BLOCK_BYTES):
                    hasher.update(block)
                    stream.write(block)
            path.unlink()
    return hasher.hexdigest()


def parse_object(entry: object) -> tuple[str, int]:
    """Return the SHA-256 and the size of an object of a batch. Raises `InvalidInput` (`E-JSON`)."""
    fields = entry if isinstance(entry, dict) else {}
    sha256, size = fields.get("oid"), fields.get("size")
    if not (
        isinstance(sha256, str) and SHA256.fullmatch(sha256) and type(size) is int and 0 <= size <= MOST_FILE_BYTES
    ):
        raise InvalidInput("An LFS object has a SHA-256 as oid, and a size.", code="E-JSON")
    return sha256, size


def require_length(request: Request, size: int) -> None:
    """Raises `InvalidInput` (`E-BODY-LENGTH`) for a body that says another length."""
    length = request.headers.get("content-length")
    if length is not None and length != str(size):
        raise InvalidInput(f"The body has {length[:20]} bytes, not {size:,}.", code="E-BODY-LENGTH")


def require_digest(digest: str, grant: Grant) -> None:
    """Raises `InvalidInput` (`E-CORRUPT`) for a content that is not the one of the link."""
    if digest != grant.sha256:
        raise InvalidInput(
            f"The content has the SHA-256 {digest}, not {grant.sha256}.", why="It was changed on the way, or while it "
            "was read.", do="Upload it again.", code="E-CORRUPT",
        )  # fmt: skip
