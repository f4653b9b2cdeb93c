"""The hosts of a training meet before anything is started: all have arrived, and they are alike. Imports no torch.

The first host listens at the port of the rendezvous, which torchrun or DeepSpeed uses afterwards. Every other one sends
its number and facts (versions, digest of the base, settings), and waits. The first answers all of them at once with the
same verdict: they begin, or each of them fails with the same reason. torchrun alone would wait for a missing host
without its name, and start hosts that do not compute the same.

    {"call": "trainyard hosts", "number", "host", "time", "facts"}     one line of JSON from each host
    {"warnings": […]} or {"error": {kind, code, what, why, do}}        one line back

The sockets have no token: like torchrun's own they belong on loopback or on a private network.
"""

from __future__ import annotations

import ipaddress
import select
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from trainyard.errors import InvalidInput, TrainyardError, from_fields
from trainyard.json_types import JsonObject

HOSTS_FILE = "hosts.json"
"""What a host of several says of itself, in the folder of its job."""
CALL = "trainyard hosts"
HELLO = {"number": (int,), "host": (str,), "time": (int, float), "facts": (dict,)}
"""Fields of a host's line, with their types."""
MAX_LINE = 1 << 16
POLL_S, LINE_S, MARGIN_S = 0.2, 5.0, 30.0
MAX_DIFFERENCES = 8
"""Differences of the hosts in a message."""
MAX_SKEW_S = 60.0
"""Difference of two clocks above which hosts warn: times in their logs cannot be compared."""
Stop = Callable[[], bool]


class StopRequested(Exception):
    """The host was asked to stop while it waited for the others."""


@dataclass(frozen=True)
class Host:
    """A host of a training: its number, the address where all meet, and what all need to have in common."""

    number: int
    names: tuple[str, ...]
    """Of all hosts, by number; as in `launch.hosts`, or `host 1` where they have no names."""
    address: str
    port: int
    wait_s: float
    facts: Mapping[str, str]
    name: str = field(default_factory=socket.gethostname)

    @property
    def hello(self) -> JsonObject:
        return {
            "call": CALL, "number": self.number, "host": self.name, "time": time.time(), "facts": dict(self.facts),
        }  # fmt: skip


def read_host(folder: Path) -> Host | None:
    """Return what `prepare` has left in the folder of a job; None for a training on one host."""
    path = folder / HOSTS_FILE
    if not path.is_file():
        return None
    fields = orjson.loads(path.read_bytes())
    return Host(**{**fields, "names": tuple(fields["names"])})


def meet_hosts(host: Host, stop: Stop) -> list[str]:
    """Wait until all hosts are there and alike; returns warnings, the same on every host.

    Raises `InvalidInput` (`E-LAUNCH`) on every host that has arrived, with the names of those that have not, or with
    what differs; `StopRequested`.
    """
    verdict = lead_hosts(host, stop) if host.number == 0 else follow_first_host(host, stop)
    if "error" in verdict:
        raise from_fields(verdict["error"])
    warnings: list[str] = verdict["warnings"]
    return warnings


# The first host


def lead_hosts(host: Host, stop: Stop) -> JsonObject:
    """Collect the other hosts, and send each of them the verdict that is returned."""
    arrived: dict[int, tuple[socket.socket, JsonObject]] = {}
    with listen(host) as server:
        try:
            verdict = collect_hosts(host, server, arrived, stop)
            for connection, _ in arrived.values():
                with suppress(OSError):  # that host has left; the launcher notices it
                    connection.sendall(orjson.dumps(verdict) + b"\n")
        finally:
            wait_until_left([connection for connection, _ in arrived.values()])
    return verdict


def listen(host: Host) -> socket.socket:
    """Listen on loopback where the hosts meet there, else on all interfaces, as torchrun does.

    Raises `InvalidInput` (`E-LAUNCH`) for a port that is taken.
    """
    family, _, _, _, found = socket.getaddrinfo(host.address, host.port, type=socket.SOCK_STREAM)[0]
    is_local = ipaddress.ip_address(str(found[0]).partition("%")[0]).is_loopback
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((found[0] if is_local else "", host.port))
    except OSError as error:
        server.close()
        raise InvalidInput(
            f"The first host, {host.name}, cannot listen at port {host.port}: {error.strerror or error}.",
            why="Another program has the port, or two hosts have the number 0.",
            do="Use another port in launch.rendezvous, and give each host its own node_rank.",
            code="E-LAUNCH",
        ) from error
    server.listen()
    server.settimeout(POLL_S)
    return server


def collect_hosts(
    host: Host, server: socket.socket, arrived: dict[int, tuple[socket.socket, JsonObject]], stop: Stop
) -> JsonObject:
    """Take the other hosts in until all have arrived, or there is a reason against them."""
    deadline, size = time.monotonic() + host.wait_s, len(host.names)
    while True:
        for number in [number for number, (connection, _) in arrived.items() if has_left(connection)]:
            arrived.pop(number)[0].close()  # it was stopped while it waited, and may be started again
        if len(arrived) == size - 1:
            break
        if stop():
            raise StopRequested
        if time.monotonic() > deadline:
            return error_verdict(missing_error(host, set(arrived)))
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue
        hello = read_hello(connection)
        if hello is None:
            connection.close()  # not a host
            continue
        number = int(hello["number"])
        earlier = arrived.pop(number, None)
        if earlier is not None and has_left(earlier[0]):
            earlier[0].close()
            earlier = None
        arrived[number] = (connection, hello)
        if earlier is not None or not 0 < number < size:
            arrived |= {-1: earlier} if earlier is not None else {}  # it hears the reason, too
            return error_verdict(number_error(host, number, hello, earlier and earlier[1]))
    hellos = [hello for _, (_, hello) in sorted(arrived.items())]
    differences = list_differences(host, hellos)
    return error_verdict(unlike_error(differences)) if differences else {"warnings": list_skews(host, hellos)}


def read_hello(connection: socket.socket) -> JsonObject | None:
    """Return the line of a host; None for anything else."""
    line = read_line(connection, LINE_S)
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(value, dict) or value.get("call") != CALL:
        return None
    is_whole = all(type(value.get(name)) in kinds for name, kinds in HELLO.items())
    return value | {"here": time.time()} if is_whole else None


def read_line(connection: socket.socket, seconds: float, stop: Stop | None = None) -> bytes:
    """Return what comes until the end of a line, or of the connection; empty when the time is over."""
    deadline, data = time.monotonic() + seconds, b""
    connection.settimeout(POLL_S)
    while not data.endswith(b"\n") and len(data) <= MAX_LINE and time.monotonic() < deadline:
        if stop is not None and stop():
            raise StopRequested
        try:
            piece = connection.recv(MAX_LINE)
        except TimeoutError:
            continue
        except OSError:
            return b""
        if not piece:
            return data
        data += piece
    return data if data.endswith(b"\n") else b""


def has_left(connection: socket.socket) -> bool:
    """Return whether a host that waits has closed its connection: it sends nothing."""
    return bool(select.select([connection], [], [], 0)[0])


def wait_until_left(connections: list[socket.socket]) -> None:
    """Close after the other side, so that the port is free at once for the launcher."""
    for connection in connections:
        read_line(connection, LINE_S)
        connection.close()


def list_differences(host: Host, hellos: list[JsonObject]) -> list[str]:
    """Return every fact in which a host differs from the first one."""
    return [
        f"{hello['host']} (number {hello['number']}) has {name} {hello['facts'].get(name, 'none')}, "
        f"and {host.name} {value}"
        for hello in hellos
        for name, value in host.facts.items()
        if hello["facts"].get(name) != value
    ]


def list_skews(host: Host, hellos: list[JsonObject]) -> list[str]:
    """Return the hosts whose clocks are far from that of the first one."""
    skews = [(hello, float(hello["time"]) - float(hello["here"])) for hello in hellos]
    return [
        f"The clock of {hello['host']} (number {hello['number']}) is {abs(skew):.0f} s "
        f"{'ahead of' if skew > 0 else 'behind'} that of {host.name}: times in their logs cannot be compared."
        for hello, skew in skews
        if abs(skew) > MAX_SKEW_S
    ]


# Every other host


def follow_first_host(host: Host, stop: Stop) -> JsonObject:
    """Send this host's facts to the first one, and return its verdict. Raises `InvalidInput` (`E-LAUNCH`)."""
    deadline, last = time.monotonic() + host.wait_s, "nobody listens there"
    while time.monotonic() < deadline:
        if stop():
            raise StopRequested
        try:
            with socket.create_connection((host.address, host.port), LINE_S) as connection:
                connection.sendall(orjson.dumps(host.hello) + b"\n")
                line = read_line(connection, host.wait_s + MARGIN_S, stop)
        except OSError as error:
            last = error.strerror or str(error)
            time.sleep(POLL_S)
            continue
        if not line:  # it has left without a verdict, and may be started again
            last = "it left while the hosts gathered"
            time.sleep(POLL_S)
            continue
        return read_verdict(host, line)
    raise InvalidInput(
        f"The first host, {host.address}:{host.port}, has not answered {host.name} within {host.wait_s:g} s.",
        why=f"The last attempt: {last}.",
        do="Start the job on that host, and let this one reach its port; launch.wait_s is how long hosts wait.",
        code="E-LAUNCH",
    )


def read_verdict(host: Host, line: bytes) -> JsonObject:
    try:
        verdict = orjson.loads(line)
    except orjson.JSONDecodeError:
        verdict = None
    if isinstance(verdict, dict) and verdict.keys() & {"error", "warnings"}:
        return verdict
    raise InvalidInput(
        f"{host.address}:{host.port} is not the first host of this training.",
        why=f"It answers {line[:60]!r}.",
        do="Correct launch.rendezvous, or use a port that no other program has.",
        code="E-LAUNCH",
    )


# Reasons


def error_verdict(error: TrainyardError) -> JsonObject:
    return {"error": {"kind": type(error).__name__, **error.as_dict()}}


def missing_error(host: Host, arrived: set[int]) -> InvalidInput:
    missing = [f"{name} (number {number})" for number, name in enumerate(host.names) if number not in {0, *arrived}]
    return InvalidInput(
        f"{len(missing)} of {len(host.names)} hosts did not arrive within {host.wait_s:g} s: {', '.join(missing)}.",
        why=f"{host.name} waited for them at port {host.port}.",
        do="Start the same job on each host with its own number, and let it reach that port; launch.wait_s is how "
        "long hosts wait.",
        code="E-LAUNCH",
    )


def number_error(host: Host, number: int, hello: JsonObject, earlier: JsonObject | None) -> InvalidInput:
    """Two hosts with one number, or a number that no host has."""
    size = len(host.names)
    what = (
        f"Two hosts have the number {number}: {earlier['host']} and {hello['host']}."
        if earlier is not None
        else f"The host {hello['host']} has the number {number}, and the others are numbered from 1 to {size - 1}."
    )
    return InvalidInput(
        what, why=f"{host.name} leads {size} hosts.", do="Give each host its own node_rank.", code="E-LAUNCH"
    )


def unlike_error(differences: list[str]) -> InvalidInput:
    """Return the error of hosts that differ: the first difference with its host and both values, then the others."""
    others = [
        *differences[1:MAX_DIFFERENCES],
        *([f"{len(differences) - MAX_DIFFERENCES} more"] if differences[MAX_DIFFERENCES:] else []),
    ]
    return InvalidInput(
        f"The hosts are not alike: {differences[0]}.",
        why="They would not compute the same." + (f" Also: {'; '.join(others)}." if others else ""),
        do="Start the same job on every host, with the same versions and the same base model.",
        code="E-LAUNCH",
    )
