"""The child's side of a program that answers lines (`children.LineChild`): standard library only."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from trainyard.sandbox.limits import ChildLimits, allow_cpu, limit_child

Reply = dict[str, Any]
Answer = Callable[[bytes], Iterable[Reply]]
"""Returns the replies to one line of JSON."""


def serve_lines(start: Callable[[Any], tuple[Reply, Answer]]) -> None:
    """Answer the lines of standard input until the parent closes it; each reply has `cpu_s` of processor time.

    `start` gets the value of the first line, and returns the reply to it and the function for every later line. A reply
    that takes longer ends the process, whatever it is doing: nothing handles the signal.
    """
    limits = ChildLimits(*json.loads(sys.argv[1]))
    limit_child(limits.memory_bytes)

    def send(reply: Reply) -> None:
        allow_cpu(0)
        sys.stdout.buffer.write(json.dumps(reply).encode() + b"\n")
        sys.stdout.buffer.flush()
        allow_cpu(limits.cpu_s)

    lines = iter(sys.stdin.buffer)
    first = next(lines)
    allow_cpu(limits.cpu_s)
    reply, answer = start(json.loads(first))
    send(reply)
    for line in lines:
        allow_cpu(limits.cpu_s)
        for reply in answer(line):
            send(reply)
