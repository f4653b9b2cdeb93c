"""Code of completions in the sandbox: what honest code and assertions may do, what is refused, what does not count."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from trainyard.inherited import UMASK
from trainyard.sandbox.service import Confinement, open_sandboxes
from trainyard.train.rl.rewards import last_block, passes_assertions, run_python

ADD = "def add(a, b):\n    return a + b\n"
HONEST = {
    "function": (ADD, "assert add(2, 3) == 5\nassert add([1], [2]) == [1, 2]\nassert add('a', 'b') == 'ab'"),
    "candidate": (ADD, "def check(candidate):\n    assert candidate(1, 1) == 2\n    assert candidate(-1, 1) == 0\n"
                       "check(add)"),
    "builtin name": ("def sum(a, b):\n    return a + b", "assert sum(10, 15) == 25"),
    "builtins": ("def f(n):\n    return list(range(n))", "assert len(f(3)) == 3 and all(x < 3 for x in f(3))\n"
                                                         "assert max(f(4)) == 3 and sorted(f(2)) == [0, 1]"),
    "values": ("def same(x):\n    return x", "for x in (None, True, 2**80, -7, 1.5, 'ä\\ud800', b'\\x00', (1, (2,)),"
               " [[]], {'a': {1, 2}}, frozenset({1}), range(3), 1j, {1: 2, (3, 4): 5}):\n    assert same(x) == x\n"
               "    assert type(same(x)) is type(x), x"),
    "nan": ("def f():\n    return float('nan'), float('-inf')", "a, b = f()\nassert a != a and b < -1e308"),
    "library": ("from collections import Counter, deque, OrderedDict\nfrom fractions import Fraction\nimport datetime\n"
                "def f():\n    return Counter('aab'), deque([1], 3), OrderedDict(a=1), Fraction(1, 3), "
                "datetime.date(2020, 1, 2)",
                "import datetime\nfrom fractions import Fraction\nc, d, o, q, t = f()\nassert c['a'] == 2\n"
                "assert list(d) == [1] and o['a'] == 1 and q == Fraction(1, 3) and t == datetime.date(2020, 1, 2)\n"
                "assert Counter('ab') == {'a': 1, 'b': 1}"),
    "in place": ("def order(xs):\n    xs.sort()\ndef turn(m):\n    for row in m:\n        row.reverse()\n"
                 "def add(d):\n    d['x'] = 1", "xs = [3, 1, 2]\norder(xs)\nassert xs == [1, 2, 3]\n"
                 "m = [[1, 2], [3, 4]]\nrow = m[0]\nturn(m)\nassert m == [[2, 1], [4, 3]] and row == [2, 1]\n"
                 "d = {}\nadd(d)\nassert d == {'x': 1}"),
    "the same object": ("def keep(xs):\n    xs.append(1)\n    return xs",
                        "xs = []\nassert keep(xs) is xs and xs == [1]"),
    "class": ("class Stack:\n    def __init__(self):\n        self.items = []\n    def push(self, x):\n"
              "        self.items.append(x)\n        return self\n    def pop(self):\n        return self.items.pop()\n"
              "    def __len__(self):\n        return len(self.items)",
              "s = Stack()\ns.push(1).push('b')\nassert len(s) == 2 and s.pop() == 'b' and s.items == [1]\n"
              "assert isinstance(s, Stack) and not isinstance(3, Stack) and type(s) == Stack\n"
              "assert type(s).__name__ == 'Stack' and hasattr(s, 'push') and not hasattr(s, 'peek')"),
    "operators": ("from dataclasses import dataclass\n@dataclass(frozen=True, order=True)\nclass V:\n    x: int\n"
                  "    y: int = 0\n    def __add__(self, o):\n        return V(self.x + o.x, self.y + o.y)\n"
                  "    def __mul__(self, k):\n        return V(self.x * k, self.y * k)\n    __rmul__ = __mul__\n"
                  "    def __neg__(self):\n        return V(-self.x, -self.y)",
                  "assert V(1, 2) + V(1) == V(2, 2) and 2 * V(1, 2) == V(1, 2) * 2 == V(2, 4) and -V(1).x == -1\n"
                  "assert V(1) < V(2) and V(1) != V(2) and repr(V(1)) == 'V(x=1, y=0)' and f'{V(2)}' == str(V(2))\n"
                  "assert {V(1), V(1)} == {V(1)} and V(1) in [V(1)] and sorted([V(2), V(1)])[0] == V(1)"),
    "derived": ("from collections import namedtuple\nfrom enum import IntEnum\nP = namedtuple('P', 'x y')\n"
                "class C(IntEnum):\n    RED = 1\nclass T(str):\n    pass",
                "p = P(1, 2)\nassert p == (1, 2) and p.x == 1 and tuple(p) == (1, 2) and (1, 2) == p\n"
                "assert isinstance(p, tuple) and C.RED == 1 and C(1) is C.RED and T('a') == 'a' and P(1, 2) < (1, 3)"),
    "numbers": ("class M(int):\n    def __add__(self, o):\n        return M((int(self) + int(o)) % 7)\n"
                "def f(x):\n    return x / 3\nclass V:\n    def __init__(self, x):\n        self.x = x\n"
                "    def __mul__(self, k):\n        return V(self.x * k)\n    def __abs__(self):\n"
                "        return abs(self.x)",
                "assert M(5) + 4 == 2 and abs(f(1) - 0.3333) < 1e-3 and abs(V(-2)) == 2 and (V(2) * 3).x == 6"),
    "generators": ("def count(n):\n    yield from range(n)\ndef twice(xs):\n    return (2 * x for x in xs)",
                   "assert list(count(3)) == [0, 1, 2] and sum(count(4)) == 6\ng = count(2)\nassert next(g) == 0\n"
                   "assert list(twice(iter([1, 2]))) == [2, 4] and list(twice(x for x in (1,))) == [2]"),
    "callbacks": ("def apply(f, *xs, **more):\n    return [f(x, **more) for x in xs]\ndef compose(f, g):\n"
                  "    return lambda x: f(g(x))", "assert apply(lambda x, k=1: x * k, 1, 2, k=3) == [3, 6]\n"
                  "seen = []\napply(seen.append, 1, 2)\nassert seen == [1, 2] and apply(str, 1) == ['1']\n"
                  "assert compose(lambda x: x + 1, abs)(-2) == 3"),
    "objects of the assertions": (
        "def depth(node):\n    return 0 if node is None else 1 + max(depth(node.left), depth(node.right))\n"
        "def mirror(node):\n    node.left, node.right = node.right, node.left\n    return node",
        "class Node:\n    def __init__(self, left=None, right=None):\n        self.left, self.right = left, right\n"
        "root = Node(Node(), None)\nassert depth(root) == 2\nassert mirror(root) is root and root.left is None"),
    "errors": ("from json import loads\nclass Bad(ValueError):\n    def __init__(self, code):\n"
               "        super().__init__(f'bad {code}')\n"
               "        self.code = code\ndef f(x):\n    if x < 0:\n        raise Bad(x)\n    return {}[x]",
               "try:\n    f(-1)\n    assert False\nexcept ValueError as error:\n"
               "    assert isinstance(error, Bad) and str(error) == 'bad -1' and error.code == -1\n"
               "try:\n    f(-2)\nexcept Bad:\n    caught = True\nassert caught\n"
               "try:\n    f(3)\n    assert False\nexcept KeyError as error:\n    assert error.args == (3,)\n"
               "import json\ntry:\n    loads('{')\n    assert False\n"
               "except json.JSONDecodeError as error:\n    assert error.pos == 1"),
    "context manager": ("class C:\n    def __enter__(self):\n        return 5\n    def __exit__(self, *_):\n"
                        "        self.closed = True", "c = C()\nwith c as x:\n    assert x == 5\nassert c.closed"),
    "streams": ("def greet():\n    print('hello', input())", "import io, sys, contextlib\n"
                "sys.stdin = io.StringIO('Ann\\n')\nout = io.StringIO()\nwith contextlib.redirect_stdout(out):\n"
                "    greet()\nassert out.getvalue() == 'hello Ann\\n'"),
    "module names": ("import math\nX = [1]\ndef up():\n    global N\n    N = N + 1\nN = 0",
                     "up(); up()\nassert N == 2 and X == [1] and math.floor(2.5) == 2"),
    "unittest": (ADD, "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n"
                 "        self.assertEqual(add(1, 2), 3)\nr = unittest.TestResult()\n"
                 "unittest.TestSuite([T('test')]).run(r)\nassert r.wasSuccessful() and r.testsRun == 1"),
    "imports": ("import re, json, random, string, itertools, heapq, bisect, csv, hashlib, uuid, zlib, queue, abc\n"
                "def f(s):\n    return hashlib.sha256(json.dumps(s).encode()).hexdigest()[:4]",
                "assert len(f('a')) == 4"),
    "deep recursion": ("def down(n):\n    return 0 if n == 0 else 1 + down(n - 1)", "assert down(800) == 800"),
}  # fmt: skip
DISHONEST = {
    "wrong": (ADD, "assert add(2, 3) == 6"),
    "syntax": ("def add(a, b)", ""),
    "raises": ("raise SystemExit", ""),
    "missing": ("x = 1", "assert add(1, 2) == 3"),
    "sys.exit": ("import sys; sys.exit(0)", "assert False"),
    "os._exit": ("import os; os._exit(0)", "assert False"),
    "exit in a call": ("import os\ndef add(a, b):\n    os._exit(0)", "assert add(1, 2) == 3"),
    "SystemExit in a call": ("def add(a, b):\n    raise SystemExit(0)", "assert add(1, 2) == 3"),
    "equal to everything": ("class A:\n    __eq__ = __lt__ = __ge__ = lambda s, o: True\n"
                            "    __ne__ = lambda s, o: False\n"
                            "def add(a, b):\n    return A()", "assert add(1, 2) == 3"),
    "equal from the right": ("class A:\n    __eq__ = lambda s, o: True\ndef add(a, b):\n    return A()",
                             "assert 3 == add(1, 2)"),
    "equal inside": ("class A:\n    __eq__ = lambda s, o: True\ndef add(a, b):\n    return [A()]",
                     "assert add(1, 2) == [3]"),
    "close to everything": ("class A:\n    __sub__ = lambda s, o: 0.0\ndef f(x):\n    return A()",
                            "assert abs(f(2) - 4) < 1e-6"),
    "close by an object": ("class A:\n    __sub__ = lambda s, o: s\n    __abs__ = lambda s: 0.0\n"
                           "def f(x):\n    return A()", "assert abs(f(2) - 4) < 1e-6"),
    "close as a number": ("class A(float):\n    __sub__ = lambda s, o: 0.0\ndef f(x):\n    return A(1)",
                          "assert abs(f(2) - 4) < 1e-6"),
    "another math": ("class math:\n    isclose = lambda a, b: True\ndef f(x):\n    return 1",
                     "assert math.isclose(f(2), 4)"),
    "equal integer": ("class A(int):\n    __eq__ = lambda s, o: True\n    __hash__ = int.__hash__\n"
                      "def add(a, b):\n    return A(0)", "assert add(1, 2) == 3"),
    "builtins": ("len = lambda x: 5\nall = lambda x: True\nabs = lambda x: 0\ndef f(x):\n    return 'a'",
                 "assert len(f(1)) == 5"),
    "builtins module": ("import builtins\nbuiltins.len = lambda x: 5\nbuiltins.AssertionError = int\n"
                        "def f(x):\n    return 'a'", "assert len(f(1)) == 5"),
    "os._exit as the function": ("from os import _exit as f", "assert f(0) == 1"),
    "module as the function": ("import os\nf = os", "assert f._exit(0) == 1"),
}  # fmt: skip


@pytest.fixture(scope="module", params=[Confinement.NAMESPACES, Confinement.LANDLOCK])
def confined(request: pytest.FixtureRequest) -> Iterator[Confinement]:
    with open_sandboxes(request.param):
        assert passes("")  # which starts it before the first test
        yield request.param


def passes(code: str, assertions: str = "", timeout_s: int = 5) -> bool:
    return passes_assertions(code, assertions, timeout_s=timeout_s, memory_mb=512)


@pytest.fixture(autouse=True)
def private_files() -> Iterator[None]:
    """As in every process of Trainyard: files that it makes are its user's alone."""
    before = os.umask(UMASK)
    yield
    os.umask(before)


@pytest.mark.parametrize("name", HONEST)
def test_honest_code_passes(name: str, confined: Confinement) -> None:
    assert passes(*HONEST[name])
    assert not passes(HONEST[name][0], f"{HONEST[name][1]}\nassert False")


@pytest.mark.parametrize("name", DISHONEST)
def test_code_that_does_not_do_what_is_asserted_fails(name: str, confined: Confinement) -> None:
    assert not passes(*DISHONEST[name])


def test_the_assertions_are_nowhere_in_the_memory_of_the_code(confined: Confinement) -> None:
    search = (
        "import gc\ndef f(word):\n    return any(word[::-1] in str(x) for x in gc.get_objects() if type(x) is dict)"
    )
    for _ in range(2):
        assert passes(search, "assert not f('rewsna-neddih')  # hidden-answer")
    assert passes(f"X = 'hidden-answer'\n{search}", "assert f('rewsna-neddih')")


def test_an_endless_loop_ends_with_its_limit(confined: Confinement) -> None:
    started = time.monotonic()
    assert not passes("while True: pass", timeout_s=1)
    assert not passes(ADD, "while True: pass", timeout_s=1)
    assert not passes("import time; time.sleep(600)", timeout_s=1)
    assert time.monotonic() - started < 120


def test_the_smallest_memory_is_enough_for_small_code(confined: Confinement) -> None:
    assert passes_assertions(ADD, "assert add(1, 2) == 3", timeout_s=60, memory_mb=64)


def test_memory_and_output_are_bounded(confined: Confinement) -> None:
    assert not passes("x = bytearray(1 << 30)")
    assert not passes("while True: print('x' * 100_000)", timeout_s=30)
    assert run_python("print('x' * 10_000, end='!')", timeout_s=60, memory_mb=512) == (True, "x" * 4095 + "!")


def test_nothing_of_ours_is_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert run_python("import os; print(dict(os.environ))", timeout_s=60, memory_mb=512) == (True, "{}\n")


def test_what_was_printed_before_an_error_is_there(confined: Confinement) -> None:
    assert run_python("print('before')\n1 / 0", timeout_s=60, memory_mb=512) == (False, "before\n")


def test_a_null_byte_is_code_that_does_not_run(confined: Confinement) -> None:
    assert not passes("x = '\0'; raise")
    assert passes("x = 1")


def test_the_last_block_of_a_text_is_its_code() -> None:
    assert last_block("First\n```python\na\n```\nthen\n```\nb = 1\n```\nDone.") == "b = 1\n"
    assert last_block("x = 1") == "x = 1"
