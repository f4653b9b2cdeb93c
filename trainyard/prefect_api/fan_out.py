"""Pieces of a node's work as Prefect tasks on a task runner: threads, processes, Dask or Ray (setting `fan_out`).

Scheduling, retries of a piece whose worker died, and processes on other hosts are the engine's. What is here: a runner
is started for one node's pieces and stopped after them; a bounded number is submitted at a time; a piece that its
engine gave up is tried again on a fresh runner, at last alone, so that one that ends its worker each time is named.

A piece's task carries paths, ranges and the node's settings. Its context is not that of the chain's flow, which has the
chain and is pickled: it names the run, so that the pieces are among the run's tasks, and nothing else. Workers of a
cluster that runs have the address and the credential of Prefect's API in their own environment.
"""

from __future__ import annotations

import queue
import socket
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import Context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from httpx import HTTPError
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext, SettingsContext, get_settings_context
from prefect.exceptions import PrefectHTTPStatusError
from prefect.results import ResultStore
from prefect.settings import Profile, Settings

from trainyard.app.plan.workers import describe_differences, list_versions
from trainyard.data.pieces.contract import Piece, open_piece, run_piece
from trainyard.data.pieces.table import KINDS
from trainyard.errors import TrainyardError, Unavailable
from trainyard.json_types import JsonObject
from trainyard.prefect_api.runners import ENGINES, Runner
from trainyard.settings import FanOutSettings

PIECE_TASK = "piece"
"""Name of the task of a piece, which is not a node."""
ATTEMPTS = 3
"""Runners on which a piece is tried; on each, the engine itself repeats a piece whose worker died."""
HEARTBEAT_S = 1.0
"""How often a caller that waits is asked whether it should."""
TURN = threading.Lock()
"""Nodes of one process take turns: each uses all workers, and Ray has one connection a process."""


@flow(name="pieces")
def pieces() -> None:
    """Run the pieces in place of the chain's flow."""


@task(name=PIECE_TASK, cache_policy=NO_CACHE, persist_result=False, log_prints=False)
def do_piece(kind: str, piece: Piece, shared: str, versions: Mapping[str, str]) -> JsonObject:
    """Do a piece on its worker. Raises `Unavailable` (`E-UNAVAILABLE`) on one with other versions."""
    require_versions(versions)
    return run_piece(KINDS[kind], piece, Path(shared))


def require_versions(versions: Mapping[str, str]) -> None:
    """Raise `Unavailable` (`E-UNAVAILABLE`) where this worker would leave other bytes."""
    host = socket.gethostname()
    if differences := describe_differences(versions, host, list_versions()):
        raise Unavailable(
            f"A worker has other versions than the run: {differences}.",
            why="It might leave other rows than one process would.",
            do="Install the same packages on the hosts of all workers, and restart the workers.",
        )


@dataclass
class PrefectFanOut:
    """Has the pieces of one node done; see the module."""

    settings: FanOutSettings
    node: str
    say: Callable[[str], None]
    """Gets what a user should know."""
    heartbeat: Callable[[], None]
    """Is called about once a second; raises when the node should stop."""

    @property
    def pieces(self) -> int:
        return self.settings.num_pieces

    def __call__(self, kind: str, pieces: Sequence[Piece], shared: Path) -> Generator[Path, None, None]:
        outcomes: dict[int, Any] = {}
        following = 0
        for number, outcome in self.collect(kind, pieces, str(shared)):
            outcomes[number] = outcome
            while following in outcomes:
                outcome = outcomes.pop(following)
                if isinstance(outcome, BaseException):
                    raise outcome
                following += 1
                yield open_piece(shared, outcome)

    def collect(self, kind: str, pieces: Sequence[Piece], shared: str) -> Iterator[tuple[int, Any]]:
        """Yield the number and the outcome of each piece as it ends; an error is an outcome."""
        left = list(range(len(pieces)))
        for attempt in range(1, ATTEMPTS + 1):
            groups, left = ([left] if attempt < ATTEMPTS else [[number] for number in left]), []
            causes = list[Exception]()
            for group in groups:
                for number, outcome in self.run_group(kind, {number: pieces[number] for number in group}, shared):
                    if not isinstance(outcome, Lost):
                        yield number, outcome
                    elif attempt < ATTEMPTS:
                        left.append(number)
                        causes.append(outcome.cause)
                    else:
                        yield number, self.describe_loss(pieces[number], number, outcome.cause)
            if not left:
                return
            left.sort()
            self.say(f"{len(left)} pieces were lost and are done again: {type(causes[0]).__name__}: {causes[0]}")

    def describe_loss(self, piece: Piece, number: int, cause: Exception) -> TrainyardError:
        part = ", ".join(f"{name} {value[0]} to {value[1]}" for name, value in piece.items() if isinstance(value, list))
        return TrainyardError(
            f"Piece {number} of {self.node} ({part}) did not end on {ATTEMPTS} clusters, at last alone.",
            why=f"{self.settings.engine} says: {type(cause).__name__}: {cause}",
            do="Look for a killed worker in the log of its host (memory, most often); smaller pieces (fan_out.pieces) "
            "need less of it.",
            code="E-CRASH",
        )

    def run_group(self, kind: str, pieces: Mapping[int, Piece], shared: str) -> Iterator[tuple[int, Any]]:
        """Run pieces on a runner of their own; yields `Lost` for one whose worker or cluster is gone."""
        engine, waiting, futures = ENGINES[self.settings.engine], deque(pieces), dict[int, Any]()
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        common = {"kind": kind, "shared": shared, "versions": list_versions()}
        with TURN, connect(self.settings) as runner:
            context = Context()
            run = FlowRunContext.get()
            is_remote = self.settings.address is not None
            context.run(enter_piece_context, get_settings_context(), run, runner, is_remote=is_remote)
            try:
                while waiting or futures:
                    while waiting and len(futures) < self.settings.num_workers + 1:
                        number = waiting.popleft()
                        named = do_piece.with_options(task_run_name=f"{self.node}-piece-{number}")
                        parameters = {**common, "piece": pieces[number]}
                        try:
                            future = context.run(runner.submit, named, parameters)
                        except Exception as cause:  # a pool that is broken, a client that is closed
                            yield number, Lost(cause)
                            continue
                        futures[number] = future
                        future.add_done_callback(lambda _, number=number: ended.put(number))
                    try:
                        number = ended.get(timeout=HEARTBEAT_S)
                    except queue.Empty:
                        self.heartbeat()
                        if engine.is_lost(runner):
                            yield from (
                                (n, Lost(ConnectionError("the scheduler is gone"))) for n in [*futures, *waiting]
                            )
                            return
                        continue
                    yield number, settle(futures.pop(number))
            finally:
                for future in futures.values():
                    engine.give_up(future)


@dataclass(frozen=True)
class Lost:
    """Outcome of a piece whose worker or cluster is gone."""

    cause: Exception


def settle(future: Any) -> Any:
    """Return what a piece left, its own error, or `Lost`."""
    try:
        return future.result(raise_on_failure=False)
    except (HTTPError, PrefectHTTPStatusError) as error:
        return Unavailable(
            "A worker could not report its piece to Prefect's API.",
            why=f"{type(error).__name__}: {str(error).splitlines()[0]}",
            do="Start the workers with PREFECT_API_URL, and PREFECT_API_AUTH_STRING if the API has a password.",
            code="E-SERVER-UNREACHABLE",
        )
    except Exception as cause:  # every engine has classes of its own for a worker that died
        return Lost(cause)


@contextmanager
def connect(settings: FanOutSettings) -> Iterator[Runner]:
    """Start or reach the runner. Raises `Unavailable` (`E-SERVER-UNREACHABLE`)."""
    with ExitStack() as stack:
        try:
            runner = stack.enter_context(ENGINES[settings.engine].start(settings))
        except Exception as error:  # of the engine's own classes
            raise Unavailable(
                f"The pieces have no workers: {settings.description} did not start or answer.",
                why=f"{type(error).__name__}: {error}",
                do="Start the cluster, or correct fan_out in trainyard.toml.",
                code="E-SERVER-UNREACHABLE",
            ) from error
        yield runner


def enter_piece_context(
    current: SettingsContext, run: FlowRunContext | None, runner: Runner, *, is_remote: bool
) -> None:
    """Enter what the tasks of pieces see of the run, in the empty context of the caller, which ends with it.

    On other hosts Prefect's settings are those of the worker: settings of which none is set are filled there.
    """
    profile, settings = current.profile, current.settings
    if is_remote:
        profile, settings = Profile(name=profile.name, env={}), Settings.model_construct()
    SettingsContext(profile=profile, settings=settings).__enter__()
    if run is not None and run.flow_run is not None:
        FlowRunContext(
            flow=pieces,
            flow_run=FlowRun(id=run.flow_run.id, flow_id=run.flow_run.flow_id, name=run.flow_run.name),
            task_runner=runner,
            client=run.client,
            parameters={},
            result_store=ResultStore(),
            persist_result=False,
        ).__enter__()
