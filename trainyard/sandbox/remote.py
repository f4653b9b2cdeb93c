"""Objects of another process: a proxy forwards what is done with it, and the result comes back as `wire` packs it.

The code under test and its assertions are two processes, so the assertions compare in memory that the code does not
reach. Lists, dicts and sets that a call changed are changed in the caller, too. An object that is not plain data is
never equal to plain data because it says so: its content is compared, if its class derives from a plain type.
"""

from __future__ import annotations

import contextlib
import io
import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trainyard.json_types import JsonObject
from trainyard.sandbox.wire import (
    MUTABLE,
    Closed,
    References,
    find_standard,
    pack,
    read_message,
    standard_name,
    unpack,
    write_message,
)

PLAIN_BASES = (bool, int, float, str, bytes, tuple, list, dict, set, frozenset)
BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift",
)  # fmt: skip
ORDERS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
OPERATIONS: dict[str, Callable[..., Any]] = {
    "__call__": lambda target, *args, **kwargs: target(*args, **kwargs),
    "__getattr__": getattr, "__setattr__": setattr, "__delattr__": delattr,
    "__getitem__": operator.getitem, "__setitem__": operator.setitem, "__delitem__": operator.delitem,
    "__contains__": operator.contains, "__len__": len, "__iter__": iter, "__next__": next, "__reversed__": reversed,
    "__bool__": bool, "__str__": str, "__repr__": repr, "__format__": format, "__hash__": hash, "__dir__": dir,
    "__int__": int, "__float__": float, "__complex__": complex, "__index__": operator.index, "__round__": round,
    "__neg__": operator.neg, "__pos__": operator.pos, "__abs__": abs, "__invert__": operator.invert,
    "__trunc__": math.trunc, "__floor__": math.floor, "__ceil__": math.ceil,
    "__enter__": lambda target: type(target).__enter__(target),
    "__exit__": lambda target, *_: type(target).__exit__(target, None, None, None),
    "__instancecheck__": lambda target, value: isinstance(value, target),
    "__subclasscheck__": lambda target, value: issubclass(value, target),
    **{name: getattr(operator, name) for name in ORDERS},
}  # fmt: skip
"""What can be done with an object of the other process, by the method of its proxy."""
for word in BINARY:
    OPERATIONS[f"__{word}__"] = getattr(operator, f"__{word}__")
    OPERATIONS[f"__r{word}__"] = lambda target, other, act=OPERATIONS[f"__{word}__"]: act(other, target)
    OPERATIONS[f"__i{word}__"] = getattr(operator, f"__i{word}__")
SHARED = frozenset(
    (
        "__call__", "__getitem__", "__contains__", "__len__", "__iter__", "__next__", "__bool__", "__str__", "__repr__",
        "__hash__", "content", *ORDERS,
    )
)  # fmt: skip
"""Operations that code under test may apply to any object."""


class Proxy:
    """An object of the other process."""

    __slots__ = ("_number", "_peer", "_plain")

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)
        object.__setattr__(self, "_plain", None)

    @property
    def __class__(self) -> type:
        content = plain_content(self)
        return Proxy if content is None else type(content[0])

    @__class__.setter
    def __class__(self, _: type) -> None:
        raise TypeError("an object of the code under test does not change its class")

    def __getattribute__(self, name: str) -> Any:
        if name in ("_number", "_peer", "_plain", "__class__"):
            return object.__getattribute__(self, name)
        return self._peer.request("__getattr__", self, name)


def plain_content(proxy: Proxy) -> tuple[Any] | None:
    """Return a copy of the content of an object whose class derives from a plain type."""
    content = proxy._peer.request("content", proxy)
    return tuple(content) if content else None


def forwarding(name: str) -> Callable[..., object]:
    """Return the method of a proxy that the other process carries out."""

    def forward(self: Proxy, *args: Any, **kwargs: Any) -> Any:
        return self._peer.request(name, self, *args, **kwargs)

    return forward


def comparing(name: str) -> Callable[[Proxy, object], object]:
    """Return the comparison of a proxy: with another object there, with plain data by its content here."""

    def compare(self: Proxy, other: Any) -> Any:
        if type(other) is Proxy or not self._peer.judges:
            return self._peer.request(name, self, other)
        content = plain_content(self)
        return NotImplemented if content is None else OPERATIONS[name](content[0], other)

    return compare


def computing(name: str) -> Callable[[Proxy, object], object]:
    """The arithmetic of a proxy with plain data: an object cannot make a number of its own out of an expected one."""

    def compute(self: Proxy, other: Any) -> object:
        peer, result = self._peer, self._peer.request(name, self, other)
        if type(other) is Proxy or not peer.judges:
            return result
        if type(result) is Proxy:
            peer.mixed.add(result._number)
            return result
        content = plain_content(self)
        if content is None:
            raise TypeError(f"{name} of an object of the code and plain data is plain data")
        return OPERATIONS[name](content[0], other)

    return compute


def reducing(name: str) -> Callable[..., object]:
    """Return the number of an object, unless it came of arithmetic with plain data."""

    def reduce(self: Proxy, *args: Any) -> Any:
        if self._number in self._peer.mixed and plain_content(self) is None:
            raise TypeError(f"{name} of an object that came of arithmetic with plain data")
        return self._peer.request(name, self, *args)

    return reduce


ARITHMETIC = tuple(f"__{side}{word}__" for word in BINARY for side in ("", "r", "i"))
REDUCING = ("__abs__", "__float__", "__int__", "__complex__", "__index__", "__round__", "__bool__", "__trunc__",
            "__floor__", "__ceil__")  # fmt: skip
SPECIAL = {
    **dict.fromkeys(ORDERS, comparing), **dict.fromkeys(ARITHMETIC, computing), **dict.fromkeys(REDUCING, reducing)
}  # fmt: skip
for method in OPERATIONS:
    if method != "__getattr__":
        setattr(Proxy, method, SPECIAL.get(method, forwarding)(method))


class Peer(References):
    """A side of a pair of processes that call each other, one call at a time."""

    def __init__(self, receive: int, send: int, *, judges: bool) -> None:
        self.receive, self.send, self.judges = receive, send, judges
        self.objects: list[object] = []
        self.numbers: dict[int, int] = {}
        self.proxies: dict[int, Proxy] = {}
        self.errors: dict[int, type[BaseException]] = {}
        self.shadows: dict[int, int] = {}
        self.mixed: set[int] = set()
        self.names: dict[str, object] = {}
        self.streams = sys.stdin, sys.stdout

    def request(self, name: str, target: Any, *args: Any, **kwargs: Any) -> Any:
        """Have the other process do something, and answer what it asks meanwhile. Raises what that raised."""
        packed = [pack(item, self) for item in args]
        named = {key: pack(item, self) for key, item in kwargs.items()}
        reads = self.judges and name == "__call__" and sys.stdin is not self.streams[0]
        stdin = sys.stdin.read() if reads else None
        captured = self.judges and sys.stdout is not self.streams[1]
        write_message(self.send, ["?", name, pack(target, self), packed, named, stdin, captured])
        while True:
            match read_message(self.receive):
                case ["?", *question]:
                    self.answer(question)
                case ["=", dict(at), changed, printed] if "argument" in at:
                    self.settle(args, changed, printed)
                    return args[int(at["argument"])]
                case ["=", value, changed, printed]:
                    self.settle(args, changed, printed)
                    return unpack(value, self)
                case ["!", error, printed]:
                    self.settle((), None, printed)
                    raise self.unpack_error(error)
                case _:
                    raise Closed

    def settle(self, args: tuple[Any, ...], changed: Any, printed: object) -> None:
        """Take over what a call printed and which of its arguments it changed."""
        if isinstance(printed, str) and printed and self.judges:
            sys.stdout.write(printed)
        for old, new in zip(args, changed or (), strict=False):
            merge(old, unpack(new, self))

    def serve(self) -> None:
        """Answer until the other process ends."""
        while True:
            match read_message(self.receive):
                case ["?", *question]:
                    self.answer(question)
                case _:
                    raise Closed

    def answer(self, question: list[Any]) -> None:
        """Execute a request of the other process, and send its result."""
        printed = io.StringIO()
        try:
            name, target, packed, named, stdin, captured = question
            args = [unpack(item, self) for item in packed]
            kwargs = {key: unpack(item, self) for key, item in named.items()}
            with redirect_streams(stdin, printed if captured is True and not self.judges else None):
                result = self.perform(str(name), unpack(target, self), args, kwargs)
            mutable = name == "__call__" and any(type(item) in (*MUTABLE, tuple) for item in args)
            after = [pack(item, self) for item in args] if mutable else packed
            at = next((at for at, item in enumerate(args) if item is result and type(item) in MUTABLE), None)
            value = pack(result, self) if at is None else {"argument": at}
            reply = ["=", value, after if after != packed else None, printed.getvalue()]
        except Closed:
            raise
        except BaseException as error:
            reply = ["!", self.pack_error(error), printed.getvalue()]
        write_message(self.send, reply)

    def perform(self, name: str, target: Any, args: list[Any], kwargs: JsonObject) -> Any:
        if self.judges and not self.may(name, target, args):
            raise TypeError("the assertions do not let this be done with their objects")
        if name == "global":
            return self.names[target]
        if name == "content":
            base = next((base for base in PLAIN_BASES if isinstance(target, base)), None)
            return [base(target)] if base is not None and not isinstance(target, Proxy) else []
        return OPERATIONS[name](target, *args, **kwargs)

    def may(self, name: str, target: object, args: Sequence[object]) -> bool:
        """Whether the code under test may do this with an object of its judge: no way leads to the judge's frames."""
        if name in SHARED:
            return True
        is_subject_class = type(type(target)) is type and type(target).__module__ == "__main__"
        attribute = bool(args) and isinstance(args[0], str) and not args[0].startswith("_")
        return is_subject_class and attribute and name in ("__getattr__", "__setattr__")

    def pack_object(self, value: object) -> object:
        if type(value) is Proxy:
            return {"yours": value._number}
        if id(value) in self.shadows:
            return {"yours": self.shadows[id(value)]}
        standard = standard_name(value)
        if standard is not None and (self.judges or is_common(*standard)):
            return {"standard": standard}
        number = self.numbers.get(id(value))
        if number is None:
            number = self.numbers[id(value)] = len(self.objects)
            self.objects.append(value)
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"error": [number, value.__name__, builtin_base(value)]}
        return {"mine": number}

    def unpack_object(self, tag: str, content: object) -> object:
        match tag, content:
            case "yours", int(number) if 0 <= number < len(self.objects):
                return self.objects[number]
            case "mine", int(number):
                if number not in self.proxies:
                    self.proxies[number] = Proxy(self, number)
                return self.proxies[number]
            case "standard", [str(module), str(name)]:
                if self.judges:
                    return find_standard(module, name)
                __import__(module)
                return getattr(sys.modules[module], name) if name else sys.modules[module]
            case "error", [int(number), str(name), str(base)]:
                return self.error_class(number, name, base)
        raise Closed

    def error_class(self, number: int, name: str, base: str) -> type[BaseException]:
        """Return the class that takes the place of an exception of the other process, so that it can be caught."""
        if number not in self.errors:
            parent = vars(sys.modules["builtins"]).get(base)
            if not (isinstance(parent, type) and issubclass(parent, BaseException)):
                raise Closed
            self.errors[number] = type(name, (parent,), {})
            self.shadows[id(self.errors[number])] = number
        return self.errors[number]

    def pack_error(self, error: BaseException) -> Any:
        kind = type(error)
        try:
            attributes = {name: pack(item, self) for name, item in vars(error).items()}
            args = [pack(item, self) for item in error.args]
        except Exception:
            attributes, args = {}, []
        named = pack(kind, self)
        where = ":".join(named.get("standard", ()))
        return [named.get("error") or [-1, where, builtin_base(kind)], args, attributes]

    def unpack_error(self, packed: object) -> BaseException:
        match packed:
            case [[int(number), str(name), str(base)], list(args), dict(attributes)]:
                pass
            case _:
                raise Closed
        if number >= 0:
            kind: object = self.error_class(number, name, base)
        else:
            kind = find_standard(*name.split(":", 1)) if ":" in name else vars(sys.modules["builtins"]).get(base)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise Closed
        error = kind.__new__(kind)
        error.args = tuple(unpack(item, self) for item in args)
        for key, item in attributes.items():
            with contextlib.suppress(AttributeError, TypeError):
                setattr(error, key, unpack(item, self))
        return error


def is_common(module: str, name: str) -> bool:
    """Whether the judge has a class or function under a name that the code under test has sent."""
    try:
        find_standard(module, name)
    except Closed:
        return False
    return True


def builtin_base(kind: type) -> str:
    return next(parent.__name__ for parent in kind.__mro__ if parent.__module__ == "builtins")


@contextlib.contextmanager
def redirect_streams(stdin: object, stdout: io.StringIO | None) -> Iterator[None]:
    """Read and print where the assertions read and print, where those have changed their streams."""
    before = sys.stdin, sys.stdout
    if isinstance(stdin, str):
        sys.stdin = io.StringIO(stdin)
    if stdout is not None:
        sys.stdout = stdout
    try:
        yield
    finally:
        sys.stdin, sys.stdout = before


def merge(old: Any, new: Any) -> Any:
    """Give an argument the content that a call has left in its copy; return what takes its place."""
    if type(old) is not type(new) or type(old) not in (*MUTABLE, tuple):
        return new
    if isinstance(old, tuple):
        pairs = zip(old, new, strict=False)
        return old if len(old) == len(new) and all(merge(*pair) is pair[0] for pair in pairs) else new
    if isinstance(old, dict):
        content = {key: merge(old[key], item) if key in old else item for key, item in new.items()}
        old.clear()
        old.update(content)
    elif isinstance(old, set):
        old.clear()
        old.update(new)
    elif isinstance(old, list):
        old[:] = [merge(old[at], item) if at < len(old) else item for at, item in enumerate(new)]
    else:
        old.clear()
        old.extend(new)
    return old
