"""Code of a completion that wants out: each attack is tried under both confinements, and works where there is none."""

from __future__ import annotations

import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from trainyard.sandbox.service import CODE, Confinement, Sandboxes, open_sandboxes, run_code

START = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def call(*arguments):
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), 'refused')
OUTSIDE, PORT, FILE = {outside}, {port}, {file!r}
"""
OPEN = {
    "fork": "if os.fork() == 0: os._exit(0)",
    "fork of subprocess": "import subprocess; subprocess.run(['/bin/true'])",
    "posix_spawn": "os.posix_spawn('/bin/true', ['true'], {})",
    "fork by another call": "call(56, 17, 0, 0, 0, 0) or (os.getpid() == ME or os._exit(0))",
    "thread": "import threading; threading.Thread(target=print).start()",
    "exec": "try: os.execv('/missing', ['x'])\nexcept FileNotFoundError: pass",
    "program in memory": "os.memfd_create('x')",
    "read a file": "open(FILE).read()",
    "read by another call": "os.close(os.open(FILE, os.O_RDONLY | os.O_NOFOLLOW))",
    "read through a path of /proc": "open('/proc/self/root' + FILE).read()",
    "users of the machine": "open('/etc/passwd').read()",
    "home": "os.listdir(os.path.dirname(FILE))",
    "processes": "os.listdir('/proc')",
    "environment of another process": "open(f'/proc/{OUTSIDE}/environ', 'rb').read()",
    "memory of another process": "open(f'/proc/{OUTSIDE}/mem', 'rb').close()",
    "own memory as a file": "open('/proc/self/mem', 'r+b').close()",
    "shared memory": "open('/dev/shm/trainyard-escape', 'w').close(); os.remove('/dev/shm/trainyard-escape')",
    "write": "os.close(os.open(FILE, os.O_WRONLY))",
    "folder": "os.mkdir(FILE + '.d'); os.rmdir(FILE + '.d')",
    "fifo": "os.mkfifo(FILE + '.f'); os.remove(FILE + '.f')",
    "node": "os.mknod(FILE + '.n'); os.remove(FILE + '.n')",
    "symbolic link": "os.symlink('/etc', FILE + '.s'); os.remove(FILE + '.s')",
    "hard link": "os.link(FILE, FILE + '.h'); os.remove(FILE + '.h')",
    "times": "os.utime(FILE)",
    "mode": "os.chmod(FILE, 0o600)",
    "name": "os.rename(FILE, FILE)",
    "connect": "import socket; socket.create_connection(('127.0.0.1', PORT), 5).close()",
    "socket pair": "import socket; socket.socketpair()",
    "raw socket call": "call(41, 2, 1, 0)",
    "signal": "os.kill(OUTSIDE, 0)",
    "signal to the parent": "os.kill(os.getppid(), 0)",
    "signal by descriptor": "import signal; signal.pidfd_send_signal(os.pidfd_open(OUTSIDE), 0)",
    "signal by thread": "call(234, OUTSIDE, OUTSIDE, 0)",
    "signal of a pipe": "import fcntl; fcntl.fcntl(1, fcntl.F_SETOWN, OUTSIDE)",
    "limits of another process": "import resource; resource.prlimit(OUTSIDE, resource.RLIMIT_NOFILE)",
    "limits of the parent": "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_CPU)",
    "trace": "call(101, 0, 0, 0, 0)",
    "seize": "call(101, 0x4206, OUTSIDE, 0, 0)",
    "read memory": "call(310, OUTSIDE, (ctypes.c_long * 2)(), 0, None, 0, 0)",
    "namespace": "call(272, 0x10000000)",
    "keys": "call(250, 0, -3, 1)",
    "ring of requests": "p = (ctypes.c_char * 120)(); call(425, 1, p)",
    "shared segment": "call(29, 0, 4096, 0o1600)",
    "queue": "call(68, 0, 0o1600)",
    "priority": "os.nice(1)",
    "old calls": "import mmap\nm = mmap.mmap(-1, 4096, prot=7); m.write(bytes.fromhex('b814000000cd80c3'))\n"
                 "ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))()",
}  # fmt: skip
"""Each does it without harm, and raises where it is refused."""
ONLY_REFUSED = {
    "temporary file": "import tempfile; tempfile.TemporaryFile()",
    "end everything": "os.kill(-1, 9)",
    "end the parent": "os.kill(os.getppid(), 9)",
    "end the trainer": "os.kill(OUTSIDE, 9)",
    "take files from the parent": "import resource; resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (0, 0))",
    "mount": "libc.mount(b'none', b'/', None, 32, None) and 1 / 0",
    "change of root": "os.chroot('/')",
    "another user": "os.setuid(1) or os.setuid(0)",
    "programs in the kernel": "call(321, 0, None, 0)",
    "counters": "call(298, (ctypes.c_char * 128)(), 0, -1, -1, 0)",
    "page faults": "call(323, 0)",
    "more memory": "import resource; resource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
    "handles": "call(303, -100, b'/', (ctypes.c_char * 128)(), ctypes.byref(ctypes.c_int()), 0)",
    "terminal": "import fcntl; fcntl.ioctl(0, 0x5412, b'x')",
    "new numbers": "call(0x40000000 + 57) or (os.getpid() == ME or os._exit(0))",
}
pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of calls are those of x86-64"),
]


@pytest.fixture(scope="module", params=[Confinement.NAMESPACES, Confinement.LANDLOCK])
def confined(request: pytest.FixtureRequest) -> Iterator[Sandboxes]:
    with open_sandboxes(request.param) as sandboxes:
        run("")
        yield sandboxes
        assert run("print('alive')") == "alive\npassed"


@pytest.fixture(scope="module")
def unconfined() -> Iterator[None]:
    """No confinement, for the proof that the attacks work."""
    with open_sandboxes(Confinement.NONE):
        run("")
        yield


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What every attack begins with: a process outside, a port that answers, a file with a secret."""
    secret = tmp_path_factory.mktemp("home") / "secret.txt"
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        values = {"outside": os.getpid(), "port": server.getsockname()[1], "file": str(secret)}
        yield START.format(**values) + "ME = os.getpid()\n"


def run(code: str, tests: str = "", timeout_s: int = 5) -> str:
    outcome = run_code(code, tests, timeout_s=timeout_s, memory_mb=512)
    return f"{outcome.printed}{outcome.verdict}"


@pytest.mark.parametrize("name", [*OPEN, *ONLY_REFUSED])
def test_an_attack_fails(name: str, confined: Sandboxes, start: str) -> None:
    """Nor does it end the service, which runs the code of the next."""
    attack, service = {**OPEN, **ONLY_REFUSED}[name], confined.get(CODE).process
    assert "ESCAPED" not in run(f"{start}{attack}\nprint('ESCAPED', flush=True)")
    assert service is not None
    assert confined.get(CODE).process is service
    assert service.poll() is None


@pytest.mark.parametrize("name", OPEN)
def test_it_works_without_the_confinement(name: str, unconfined: None, start: str) -> None:
    assert "ESCAPED" in run(f"{start}{OPEN[name]}\nprint('ESCAPED', flush=True)")


FORGED = """
import json, os, struct
for descriptor in range(64):
    for message in (b"passed", *(struct.pack("!I", len(m)) + m for m in (b'"ended"', b'["=",1,null,""]', b'"passed"',
                    b'{"verdict":"passed","printed":""}'))):
        try:
            os.write(descriptor, message)
        except OSError:
            pass
os._exit(0)
"""
MARKED = """
import __main__, os, sys
for name in dir(__main__):
    print(name, getattr(__main__, name), file=sys.stderr, flush=True)
print("passed", flush=True)
os._exit(0)
"""


def test_a_verdict_cannot_be_forged_on_any_descriptor(confined: Sandboxes) -> None:
    for tests in ("assert False", "assert add(2, 3) == 5", "assert add(2, 3) is None"):
        assert not run(FORGED, tests).endswith("passed")
        assert not run(MARKED, tests).endswith("passed")
    hidden = f"def add(a, b):\n    exec({FORGED!r})"
    assert not run(hidden, "assert add(2, 3) == 5\nassert False").endswith("passed")


def test_a_flood_of_output_ends_early_and_takes_no_memory_here(confined: Sandboxes) -> None:
    before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    assert run("while True: print('x' * 1_000_000)", timeout_s=600) == "output_limit"
    assert time.monotonic() - started < 120
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_nothing_outlives_a_request(confined: Sandboxes) -> None:
    program = confined.get(CODE).process
    assert program is not None
    resting = len(psutil.Process(program.pid).children(recursive=True))
    run(
        "import os, time\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        time.sleep(0.01)",
        timeout_s=1,
    )
    assert run("print('next')") == "next\npassed"  # which begins when everything of the last one has ended
    deadline = time.monotonic() + 60
    while len(psutil.Process(program.pid).children(recursive=True)) > resting:
        assert time.monotonic() < deadline
        time.sleep(0.01)


ENDLESS = """
from trainyard.sandbox.service import Confinement, open_sandboxes, run_code
with open_sandboxes(Confinement({level!r})):
    run_code("", "", timeout_s=60, memory_mb=512)
    print("ready", flush=True)
    run_code("while True: pass", "", timeout_s=600, memory_mb=512)
"""


@pytest.mark.parametrize("level", [Confinement.NAMESPACES, Confinement.LANDLOCK])
def test_code_ends_with_the_process_that_runs_it(level: Confinement) -> None:
    program = ENDLESS.format(level=level.value)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"ready\n"
        time.sleep(0.3)
        family = psutil.Process(trainer.pid).children(recursive=True)
        trainer.send_signal(signal.SIGKILL)
    assert len(family) >= 3
    assert psutil.wait_procs(family, timeout=60)[1] == []


SWITCHED_OFF = """
import ctypes, sys
from trainyard.sandbox.kernel import *
refused = [int(number) for number in sys.argv[1:]]
code = [(LOAD, 0, 0, 0), *((EQUAL, len(refused) - at, 0, number) for at, number in enumerate(refused)),
        (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOT_PERMITTED)]
lines = (Instruction * len(code))(*(Instruction(*line) for line in code))
prctl(PR_SET_NO_NEW_PRIVS, 1)
prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(FilterProgram(len(code), lines)))
from trainyard.sandbox.service import find_confinement, run_code
print(find_confinement())
try:
    print(run_code("def f(): return 1", "assert f() == 1", timeout_s=60, memory_mb=512).verdict)
except Exception as error:
    print(error)
"""
UNSHARE, LANDLOCK_CREATE_RULESET = "272", "444"


def machine_without(*calls: str, **variables: str) -> list[str]:
    """What a machine whose kernel refuses these calls finds, and what it does with code."""
    environment = {"PATH": os.environ["PATH"], "TRAINYARD_HOME": "/nonexistent", **variables}
    command = [sys.executable, "-c", SWITCHED_OFF, *calls]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()


def test_without_namespaces_there_is_landlock_and_without_both_no_code_runs() -> None:
    assert machine_without(UNSHARE) == ["landlock+seccomp", "passed"]
    level, refused = machine_without(UNSHARE, LANDLOCK_CREATE_RULESET)
    assert level == "none"
    assert refused.startswith("E-SANDBOX: Code of completions does not run here")
    allowed = machine_without(UNSHARE, LANDLOCK_CREATE_RULESET, TRAINYARD_ALLOW_UNCONFINED_CODE="true")
    assert allowed == ["none", "passed"]
