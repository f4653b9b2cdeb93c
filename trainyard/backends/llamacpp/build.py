"""Builds the programs of llama.cpp into their environment, once: ten minutes on two cores.

The source distribution of llama-cpp-python carries the whole of llama.cpp with its training example, its server and
its converters, so that one pinned package from the index that pip is configured for gives all. The programs are linked
statically: nothing has to be found when they run. `TRAINYARD_HOME/envs/llamacpp/llama.cpp/` then contains `bin/`, the
converter of models (`convert_hf_to_gguf.py`, `conversion/`, `gguf-py/`) and `build.json`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import orjson

from trainyard.backends.install_steps import make_install_error, run_install_step
from trainyard.inherited import child_environment, installer_environment
from trainyard.stores.whole import write_json_durably

PACKAGE, RELEASE = "llama-cpp-python", "0.3.36"
"""The source distribution; its llama.cpp has ggml 0.25.3."""
FOLDER, BUILD_FILE = "llama.cpp", "build.json"
VERSION = re.compile(r"^version: *(\S.*?)(?: built with .*)?$", re.MULTILINE)
VERSION_TIMEOUT_S = 20
PROGRAMS = ("llama-finetune", "llama-quantize", "llama-export-lora", "llama-tokenize", "llama-server")
CONVERTER = ("convert_hf_to_gguf.py", "convert_lora_to_gguf.py", "conversion", "gguf-py", "LICENSE")
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_OPENSSL": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",  # it would be downloaded
    "GGML_CCACHE": "OFF",
}


def build(environment: Path, say: Callable[[str], None]) -> None:
    """Download, compile and keep what is used. Raises `Unavailable` (`E-INSTALL`) naming the step that failed."""
    scripts = environment / "bin"
    variables = installer_environment({"PATH": f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"})
    # Its version names the commit of the git repository around it, and that could be anybody's.
    variables["GIT_CEILING_DIRECTORIES"] = str(environment)
    work = environment / "build"
    work.mkdir()
    source = unpack_sources(environment, work, variables, say)
    say("compiling llama.cpp; this takes about ten minutes on two cores")
    tree = work / "tree"
    options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
    run_install_step(
        [str(scripts / "cmake"), "-S", str(source), "-B", str(tree), "-G", "Ninja", *options], environment, variables
    )
    jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL") or str(os.cpu_count() or 1)
    targets = [str(scripts / "cmake"), "--build", str(tree), "--parallel", jobs, "--target", *PROGRAMS]
    run_install_step(targets, environment, variables)
    keep(source, tree, environment / FOLDER)
    shutil.rmtree(work)


def unpack_sources(environment: Path, work: Path, variables: Mapping[str, str], say: Callable[[str], None]) -> Path:
    """Return the sources of llama.cpp, taken out of the pinned package."""
    say(f"downloading {PACKAGE} {RELEASE}, which carries the sources")
    python = str(environment / "bin" / "python")
    pip = [python, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    run_install_step(
        [*pip, "--no-binary", PACKAGE, "--dest", str(work), f"{PACKAGE}=={RELEASE}"], environment, variables
    )
    archives = list(work.glob("llama_cpp_python-*.tar.gz"))
    if len(archives) != 1:
        raise make_install_error("pip download", "pip left no source archive.")
    with tarfile.open(archives[0]) as archive:
        archive.extractall(work, filter="data")
    return work / archives[0].name.removesuffix(".tar.gz") / "vendor" / "llama.cpp"


def keep(source: Path, tree: Path, target: Path) -> None:
    """Copy the programs and the converter, and write down what was built."""
    (target / "bin").mkdir(parents=True)
    for name in PROGRAMS:
        shutil.copy2(tree / "bin" / name, target / "bin" / name)
    for name in CONVERTER:
        copy = shutil.copytree if (source / name).is_dir() else shutil.copy2
        copy(source / name, target / name)
    record = {"release": RELEASE, "version": ask_version(target), "programs": list(PROGRAMS)}
    write_json_durably(target / BUILD_FILE, record)


def read_own_version(tools: Path) -> str:
    """llama.cpp's own version, as it was recorded when it was built; of programs from elsewhere, what they say."""
    path = tools / BUILD_FILE
    recorded = str(orjson.loads(path.read_bytes()).get("version", "")) if path.is_file() else ""
    return parse_version("version: " + recorded.removeprefix("version: ")) or ask_version(tools)


def ask_version(tools: Path) -> str:
    """Return what `llama-finetune --version` says; empty if it does not start."""
    try:
        result = subprocess.run(
            [str(tools / "bin" / "llama-finetune"), "--version"], capture_output=True, text=True, errors="replace",
            stdin=subprocess.DEVNULL, timeout=VERSION_TIMEOUT_S, check=False, env=child_environment(),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return parse_version(result.stdout + result.stderr)


def parse_version(text: str) -> str:
    """The version in what the program prints: `version: 0.5.0-dev (build 1, commit 0c1e570)`, then its compiler."""
    match = VERSION.search(text)
    return match.group(1) if match else ""
