"""Hosts meet before a training: real sockets on loopback, each host on a thread."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

import pytest

from trainyard.compute.roll_call import Host, StopRequested, meet_hosts
from trainyard.compute.services import free_port
from trainyard.errors import InvalidInput

FACTS = {"python": "3.11", "trainyard": "1.0", "torch": "2.13.0", "base": "a", "settings": "s"}
Answer = Future[list[str]]


def make_hosts(count: int = 2, wait_s: float = 10) -> list[Host]:
    names, port = tuple(f"gpu-{letter}" for letter in "abc"[:count]), free_port()
    return [Host(number, names, "127.0.0.1", port, wait_s, FACTS, names[number]) for number in range(count)]


def meet(*hosts: Host, stop: Callable[[], bool] = lambda: False) -> list[Answer]:
    """What each host ends with; they start one after another."""
    with ThreadPoolExecutor(len(hosts)) as pool:
        answers = []
        for host in hosts:
            answers.append(pool.submit(meet_hosts, host, stop))
            time.sleep(0.05)
    return answers


def reasons(answers: list[Answer]) -> set[str]:
    """The errors of all hosts: each of them has one."""
    errors = [answer.exception() for answer in answers]
    assert all(isinstance(error, InvalidInput) and error.code == "E-LAUNCH" for error in errors), errors
    return {str(error) for error in errors}


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_hosts_that_are_alike_begin_in_any_order(order: tuple[int, ...]) -> None:
    hosts = make_hosts(3)
    answers = meet(*(hosts[number] for number in order))
    assert [answer.result() for answer in answers] == [[]] * 3
    with socket.socket() as launcher:  # its turn comes at once
        launcher.bind(("127.0.0.1", hosts[0].port))


@pytest.mark.parametrize("fact", FACTS)
def test_what_differs_is_said_on_every_host(fact: str) -> None:
    first, second, third = make_hosts(3)
    other = replace(third, facts={**FACTS, fact: "other"})
    (text,) = reasons(meet(first, second, other))
    assert f"gpu-c (number 2) has {fact} other, and gpu-a {FACTS[fact]}" in text


def test_a_host_that_does_not_arrive_is_named_on_every_other() -> None:
    first, second, _ = make_hosts(3, wait_s=0.6)
    (text,) = reasons(meet(first, second))
    assert "1 of 3 hosts did not arrive within 0.6 s: gpu-c (number 2)." in text


def test_a_first_host_that_does_not_arrive_is_named() -> None:
    second = make_hosts(wait_s=0.6)[1]
    (text,) = reasons(meet(second))
    assert f"The first host, 127.0.0.1:{second.port}, has not answered gpu-b within 0.6 s." in text


@pytest.mark.parametrize("number", [1, 3])
def test_a_number_that_is_taken_or_none_is_said_on_every_host(number: int) -> None:
    first, second, third = make_hosts(3)
    (text,) = reasons(meet(first, second, replace(third, number=number)))
    expected = {1: "Two hosts have the number 1: gpu-b and gpu-c.", 3: "The host gpu-c has the number 3"}
    assert expected[number] in text


def test_a_second_first_host_finds_its_port_taken() -> None:
    first, second = make_hosts(wait_s=1)
    text = next(iter(reasons(meet(first, replace(second, number=0))[1:])))
    assert f"cannot listen at port {first.port}" in text
    assert "two hosts have the number 0" in text


@contextmanager
def stranger(answer: bytes) -> Iterator[int]:
    """A port of a program that is no host and gives everybody the same answer."""
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        server.settimeout(5)

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def test_a_port_of_another_program_is_refused_on_both_sides() -> None:
    first, second = make_hosts()
    with stranger(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        (text,) = reasons(meet(replace(second, port=port)))
        assert "is not the first host of this training. Why: It answers b'HTTP/1.1 400" in text
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        (text,) = reasons(meet(replace(first, port=server.getsockname()[1])))
        assert "cannot listen at port" in text


def test_something_that_is_no_host_and_one_that_starts_again_do_not_count() -> None:
    first, second, third = make_hosts(3)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(meet_hosts, first, lambda: False)
        time.sleep(0.1)
        for line in (b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"call": "trainyard hosts"}\n', b""):
            with socket.create_connection(("127.0.0.1", first.port)) as connection:
                connection.sendall(line)
        stopped = pool.submit(meet_hosts, second, iter([False, False, True]).__next__)
        with pytest.raises(StopRequested):
            stopped.result()
        again = pool.submit(meet_hosts, second, lambda: False)
        assert meet_hosts(third, lambda: False) == again.result() == answer.result() == []


def test_a_line_without_the_fields_of_a_host_is_not_one() -> None:
    first, second = make_hosts(2)
    with ThreadPoolExecutor() as pool, ExitStack() as connections:
        answer = pool.submit(meet_hosts, first, lambda: False)
        time.sleep(0.1)
        whole = {"call": "trainyard hosts", "number": 1, "host": "b", "time": 1.0, "facts": FACTS}
        for changes in ({"host": 5}, {"time": "now"}, {"number": True}, {"facts": []}):
            line = whole | changes
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", first.port)))
            connection.sendall(json.dumps(line).encode() + b"\n")
            assert connection.recv(1) == b"", "it is sent away"
        assert meet_hosts(second, lambda: False) == answer.result() == []


def test_clocks_that_differ_are_a_warning_on_every_host(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make_hosts()
    monkeypatch.setattr(Host, "hello", property(lambda host: {
        "call": "trainyard hosts", "number": host.number, "host": host.name, "time": time.time() + 3600, "facts": FACTS,
    }))  # fmt: skip
    warnings = [answer.result() for answer in meet(first, second)]
    assert warnings[0] == warnings[1]
    assert "The clock of gpu-b (number 1) is 3600 s ahead of that of gpu-a" in warnings[0][0]


def test_a_host_that_is_asked_to_stop_ends() -> None:
    for host in make_hosts():
        with pytest.raises(StopRequested):
            meet_hosts(host, lambda: True)
