"""The text of server-sent events, read back as the standard says (WHATWG HTML, 9.2.6)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainyard.surfaces.streams import HEARTBEAT, ServerEvent


def interpret(stream: bytes) -> list[tuple[str, str, str]]:
    """(name, id, data) of each event that a client dispatches: the standard's own steps."""
    text = stream.decode("utf-8").removeprefix("\ufeff")
    name, data, last_id, dispatched = "", "", "", []
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for line in lines[:-1]:
        if line == "":
            if data:
                dispatched.append((name or "message", last_id, data.removesuffix("\n")))
            name, data = "", ""
        elif not line.startswith(":"):
            key, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if key == "event":
                name = value
            elif key == "data":
                data += value + "\n"
            elif key == "id" and "\0" not in value:
                last_id = value
    return dispatched


names = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r\n\0"), max_size=20)
texts = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=60)


@given(st.lists(st.tuples(names, names.filter(bool), texts), max_size=5))
def test_a_client_reads_what_was_written(events: list[tuple[str, str, str]]) -> None:
    stream = b"".join(
        ServerEvent(data, name, event_id).encode() + HEARTBEAT.encode() for name, event_id, data in events
    )
    expected_events = [
        (name or "message", event_id, data.replace("\r\n", "\n").replace("\r", "\n")) for name, event_id, data in events
    ]
    assert interpret(stream) == expected_events


def test_a_heartbeat_is_no_event() -> None:
    assert HEARTBEAT.encode() == b": heartbeat\n\n"
    assert interpret(HEARTBEAT.encode()) == []
    assert interpret(ServerEvent("a", comment="x\ny").encode()) == [("message", "", "a")]


def test_the_data_of_a_line_may_look_like_a_field() -> None:
    assert interpret(ServerEvent("id: 7\nevent: end\n\n: x", "lines", "3").encode()) == [
        ("lines", "3", "id: 7\nevent: end\n\n: x")
    ]


@pytest.mark.parametrize("wrong", ["a\nb", "a\rb", "a\0b"])
def test_an_id_or_a_name_that_would_be_read_as_something_else_is_refused(wrong: str) -> None:
    with pytest.raises(ValueError, match="An event cannot have"):
        ServerEvent("x", wrong).encode()
    with pytest.raises(ValueError, match="An event cannot have"):
        ServerEvent("x", "", wrong).encode()
