"""Environments of external trainers: looked at from outside, made whole or not at all."""

from __future__ import annotations

import ast
import base64
import errno
import hashlib
import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import venv
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from trainyard.backends import environments as env
from trainyard.backends import installing
from trainyard.backends.environments import ENVIRONMENTS, REQUIREMENTS, External
from trainyard.backends.install_steps import run_install_step
from trainyard.compute.child import alive
from trainyard.compute.lease import device_lock, holder
from trainyard.errors import Conflict, InvalidInput, Unavailable
from trainyard.settings import Settings, load_settings
from trainyard.spec.axes.backends import BackendName, ServerName
from trainyard.workers.trainyard_worker.failures import WorkerError, describe_error

MLX = BackendName.MLX


@pytest.fixture
def settings(home: Path) -> Settings:
    return load_settings(home=home)


def wheel(folder: Path, name: str, version: str, text: str) -> Path:
    """A real wheel of one module (binary distribution format, PyPA specification)."""
    info, path = f"{name}-{version}.dist-info", folder / f"{name}-{version}-py3-none-any.whl"
    files = {
        f"{name}.py": text,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        at: base64.urlsafe_b64encode(hashlib.sha256(body.encode()).digest()).rstrip(b"=").decode()
        for at, body in files.items()
    }
    record = "".join(f"{at},sha256={digests[at]},{len(body)}\n" for at, body in files.items())
    with zipfile.ZipFile(path, "w") as archive:
        for at, body in files.items():
            archive.writestr(at, body)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The mlx backend with a tool of one small module instead; returns its requirement file."""
    shop = tmp_path / "wheels"
    shop.mkdir()
    wheel(shop, "firsttool", "1.0", "")
    wheel(shop, "toytool", "2.5", "import firsttool\nvalue = 7\n")
    requirements = tmp_path / "mlx.txt"
    requirements.write_text(f"# made here\n--no-index --find-links={shop}\n", encoding="utf-8")
    requirements.write_text("firsttool==1.0\ntoytool==2.5  # the tool\n", encoding="utf-8")
    monkeypatch.setitem(REQUIREMENTS, MLX, requirements)
    monkeypatch.setitem(ENVIRONMENTS, MLX, External("toytool", "import toytool; assert toytool.value == 7"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shop))
    return requirements


def make_environment(path: Path, **versions: str) -> Path:
    """An environment without pip, in which packages seem to be installed."""
    venv.create(path, with_pip=False)
    (site,) = env.site_packages(path)
    for name, version in versions.items():
        (site / f"{name}-{version}.dist-info").mkdir()
    return path


def test_every_foreign_backend_has_a_pinned_requirement_file_that_begins_with_its_largest_part() -> None:
    for name, path in REQUIREMENTS.items():
        first, *_ = installing.phases(path.read_text(encoding="utf-8"))
        pins = env.pins(name)
        if isinstance(name, BackendName) and name.facts.remote:  # a service's SDK alone
            assert "orjson" in pins, name
        else:
            assert len(first.requirements) == 1, name
            assert {"orjson", "psutil"} <= set(pins), name
        assert env.require_external(name).distribution in pins, name


def test_a_requirement_file_is_installed_in_phases() -> None:
    text = "# torch first\ntorch==2\nb==1 # why\n\nc==3\n#: --no-deps --no-build-isolation\nd==4\n"
    assert [(phase.options, phase.requirements) for phase in installing.phases(text)] == [
        ((), ("torch==2",)),
        ((), ("b==1", "c==3")),
        (("--no-deps", "--no-build-isolation"), ("d==4",)),
    ]


def test_an_environment_that_is_not_there_says_how_to_make_it(settings: Settings) -> None:
    probe_result = env.probe(MLX, settings)
    assert not probe_result.available
    assert probe_result.why == f"mlx is not installed: there is no environment at {settings.home / 'envs' / 'mlx'}."
    assert probe_result.fix == "Run `trainyard backends install mlx`."
    assert env.health(MLX, settings) == env.Health(False, why=probe_result.why, fix=probe_result.fix)
    with pytest.raises(Unavailable, match=r"R-BACKEND-MISSING: .* Do: Run `trainyard backends install mlx`\."):
        env.find_python(MLX, settings)
    assert env.find_python(BackendName.NATIVE, settings) == Path(sys.executable)


def test_versions_are_read_from_its_files(settings: Settings) -> None:
    make_environment(settings.home / "envs" / "mlx", mlx_lm=env.pins(MLX)["mlx-lm"], Some_Thing="1.2.post1")
    assert env.list_installed(MLX, settings)["some-thing"] == "1.2.post1"
    assert env.probe(MLX, settings).available


def test_another_version_than_the_pinned_one_is_told(settings: Settings) -> None:
    make_environment(settings.home / "envs" / "mlx", mlx_lm="0.1.0")
    probe_result = env.probe(MLX, settings)
    assert not probe_result.available
    assert probe_result.why == f"mlx-lm 0.1.0 is installed; {env.pins(MLX)['mlx-lm']} is what we drive."


def test_an_environment_without_the_tool_is_told(settings: Settings) -> None:
    make_environment(settings.home / "envs" / "mlx")
    assert "has no mlx-lm" in env.probe(MLX, settings).why


def test_a_named_environment_is_used_in_its_place_and_never_changed(tmp_path: Path, home: Path) -> None:
    major, minor, *_ = env.pins(MLX)["mlx-lm"].split(".")
    path = make_environment(tmp_path / "elsewhere", mlx_lm=f"{major}.{minor}.99")
    settings = load_settings(home=home, backend_envs={"mlx": path})
    assert env.find_folder(MLX, settings) == path
    assert env.probe(MLX, settings).available  # another patch of the same release will do
    assert env.find_python(MLX, settings) == path / "bin" / "python"
    with pytest.raises(Conflict, match=r"E-BACKEND-CONFIG: .* Do: Install there by hand, or remove backend_envs\.mlx"):
        installing.install(MLX, settings, print)
    wrong_settings = load_settings(home=home, backend_envs={"mlx": tmp_path / "nowhere"})
    assert env.probe(MLX, wrong_settings).fix.startswith("Correct backend_envs.mlx in trainyard.toml")


def test_a_backend_that_lives_with_us_needs_no_environment(settings: Settings) -> None:
    with pytest.raises(InvalidInput, match=r"E-BACKEND-CONFIG: The backend trl has no environment of its own"):
        installing.install(BackendName.TRL, settings, print)


def test_a_python_without_wheels_is_refused_before_anything_is_fetched() -> None:
    with pytest.raises(Unavailable, match=r"E-INSTALL: .* vllm are for Python 3\.11 and 3\.12; this is 3\.13\."):
        installing.require_python(ServerName.VLLM, (3, 13))
    installing.require_python(ServerName.VLLM, (3, 11))
    installing.require_python(MLX, (3, 13))


def test_a_broken_import_is_remembered_until_something_changes(settings: Settings) -> None:
    make_environment(settings.home / "envs" / "mlx", mlx_lm=env.pins(MLX)["mlx-lm"])
    broken = env.health(MLX, settings)
    assert not broken.ok
    assert broken.why.startswith("It does not import: ModuleNotFoundError: No module named 'mlx")
    assert env.probe(MLX, settings).why == broken.why
    assert env.read_last_health(MLX, settings) == broken
    (site,) = env.site_packages(settings.home / "envs" / "mlx")
    (site / "mlx").mkdir()
    (site / "mlx" / "core.py").touch()
    (site / "mlx_lm.py").touch()
    assert env.read_last_health(MLX, settings) is None
    assert env.health(MLX, settings).ok
    env.health_file(MLX, settings).write_text("{")
    assert env.read_last_health(MLX, settings) is None


def test_an_external_interpreter_sees_the_workers_and_nothing_else_of_ours(tmp_path: Path) -> None:
    """A bare interpreter with orjson alone imports every module that is not an engine, and reads its arguments."""
    path = make_environment(tmp_path / "bare")
    (site,) = env.site_packages(path)
    (site / "orjson").symlink_to(Path(env.orjson.__file__).parent)
    code = """
import importlib, importlib.util, sys
for name in ("contract", "failures", "files", "names", "run"):
    importlib.import_module(f"trainyard_worker.{name}")
assert "trainyard" not in sys.modules
assert importlib.util.find_spec("trainyard") is None
print(sorted(importlib.import_module("trainyard_worker.run").ENGINES))
"""
    variables = {**env.clean_variables(os.environ), **env.variables()}
    ran = subprocess.run(
        [path / "bin" / "python", "-c", code], env=variables, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ran.stdout == "['deepspeed', 'mlx', 'unsloth']\n", ran.stderr
    argv = [path / "bin" / "python", *env.WORKER, "mlx", tmp_path]
    assert subprocess.run(argv, env=variables, capture_output=True, check=False, cwd=tmp_path).returncode == 1
    failure = env.orjson.loads((tmp_path / "failure.json").read_bytes())
    assert failure["code"] == "E-CRASH"
    assert "No module named 'mlx'" in failure["what"]


@pytest.mark.parametrize(
    ("error", "size", "code"),
    [
        (WorkerError("no", code="E-TRAINABLE", kind="InvalidInput"), "1", "E-TRAINABLE"),
        (RuntimeError("CUDA out of memory. Tried 20 GiB"), "1", "E-DEVICE-MEMORY"),
        (RuntimeError("[gloo] Connection closed by peer"), "2", "E-RANK-LOST"),
        (RuntimeError("[gloo] Connection closed by peer"), "1", "E-CRASH"),
        (MemoryError(), "1", "E-MEMORY"),
        (OSError(errno.ENOSPC, "No space left on device"), "1", "E-DISK-FULL"),
    ],
)
def test_a_worker_puts_an_error_of_its_tool_into_words(
    error: Exception, size: str, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    fields = describe_error(error)
    assert fields["code"] == code
    assert set(fields) == {"kind", "code", "what", "why", "do"}


TOOLS = {
    "axolotl_schema": {"axolotl", "pydantic", "yaml"},
    "deepspeed_engine": {"deepspeed", "peft", "torch", "transformers"},
    "deepspeed_hosts": {"torch"},
    "deepspeed_shards": {"deepspeed", "torch"},
    "mlx_engine": {"mlx", "mlx_lm", "numpy"},
    "standalone": {"jinja2", "peft", "safetensors", "torch", "transformers"},
    "step_fireworks": {"fireworks", "httpx"},
    "step_together": {"httpx", "together"},
    "unsloth_engine": {"datasets", "torch", "transformers", "trl", "unsloth"},
}
"""Module of the workers -> what it imports of its tool's own environment."""


def test_a_worker_imports_the_standard_library_orjson_its_neighbours_and_its_tool() -> None:
    for path in (env.WORKERS / "trainyard_worker").glob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        plain = {alias.name.split(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
        named = {str(n.module).split(".")[0] for n in nodes if isinstance(n, ast.ImportFrom) and n.level == 0}
        foreign_names = {name for name in plain | named if name not in sys.stdlib_module_names}
        assert foreign_names - {"orjson", "trainyard_worker"} == TOOLS.get(path.stem, set()), path.name


@pytest.mark.slow
def test_an_install_makes_it_whole_and_twice_the_same(settings: Settings, toy: Path) -> None:
    messages: list[str] = []
    installation = installing.install(MLX, settings, messages.append)
    assert (installation.ok, installation.version) == (True, "2.5")
    assert env.probe(MLX, settings).available
    path = (settings.home / "envs" / "mlx").resolve()
    assert messages[1:3] == ["installing firsttool==1.0", "installing toytool==2.5"]
    assert installing.install(MLX, settings, messages.append).version == "2.5"
    assert messages[-1] == "mlx 2.5 is installed already"
    assert (settings.home / "envs" / "mlx").resolve() == path

    wheel(toy.parent / "wheels", "toytool", "2.6", "import firsttool\nvalue = 7\n")
    toy.write_text("firsttool==1.0\ntoytool==2.6\n", encoding="utf-8")
    assert "2.6 is what we drive" in env.probe(MLX, settings).why
    assert installing.install(MLX, settings, messages.append).version == "2.6"
    assert not path.exists()
    pip = settings.home / "envs" / "mlx" / "bin" / "pip"
    assert str((settings.home / "envs" / "mlx").resolve()) in pip.read_text().splitlines()[0]  # scripts stay valid


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["package", "import", "build"])
def test_an_install_that_fails_leaves_what_was_there(
    broken: str, settings: Settings, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installing.install(MLX, settings, print)
    path = (settings.home / "envs" / "mlx").resolve()
    if broken == "package":
        toy.write_text("firsttool==1.0\nnothing-like-it==9\n", encoding="utf-8")
    else:
        toy.write_text("firsttool==1.0\ntoytool==2.5\n\n", encoding="utf-8")
        if broken == "import":
            monkeypatch.setitem(ENVIRONMENTS, MLX, replace(ENVIRONMENTS[MLX], imports="import absent"))
        else:
            monkeypatch.setitem(installing.BUILDS, MLX, fails)
    with pytest.raises(Unavailable, match=r"E-INSTALL: The installation failed at .*install\.log"):
        installing.install(MLX, settings, print)
    assert (settings.home / "envs" / "mlx").resolve() == path
    assert [path.name for path in (settings.home / "envs").glob(".mlx-*")] == [path.name]
    assert (settings.home / "envs" / "mlx.install.log").is_file()


def fails(environment: Path, _say: object) -> None:
    run_install_step([sys.executable, "-c", "print('E: the build is broken'); raise SystemExit(3)"], environment, {})


@pytest.mark.slow
def test_a_killed_install_counts_for_nothing_and_is_swept(settings: Settings, toy: Path) -> None:
    code = f"""
from tests.unit.backends import test_environments as here
import signal, os
from pathlib import Path
from trainyard.backends.environments import ENVIRONMENTS, REQUIREMENTS, External
from trainyard.settings import load_settings
REQUIREMENTS[here.MLX] = Path({str(toy)!r})
ENVIRONMENTS[here.MLX] = External("toytool", "import toytool")
here.installing.BUILDS[here.MLX] = here.hangs
here.installing.install(here.MLX, load_settings(home={str(settings.home)!r}), print)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    building = settings.home / "building"
    try:
        wait_until(building.exists)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not env.probe(MLX, settings).available
    assert list((settings.home / "envs").glob(".mlx-*"))
    installing.install(MLX, settings, print)
    left = [path.resolve() for path in (settings.home / "envs").glob(".mlx-*")]
    assert left == [(settings.home / "envs" / "mlx").resolve()]


HANGING = """
import os, subprocess, sys, time
from pathlib import Path
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
Path(os.environ["TOLD"]).write_text(f"{os.getpid()} {child.pid}\\n")
time.sleep(300)
"""


def source_that_hangs(folder: Path) -> None:
    """A source distribution whose own build backend (PEP 517, `backend-path`) never ends, and has started a process."""
    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "hanging"\nbackend-path = ["."]\n',
        "PKG-INFO": "Metadata-Version: 2.1\nName: toytool\nVersion: 3.0\n",
        "hanging.py": HANGING,
    }
    with tarfile.open(folder / "toytool-3.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"toytool-3.0/{name}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_install_that_is_ended_takes_pip_with_it(number: signal.Signals, settings: Settings, toy: Path) -> None:
    source_that_hangs(toy.parent / "wheels")
    toy.write_text("firsttool==1.0\ntoytool==3.0\n", encoding="utf-8")
    report_path = settings.home.parent / "told"
    code = f"""
from pathlib import Path
from trainyard.backends import environments
from trainyard.backends import installing
from trainyard.backends.install_steps import run_install_step
from trainyard.settings import load_settings
from trainyard.spec.axes.backends import BackendName, ServerName
environments.REQUIREMENTS[BackendName.MLX] = Path({str(toy)!r})
installing.install(BackendName.MLX, load_settings(home={str(settings.home)!r}), print)
"""
    environment = {**os.environ, "TOLD": str(report_path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(lambda: report_path.is_file() and report_path.read_text().endswith("\n"))
        below = psutil.Process(process.pid).children(recursive=True)
        detached = [psutil.Process(int(pid)) for pid in report_path.read_text().split()]
        assert any("pip" in word for process in below for word in process.cmdline())
        process.send_signal(number)
        assert process.wait(timeout=120) == {signal.SIGTERM: 143, signal.SIGINT: -signal.SIGINT}[number]
    finally:
        process.kill()
        process.wait()
    assert not [process for process in {*below, *detached} if alive(process)]
    assert sorted(path.name for path in (settings.home / "envs").iterdir()) == [".mlx.lock", "mlx.install.log"]
    assert holder(settings.home / "envs" / ".mlx.lock") is None
    assert "there is no environment" in env.probe(MLX, settings).why


def hangs(environment: Path, _say: object) -> None:
    (environment.parent.parent / "building").touch()
    time.sleep(300)


def wait_until(true: object, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.slow
def test_a_second_install_waits_for_the_first(settings: Settings, toy: Path) -> None:
    messages: list[str] = []
    root = settings.home / "envs"
    with device_lock(root / ".mlx.lock", run="install-mlx"):
        second = threading.Thread(target=installing.install, args=(MLX, settings, messages.append))
        second.start()
        wait_until(lambda: bool(messages))
        assert messages == [f"process {os.getpid()} is installing mlx; waiting for it"]
    second.join()
    assert messages[-1].startswith("mlx 2.5 is installed")
