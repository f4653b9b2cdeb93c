"""The process from which reading processes are forked: `python -m trainyard.data.limited.server`.

    flow ──request──▶ server ──fork──▶ reading process (a set) ──fork──▶ child (some documents)
      ▲                  │ how it ended        │ progress, result             │ one message a document
      └──────────────────┴─────────────────────┘◀────────────────────────────┘

It imports the readers once and never looks at data itself, so each request costs a fork. It has a minimal environment,
no connections (seccomp), and ends with the pipe of its parent. Requests come from the parent process and are unpickled;
what goes back is decoded into known types.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import select
import signal
import traceback

import msgspec
import pyarrow as pa

from trainyard.data.limited.jobs import run_request
from trainyard.data.limited.requests import Answer, Request, SentError, pack_error, read_frames, write_frame
from trainyard.errors import LimitExceeded, TrainyardError
from trainyard.sandbox.limits import NETWORK, die_with_parent, limit, limit_memory, refuse_calls

MOST_REQUEST_BYTES = 128 << 20
"""A document of a stream may have 100 MB."""
ENCODER = msgspec.msgpack.Encoder()


def send(out: int, answer: Answer) -> None:
    write_frame(out, ENCODER.encode(answer))


def carry_out_limited(payload: bytes, out: int) -> None:
    """Carry out one request under its limits and end the process; this is the forked side."""
    code = 1
    try:
        die_with_parent()
        request: Request = pickle.loads(payload)
        limit_memory(request.limits.rows_memory)
        limit(resource.RLIMIT_FSIZE, request.limits.expanded)
        limit(resource.RLIMIT_CORE, 0)
        limit(resource.RLIMIT_CPU, request.limits.set_cpu_s)  # of each process: git has no timer of its own
        send(out, answer_to(request, out))
        code = 0
    except BrokenPipeError:
        code = 0  # no process is left that could read the answer
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def answer_to(request: Request, out: int) -> Answer:
    """Return the result, or the error in its fields."""

    def report(fraction: float, text: str) -> None:
        send(out, Answer(fraction=fraction, text=text))

    try:
        return Answer(result=run_request(request, report))
    except TrainyardError as error:
        return Answer(error=pack_error(error))
    except MemoryError:
        most_mib = request.limits.rows_memory >> 20
        exceeded = LimitExceeded(
            f"{request.label} needs more memory to read than the {most_mib} MiB that a set may take.",
            why="A small file can describe a very large one; it looks like a decompression bomb.",
            do="Give smaller files, or rows without values of many megabytes.",
            code="E-DATA-LIMIT",
        )
        return Answer(error=pack_error(exceeded))
    except BrokenPipeError:
        raise
    except Exception as error:
        line = "".join(traceback.format_exception_only(error)).strip().splitlines()[-1]
        return Answer(
            error=SentError(
                "TrainyardError", f"{request.label} was not read: {line}", do="Report it with the file.",
                code="E-DATA-UNREADABLE", trace=traceback.format_exc(),
            )
        )  # fmt: skip


def serve(descriptor: int, out: int) -> None:
    """Fork a process for each request, one after another, until the parent closes its pipe."""
    for payload in read_frames(descriptor, MOST_REQUEST_BYTES):
        alive, kept_open = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(alive)
            os.dup2(os.open(os.devnull, os.O_RDONLY), descriptor)
            carry_out_limited(payload, out)
        os.close(kept_open)
        ended, _, _ = select.select([alive, descriptor], [], [])
        if alive not in ended:  # the parent is gone, or speaks out of turn: nobody waits for this set
            os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        os.close(alive)
        send(out, Answer(ended=status))


def main() -> None:
    """Keep the pipe of the answers to ourselves, so that nothing that a library prints gets between them."""
    out = os.dup(1)
    os.dup2(2, 1)
    sealed = refuse_calls(NETWORK)
    pa.array([""])  # pyarrow imports pandas at its first conversion: 0.2 s that each reading process would take
    gc.collect()
    gc.freeze()  # a child that collects garbage would copy every page that it shares with this process
    try:
        send(out, Answer(ready=sealed))
        serve(0, out)
    except BrokenPipeError:
        return


if __name__ == "__main__":
    main()
