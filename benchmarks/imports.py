"""How much of the tools' public example configs becomes a chain?

    python -m benchmarks.imports DIR [--processes N]

DIR (or TRAINYARD_EXAMPLE_CONFIGS) has a copy of each tool's repository, as a checkout or as a git directory: any folder
whose path contains the repository's name. Every config of a training has to be read, every key has to have an answer,
and 80 % of all occurrences of keys have to be mapped. A launcher gives its processes their number, which no config
says: `--processes 8` reads the configs as on a machine with eight.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import SHORT
from trainyard.errors import TrainyardError
from trainyard.spec.imports.conversion import Imported, import_config
from trainyard.spec.imports.keys import KeyStatus
from trainyard.spec.imports.tools import TOOLS, find_tool
from trainyard.spec.load.text import parse_text

VARIABLE = "TRAINYARD_EXAMPLE_CONFIGS"
REPOSITORIES = {
    "axolotl": ("axolotl", ("examples", "src/axolotl/integrations")),
    "llamafactory": ("llama-factory", ("examples",)),
    "trl": ("trl", ("examples", "docs/source/clis.md")),
    "unsloth": ("unsloth", ("studio/backend/assets/configs",)),
    "oumi": ("oumi", ("configs",)),
    "torchtune": ("torchtune", ("recipes/configs",)),
}
"""Tool -> the name of its repository in lower case, and where its example configs are."""
FENCED = re.compile(r"```yaml\n(# \w+_config\.yaml\n.*?)```", re.DOTALL)
LEAST_MAPPED = 0.8
RESOURCES = Path(__file__).parent.parent / "tests" / "resources" / "imports"
UNKNOWN = "that is known here"
"""In the words of a refusal for a key that no table has."""


@dataclass(frozen=True)
class Example:
    """One file of a tool's examples."""

    tool: str
    name: str
    value: Any


@dataclass
class Tally:
    """What became of a tool's examples."""

    configs: int = 0
    chains: int = 0
    num_others: int = 0
    """Files that are no config of a training."""
    keys: Counter[KeyStatus] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def mapped(self) -> float:
        return self.keys[KeyStatus.MAPPED] / max(sum(self.keys.values()), 1)

    def add(self, name: str, imported: Imported) -> None:
        self.configs += 1
        self.chains += imported.chain is not None
        written = [entry for entry in imported.keys if entry.key[0] != "("]
        self.keys.update(entry.status for entry in written)
        self.unknown += [f"{name}: {entry.key}" for entry in written if UNKNOWN in entry.because]


def repositories_in(root: Path) -> Iterator[tuple[str, Path]]:
    """The tools whose repository is below a folder, with where."""
    for tool, (name, _) in REPOSITORIES.items():
        folders = sorted(path for path in root.iterdir() if path.is_dir())
        for folder in folders:
            if name in re.split(r"[+@]", folder.name.lower()):
                yield tool, folder / "repo" if (folder / "repo").is_dir() else folder
                break


def files_of(tool: str, repository: Path) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of every file in a tool's folders of examples, of a checkout or of a git directory."""
    paths = REPOSITORIES[tool][1]
    if not (repository / "HEAD").is_file():
        for subpath in paths:
            start = repository / subpath
            for path in [start] if start.is_file() else sorted(start.rglob("*")):
                if path.is_file():
                    yield path.relative_to(repository).as_posix(), path.read_bytes()
        return
    archive = subprocess.run(
        ["git", "-C", str(repository), "archive", "--format=tar", "HEAD", *paths], check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        for member in files:
            if member.isfile() and (stream := files.extractfile(member)):
                yield member.name, stream.read()


def examples_in(root: Path) -> Iterator[Example]:
    """Every YAML among the examples; of TRL also those that its manual shows."""
    for tool, repository in repositories_in(root):
        for name, data in files_of(tool, repository):
            texts = FENCED.findall(data.decode()) if name.endswith(".md") else []
            texts += [data] if name.endswith((".yaml", ".yml")) else []
            for number, text in enumerate(texts):
                yield Example(tool, f"{name}#{number}" if name.endswith(".md") else name, parse_text(text))


def tally_examples(root: Path, processes: int = 1) -> dict[str, Tally]:
    tallies = {tool: Tally() for tool in TOOLS}
    for example in examples_in(root):
        overrides = {"launch": {"processes": processes}} if processes > 1 else {}
        try:
            tallies[example.tool].add(
                example.name, import_config(example.value, "example", find_tool(example.value), overrides)
            )
        except TrainyardError as error:
            if error.code == "E-IMPORT-TOOL":
                tallies[example.tool].num_others += 1
            else:
                tallies[example.tool].failed.append(f"{example.name}: {error}")
    return tallies


def table_of(tallies: dict[str, Tally]) -> str:
    lines = [f"{'tool':<14}{'configs':>8}{'chains':>8}{'others':>8}{'keys':>8}{'mapped':>9}{'noted':>8}{'refused':>9}"]
    for tool, tally in tallies.items():
        counts = "".join(f"{tally.keys[status]:>8}" for status in (KeyStatus.NOTED, KeyStatus.REFUSED))
        lines.append(
            f"{tool:<14}{tally.configs:>8}{tally.chains:>8}{tally.num_others:>8}{sum(tally.keys.values()):>8}{tally.mapped:>9.1%}{counts}"
        )
    return "\n".join(lines)


def copy_small_examples(root: Path) -> None:
    """Lay the configs of the tests out as the tools' repositories have theirs, for the short form."""
    for tool, (name, paths) in REPOSITORIES.items():
        folder = root / name / paths[0]
        folder.mkdir(parents=True)
        shutil.copy(RESOURCES / f"{tool}.yaml", folder)


def main(argv: list[str]) -> int:
    if SHORT and not argv:
        with tempfile.TemporaryDirectory() as folder:
            copy_small_examples(Path(folder))
            return main([folder])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default=os.environ.get(VARIABLE))
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args(argv)
    if not args.folder:
        print(f"inconclusive: no examples are here; name their folder, or set {VARIABLE}")
        return 3
    tallies = tally_examples(Path(args.folder), args.processes)
    whole = Tally(keys=sum((tally.keys for tally in tallies.values()), Counter()))
    for name in ("configs", "chains", "num_others"):
        setattr(whole, name, sum(getattr(tally, name) for tally in tallies.values()))
    problems = [line for tally in tallies.values() for line in (*tally.unknown, *tally.failed)]
    print(table_of({**tallies, "all": whole}))
    print(f"keys without an answer, and configs that were not read: {len(problems)}", *problems[:20], sep="\n  ")
    return 0 if whole.configs and not problems and whole.mapped >= LEAST_MAPPED else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
