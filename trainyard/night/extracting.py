"""Documents into the graph: a bounded number in flight, batches written graph first and ledger second.

The model reads a document only once: a content that the ledger's current entries are based on is not read again under
any name; a second name of a content is written to the graph without the model. An answer that does not conform puts
its document into quarantine with the reason, and so does a request that the server refuses as wrong: the same request
would be refused every night. The server's own failures leave a document for the next night, and end the phase when
nothing gets through any more.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from trainyard.errors import InvalidInput, Unavailable
from trainyard.night import streams
from trainyard.night.deps import NightDeps
from trainyard.night.planner import Planner
from trainyard.night.report import Quarantined
from trainyard.serve.client.client import ServerRefused
from trainyard.serve.extraction.extraction import Complete, Extraction, Thinking, extract, version
from trainyard.spec.night import NightConfig, Serving
from trainyard.stores.documents import DocumentKey, Entry
from trainyard.stores.files import make_folders, translate_os_errors
from trainyard.stores.graph.contract import Graph
from trainyard.stores.graph.facts import Mutation, document_key
from trainyard.stores.schema import add_version, strip_version
from trainyard.stores.whole import write_whole

Slot = tuple[str, str]
"""(stream, name) of a document."""
INTENT_FILE = "intent.json"
BATCH, BATCH_S = 16, 5.0
"""Documents, or seconds, after which answers are written: a write is one transaction and one fsync."""
MOST_PASSES = 5
"""Passes over the streams in one night. A document whose duplicate was edited is found in the second."""
OF_THE_DOCUMENT = frozenset({400, 413, 422})
"""Statuses that are about the request: a prompt that is too long, or that the server cannot use."""
HOPELESS = 3
"""Consecutive failures, for each slot, after which the server counts as gone."""


@dataclass
class PhaseTally:
    """Counts of phase 1."""

    done: int = 0
    new_entities: int = 0
    changed_entities: int = 0
    new_relations: int = 0
    quarantined: list[Quarantined] = field(default_factory=list)


class Intents:
    """Intended writes to the graph, noted before: `<root>/intent.json`.

    After a crash between graph and ledger the graph may contain an edit that the ledger does not know. If the edit is
    then taken back, ledger and document agree and only this note says that the graph has to be written again.
    """

    def __init__(self, world: NightDeps) -> None:
        self.world, self.path = world, world.root / INTENT_FILE
        noted = read_intent(world.files.read(self.path), self.path) if world.files.exists(self.path) else []
        self.open = {(stream, name): sha256 for stream, name, sha256 in noted}

    def list_unsettled(self) -> dict[Slot, str]:
        """Slot -> content of the documents whose write was begun and not recorded."""
        status = self.world.stores.ledger.status
        entries = {slot: (sha256, status(slot[1], slot[0])) for slot, sha256 in self.open.items()}
        return {
            slot: sha256
            for slot, (sha256, entry) in entries.items()
            if entry is None or entry.key.content_sha256 != sha256
        }

    def begin(self, contents: Iterable[streams.Content]) -> None:
        """Note a batch durably, with open parts of earlier batches that it does not write itself."""
        batch = {(content.document.stream, content.document.name): content.key.content_sha256 for content in contents}
        self.write({**self.list_unsettled(), **batch})

    def quarantined(self, documents: Iterable[streams.StreamDocument]) -> None:
        """Forget documents that can no longer be read: their facts stay in the graph."""
        slots = {(document.stream, document.name) for document in documents}
        if slots & self.open.keys():
            self.write({slot: sha256 for slot, sha256 in self.open.items() if slot not in slots})

    def write(self, slots: dict[Slot, str]) -> None:
        self.open = slots
        noted = [[*slot, sha256] for slot, sha256 in slots.items()]
        with translate_os_errors("The night's intent was not written"):
            make_folders(self.world.files, self.path.parent)
            write_whole(self.world.files, self.path, orjson.dumps(add_version("intent", {"open": noted})))


def read_intent(data: bytes, where: Path) -> list[list[str]]:
    """[stream, name, content] of each document; the earlier form is the list alone."""
    value = orjson.loads(data)
    noted: list[list[str]] = value if isinstance(value, list) else strip_version("intent", value, where)["open"]
    return noted


def describe_version(serving: Serving) -> str:
    """Prompt, schema and model as the ledger remembers them."""
    return version(serving.model, choose_thinking(serving))


def choose_thinking(serving: Serving) -> Thinking:
    return Thinking(serving.thinking, serving.thinking_tokens)


def survey(config: NightConfig, world: NightDeps) -> tuple[list[streams.StreamDocument], list[streams.Content]]:
    """Return the documents that wait for the model, stream by stream; and those whose content is known by another name.

    The current content of the first is not in the ledger. The second need no model: their content is done under
    a name that keeps it (a name that is about to get another content keeps nothing), so that only the name is written;
    or they are parts that a file no longer has.
    """
    current = {(entry.key.stream, entry.name): entry for entry in world.stores.ledger.current()}
    doubtful = Intents(world).list_unsettled()
    contents = {(content.key.stream, content.document.name): content for content in present(config, world)}
    changed = {slot for slot, content in contents.items() if slot not in current or current[slot].key != content.key}
    removed_parts = find_gone_parts(contents, current, doubtful, describe_version(config.serving))
    changed |= doubtful.keys() | removed_parts.keys()
    done_keys = {entry.key for slot, entry in current.items() if entry.status == "done" and slot not in changed}
    unreadable = {entry.key for entry in current.values() if entry.status == "quarantined"}
    waiting: dict[DocumentKey, streams.StreamDocument] = {}
    same: list[streams.Content] = []
    for slot, content in contents.items():
        if slot in doubtful or (slot in changed and content.key not in done_keys | unreadable):
            waiting.setdefault(content.key, content.document)
        elif slot in changed and content.key in done_keys:
            same.append(content)
    return list(waiting.values()), same + list(removed_parts.values())


def find_gone_parts(
    contents: Mapping[Slot, streams.Content], current: Mapping[Slot, Entry], doubtful: Iterable[Slot], version: str
) -> dict[Slot, streams.Content]:
    """Return the parts that a readable file no longer has, and of which the graph may still have facts.

    The ledger knows of them; or only the intent does, after a crash between the graph and the ledger.
    """
    readable = {slot for slot, content in contents.items() if not content.unreadable}
    stated = {slot for slot, entry in current.items() if entry.key.content_sha256 != streams.GONE}
    return {
        (stream, name): streams.build_gone_part(stream, name, version)
        for stream, name in sorted((stated | set(doubtful)) - contents.keys())
        if (stream, streams.split_part_name(name)[0]) in readable
    }


def present(config: NightConfig, world: NightDeps) -> Iterator[streams.Content]:
    """Yield every document of the streams, read for the key of its content, without its text."""
    documents = streams.find_documents(config.streams, world.documents, world.files)
    for contents in build_reader(config, world).read_files(documents):
        yield from (replace(content, text="") for content in contents)


def name_again(
    config: NightConfig, world: NightDeps, graph: Graph, run: str, same: list[streams.Content]
) -> list[streams.StreamDocument]:
    """Let the graph know contents that it has under more names. Returns documents whose content it has lost.

    What such a name stated before is replaced, as by every edit. Doing it twice adds nothing.
    """
    keys = [
        document_key(config.tenant, content.key.stream, content.key.content_sha256, content.key.version)
        for content in same
    ]
    graph_keys = graph.has(keys) if keys else set()
    writer = Writer(config, world, graph, run)
    lost: dict[DocumentKey, streams.StreamDocument] = {}
    for key, content in zip(keys, same, strict=True):
        if key in graph_keys or content.key.content_sha256 == streams.GONE:
            writer.add(content, Extraction((), ()))
        else:
            lost.setdefault(content.key, content.document)
    writer.flush()
    return list(lost.values())


def build_reader(config: NightConfig, world: NightDeps) -> streams.DocumentReader:
    serving = config.serving
    return streams.DocumentReader(
        describe_version(serving),
        world.documents,
        world.files,
        serving.max_document_bytes,
        world.parse,
        world.server.window_chars,
    )


class Writer:
    """Collects what became of documents, and writes it: the graph first, then the ledger."""

    def __init__(self, config: NightConfig, world: NightDeps, graph: Graph, run: str) -> None:
        self.config, self.world, self.graph, self.run = config, world, graph, run
        self.tally, self.intents = PhaseTally(), Intents(world)
        self.pending: list[tuple[streams.Content, Extraction | None, str]] = []
        self.since = 0.0

    def add(self, content: streams.Content, extraction: Extraction | None, reason: str = "") -> None:
        """Note a document; `reason` says why it has no extraction."""
        if not self.pending:
            self.since = self.world.clock.monotonic()
        self.pending.append((content, extraction, reason))
        if len(self.pending) >= BATCH or self.world.clock.monotonic() - self.since > BATCH_S:
            self.flush()

    def flush(self) -> None:
        """One transaction of the graph, then one commit of the ledger; a crash between them adds nothing later."""
        if not self.pending:
            return
        batch, self.pending = self.pending, []
        good = [(content, extraction) for content, extraction, _ in batch if extraction is not None]
        self.world.at("night.graph.before")
        if good:
            self.intents.begin(content for content, _ in good)
        results = self.graph.mutate([self.mutation(*pair) for pair in good]) if good else []
        self.world.at("night.graph.after")
        self.world.stores.ledger.record_many(self.entry(*item) for item in batch)
        self.intents.quarantined(content.document for content, extraction, _ in batch if extraction is None)
        self.world.at("night.ledger.after")
        self.tally.done += len(good)
        for result in results:
            self.tally.new_entities += result.new_entities
            self.tally.changed_entities += result.changed_entities
            self.tally.new_relations += result.new_relations
        self.tally.quarantined += [
            Quarantined(stream=content.document.stream, name=content.document.name, reason=reason[:300])
            for content, extraction, reason in batch
            if extraction is None
        ]

    def mutation(self, content: streams.Content, extraction: Extraction) -> Mutation:
        document = content.document
        return Mutation(
            self.config.tenant, document.stream, document.name, content.key.content_sha256, content.key.version,
            extraction.entities, extraction.relations,
        )  # fmt: skip

    def entry(self, content: streams.Content, extraction: Extraction | None, reason: str) -> Entry:
        return Entry(
            key=content.key,
            name=content.document.name,
            status="quarantined" if extraction is None else "done",
            reason=reason,
            entities=len(extraction.entities) if extraction else 0,
            relations=len(extraction.relations) if extraction else 0,
            night=self.run,
        )


PROGRESS_S = 15.0
"""Least time between two lines about the progress of a night."""


class ReadingPace:
    """Progress of reading documents, and the time that is left."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now, self.done = now, 0
        self.started = self.last_line = now()

    def line(self, left: int) -> str:
        """Count a document; a line of text when the last one is long enough ago, else nothing."""
        self.done += 1
        at = self.now()
        if at - self.last_line < PROGRESS_S or at == self.started:
            return ""
        self.last_line = at
        rate = self.done / (at - self.started)
        time_left = f"about {duration(left / rate)} left" if left else "all asked"
        return f"documents: {self.done:,} of {self.done + left:,} read, {rate * 60:,.1f} a minute, {time_left}"


def duration(seconds: float) -> str:
    """`45 s`, `12 min` or `3 h 20 min`."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@dataclass
class PhaseReading:
    """A phase's reading: the queue, the plan, and whether the server still answers."""

    config: NightConfig
    world: NightDeps
    planner: Planner
    writer: Writer
    waiting: deque[streams.StreamDocument] = field(default_factory=deque)
    flying: int = 0
    failures: int = 0
    last_failure: Unavailable | None = None
    pace: ReadingPace = field(init=False)
    reader: streams.DocumentReader = field(init=False)

    def __post_init__(self) -> None:
        self.reader = build_reader(self.config, self.world)
        self.pace = ReadingPace(self.world.clock.monotonic)

    @property
    def hopeless(self) -> bool:
        return self.failures >= HOPELESS * self.config.serving.concurrency

    async def read_all(self) -> None:
        """Read the waiting documents while the budget lasts; then look at the streams again."""
        serving = self.config.serving
        async with self.world.server.completing(serving.concurrency, timeout_s=serving.timeout_s) as complete:
            for _ in range(MOST_PASSES):
                slots = min(serving.concurrency, len(self.waiting))
                await self.read_in_parallel(complete, slots)
                self.writer.flush()
                if self.hopeless and self.last_failure is not None:
                    raise self.last_failure
                if self.waiting or self.failures:
                    return
                again, same = survey(self.config, self.world)
                again += name_again(self.config, self.world, self.writer.graph, self.writer.run, same)
                if not again:
                    return
                self.waiting.extend(again)

    async def read_in_parallel(self, complete: Complete, slots: int) -> None:
        """Read that many at a time. After a permanent failure of one, the others are no longer written."""
        limit = self.planner.deadline + self.world.drain_s(self.config.window) - self.world.clock.monotonic()
        tasks = [asyncio.ensure_future(self.read_in_sequence(complete)) for _ in range(slots)]
        try:
            async with asyncio.timeout(max(0.0, limit)):
                await asyncio.gather(*tasks)
        except TimeoutError:
            self.world.say("documents in flight did not end in time; they wait for the next night")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def read_in_sequence(self, complete: Complete) -> None:
        while self.waiting and not self.hopeless and self.planner.admits(self.world.clock.monotonic()):
            document = self.waiting.popleft()
            try:
                content = self.reader.read(document)
            except FileNotFoundError:
                continue
            self.world.at("night.document.read")
            await self.ask(complete, content)
            if line := self.pace.line(len(self.waiting) + self.flying):
                self.world.say(line)

    async def ask(self, complete: Complete, content: streams.Content) -> None:
        """One document: extraction, quarantine, or back into the queue's end for another night."""
        if content.unreadable:
            self.writer.add(content, None, content.unreadable)
            return
        started = self.world.clock.monotonic()
        serving = self.config.serving
        self.flying += 1
        try:
            extraction = await extract(content.text, content.document.stream, complete, choose_thinking(serving))
        except InvalidInput as error:
            self.writer.add(content, None, error.why or error.what)
            return
        except Unavailable as error:
            if isinstance(error, ServerRefused) and error.status in OF_THE_DOCUMENT:
                self.failures = 0  # a server that refuses one document answers
                self.writer.add(content, None, f"the model server refused it with status {error.status}: {error.why}")
            else:
                self.failures, self.last_failure = self.failures + 1, error
            return
        finally:
            self.flying -= 1
        self.failures = 0
        self.world.at("night.document.answered")
        now = self.world.clock.monotonic()
        self.planner.note(now, now - started, len(self.waiting) + self.flying)
        self.writer.add(content, extraction)
