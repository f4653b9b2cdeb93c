"""The program of the sandbox: it imports, confines itself, and forks the processes of each request.

A request costs three forks of a small interpreter. The process that waits for requests never reads them: it forks a
supervisor, which forks the code under test and its assertions before it reads the request, so that no process contains
what another one was sent. When a request has ended, nothing of it is left: in the pid namespace everything else is
ended, and without one no process of a request can start another.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import sysconfig
import time
from collections.abc import Callable
from typing import Any

from trainyard.json_types import JsonObject
from trainyard.sandbox import root, workers
from trainyard.sandbox.kernel import allow_reading, drop_capabilities
from trainyard.sandbox.limits import die_with_parent
from trainyard.sandbox.wire import Closed, read_message, write_message

NAMESPACES, LANDLOCK, NONE = "namespaces", "landlock+seccomp", "none"
MODULES = (
    "abc", "array", "bisect", "collections", "copy", "ctypes", "dataclasses", "datetime", "decimal", "enum",
    "fractions", "functools", "heapq", "io", "itertools", "json", "math", "numbers", "operator", "random", "re",
    "statistics", "string", "struct", "textwrap", "time", "traceback", "types", "typing", "unicodedata",
)  # fmt: skip
"""What code often imports; it is there at once."""
MOST_OUTPUT_BYTES = 1 << 20
"""A process that prints more is ended."""
KEPT_OUTPUT_BYTES = 1 << 14
CODE, SCHEMA = b"c", b"s"
"""Kinds of a request: code with assertions, JSON with a schema."""


def main() -> None:
    """Serve until the other end of the standard input is closed."""
    options = json.loads(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    os.umask(0o022)  # the folders of the new root are read by another user; Trainyard's own mask leaves them to root
    sys.argv[:] = [""]
    os.environ.clear()  # variables that the interpreter itself has set, such as LC_CTYPE
    for name in MODULES:
        importlib.import_module(name)
    if options["schemas"]:
        sys.path += options["paths"]
        load_schemas()
    library = [sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")]
    sys.path = [path for path in sys.path if path.startswith(tuple(library)) and "-packages" not in path]
    sys.path_importer_cache.clear()
    level, code = options["level"], 0
    try:
        if level == NAMESPACES:
            open_to_all = os.geteuid() == 0 and all(os.stat(path).st_mode & 0o005 == 0o005 for path in library)
            paths = root.readable_paths()
            root.enter_namespaces()
            root.build_root(paths)
            code = root.run_as_first_process(lambda: serve(level, ["/"], as_nobody=open_to_all))
        else:
            code = serve(level, root.readable_paths(), as_nobody=False)
    except (OSError, StopIteration) as error:
        write_message(1, {"error": str(error) or type(error).__name__})
        code = 1
    os._exit(code)


def load_schemas() -> None:
    """Import and use what checks schemas: it reads its own files at the first use."""
    import orjson  # noqa: F401
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema({"type": "object", "properties": {"a": {"pattern": "a"}}})
    definition = {"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "uniqueItems": True}}}
    Draft202012Validator(definition).is_valid([{}, {}])


def serve(level: str, paths: list[str], *, as_nobody: bool) -> int:
    """Answer requests, each in processes of its own."""
    confined, library = level != NONE, sysconfig.get_path("stdlib")
    if confined:
        with contextlib.suppress(OSError) if level == NAMESPACES else contextlib.nullcontext():
            allow_reading(
                paths, library
            )  # in the namespaces there is nothing else, so that an old kernel may go without
        if not as_nobody:
            drop_capabilities()
    write_message(1, {"level": level})
    while kind := workers.wait_for_start(0):
        supervisor = os.fork()
        if supervisor == 0:
            run_process(lambda kind=kind: supervise(kind, confined, as_nobody))  # type: ignore[misc]
        failed = os.waitpid(supervisor, 0)[1]
        if level == NAMESPACES:
            end_others()
        if failed:
            return 1
    return 0


def end_others() -> None:
    """End what a request has left in this pid namespace, if anything."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)


def run_process(work: Callable[[], object]) -> None:
    """Do the work of a forked process, and end it: 0 for success."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        code = 1
    finally:
        os._exit(code)


def supervise(kind: bytes, confined: bool, as_nobody: bool) -> None:
    """Run one request, and write its reply: its verdict, and the end of what it printed."""
    if sys.platform == "linux":
        die_with_parent()
    verdict, output = os.pipe(), os.pipe()
    tasks, children = [], []

    def start(work: Callable[[Any], object], *descriptors: int) -> None:
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            os.dup2(2, 0)  # which is /dev/null from the start
            os.dup2(output[1] if work is subject else 2, 1)
            run_process(lambda: work(workers.begin(receive, descriptors, confined, as_nobody)))
        os.close(receive)
        tasks.append(send)
        children.append(child)

    to_judge, to_subject = os.pipe(), os.pipe()

    def subject(task: Any) -> None:
        workers.run_subject(task, to_subject[0], to_judge[1])

    if kind == SCHEMA:
        start(lambda task: workers.run_schema(task, verdict[1]), verdict[1])
    else:
        start(subject, to_subject[0], to_judge[1])
        start(lambda task: workers.run_judge(task, to_judge[0], to_subject[1], verdict[1]), to_judge[0],
              to_subject[1], verdict[1])  # fmt: skip
    for descriptor in (*to_judge, *to_subject, verdict[1], output[1]):
        os.close(descriptor)
    try:
        request = read_message(0)
        deadline = time.monotonic() + request["wall_s"]
        for descriptor, task in zip(tasks, request["tasks"], strict=True):
            with contextlib.suppress(Closed):
                write_message(descriptor, task)
        reply = follow(verdict[0], output[0], deadline)
    finally:
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
    write_message(1, reply)


def follow(verdict: int, output: int, deadline: float) -> JsonObject:
    """Read the verdict and the output, which is bounded while it is read, until one of them ends it."""
    reply, printed, total, reading = b"", b"", 0, [verdict, output]
    while verdict in reading or output in reading:
        ready = select.select([*reading, 0], [], [], max(0.0, deadline - time.monotonic()))[0]
        if 0 in ready:  # which is readable now only where the other end is closed
            raise Closed
        if not ready:
            return {"verdict": "time_limit", "printed": ""}
        for descriptor in ready:
            block = os.read(descriptor, 1 << 16)
            if not block:
                reading.remove(descriptor)
            elif descriptor == verdict:
                reply = (reply + block)[:2048]
            else:
                total += len(block)
                printed = (printed + block)[-KEPT_OUTPUT_BYTES:]
        if total > MOST_OUTPUT_BYTES:
            return {"verdict": "output_limit", "printed": ""}
        if verdict not in reading and not select.select([output] if output in reading else [], [], [], 0)[0]:
            break
    return {"verdict": reply.decode(errors="replace"), "printed": printed.decode(errors="replace")}


if __name__ == "__main__":
    main()
