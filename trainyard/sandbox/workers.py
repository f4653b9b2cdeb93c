"""The processes of one request: the code under test, its assertions, and the check of JSON by a schema.

The code and the assertions are two processes with one pair of pipes between them. Only the assertions have the
descriptor of the verdict, and they write to it after the last of them.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import os
import sys
from collections import Counter
from types import ModuleType
from typing import Any

from trainyard.sandbox.kernel import allow_calls, close_all_but, drop_capabilities, limit_resources
from trainyard.sandbox.limits import die_with_parent
from trainyard.sandbox.remote import Peer, Proxy
from trainyard.sandbox.root import NOBODY
from trainyard.sandbox.wire import COMMON_MODULES, Closed, read_exactly, read_message, write_message

PASSED, ENDED, MISMATCH, UNRESOLVABLE = b"passed", b"ended", b"mismatch", b"unresolvable"


def begin(receive: int, descriptors: tuple[int, ...], confined: bool, as_nobody: bool) -> Any:
    """Confine this process for good, and read what it has to do. Nothing of a request is in its memory before."""
    if sys.platform == "linux":
        die_with_parent()
    close_all_but((0, 1, 2, receive, *descriptors))
    if confined:
        if as_nobody:
            os.setgroups([])
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            die_with_parent()  # which a change of the user takes back
        drop_capabilities()
        allow_calls()
    task = read_message(receive)
    os.close(receive)
    limit_resources(task["cpu_s"], task["memory_bytes"])
    return task


def run_subject(task: Any, receive: int, send: int) -> None:
    """Run the code, say that it has ended, and answer the calls of the assertions."""
    module = fresh_main()
    peer = Peer(receive, send, judges=False)
    peer.names = vars(module)
    try:
        exec(compile(task["code"], "completion", "exec"), vars(module))
    finally:
        sys.stdout.flush()
    write_message(send, "ended")
    peer.serve()


def fresh_main() -> ModuleType:
    """Return the module `__main__`, empty."""
    module = sys.modules["__main__"] = ModuleType("__main__")
    return module


class Names(dict[str, Any]):
    """The names of the assertions: their own, then builtins and common modules, then those of the code.

    The code cannot put a function of its own in the place of `len` or `math.isclose`, unless that name is the one
    thing that the assertions test.
    """

    def __init__(self, peer: Peer, source: str) -> None:
        super().__init__(__name__="__main__")
        self.peer = peer
        tree = [*ast.walk(ast.parse(source))]
        names = [node for node in tree if isinstance(node, ast.Name)]
        read = Counter(node.id for node in names if isinstance(node.ctx, ast.Load))
        tested = {*read} - {node.id for node in names if not isinstance(node.ctx, ast.Load)}
        self.tests_builtin = all(hasattr(builtins, name) for name in tested)
        opened = [
            node.value.id for node in tree if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        ]
        self.modules = {name for name, times in Counter(opened).items() if times == read[name]} & COMMON_MODULES

    def __missing__(self, name: str) -> object:
        if name == "type":
            return RemoteType
        if name in self.modules:
            return importlib.import_module(name)
        if hasattr(builtins, name) and not self.tests_builtin:
            return getattr(builtins, name)
        return self.peer.request("global", name)


class RemoteTypeMeta(type):
    """The type of `RemoteType`."""

    def __call__(cls, *args: object, **kwargs: object) -> object:
        if len(args) == 1 and type(args[0]) is Proxy:
            return args[0]._peer.request("__getattr__", args[0], "__class__")
        return type(*args, **kwargs)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, type)

    def __eq__(cls, other: object) -> bool:
        return other is type or other is cls

    def __hash__(cls) -> int:
        return hash(type)


class RemoteType(metaclass=RemoteTypeMeta):
    """`type` as the assertions call it: of an object of the code, the class that the code has given it."""


def run_judge(task: Any, receive: int, send: int, verdict: int) -> None:
    """Run the assertions, and write the verdict behind the last of them."""
    if read_message(receive) != "ended":
        raise Closed
    main = fresh_main()
    peer = Peer(receive, send, judges=True)
    names = Names(peer, task["tests"])
    vars(main).update(names)
    exec(compile(task["tests"], "assertions", "exec"), names)
    os.write(verdict, PASSED)


def run_schema(task: Any, verdict: int) -> None:
    """Write whether a schema accepts a text of JSON, or what it refers to in vain."""
    import jsonschema  # loaded before the confinement, where this process is for schemas
    import orjson
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        value = orjson.loads(task["text"])
    except orjson.JSONDecodeError:
        os.write(verdict, MISMATCH)
        return
    checker = jsonschema.Draft202012Validator(task["definition"], registry=Registry())
    try:
        os.write(verdict, PASSED if checker.is_valid(value) else MISMATCH)
    except Unresolvable as error:
        os.write(verdict, UNRESOLVABLE + str(error).encode(errors="replace")[:1000])
    except RecursionError:
        os.write(verdict, MISMATCH)


def wait_for_start(descriptor: int) -> bytes:
    """Return the first byte of a request: its kind."""
    try:
        return read_exactly(descriptor, 1)
    except Closed:
        return b""
