"""The table of refused combinations: one file that trips each row, and the nearest chains that do not."""

from __future__ import annotations

import os
import re
from pathlib import Path
from string import Formatter
from typing import Any

import pytest

from tests.unit.spec.chains import GOLDEN, RESOURCES, chain, get_row_name
from trainyard.errors import Reason, Refused
from trainyard.spec.axes.backends import BackendName
from trainyard.spec.axes.devices import Device
from trainyard.spec.chain import ResolvedChain, ResolvedNode
from trainyard.spec.compat.context import RunFacts
from trainyard.spec.compat.table import ROWS, run_reasons, session_reasons
from trainyard.spec.estimate.shape import BaseFacts
from trainyard.spec.graph import check, resolve
from trainyard.spec.job import SessionSpec, trainer_of_session
from trainyard.spec.load.files import load_chain, load_value

BAD = sorted((RESOURCES / "chains_bad").glob("*.yaml"))
AT_SESSION = sorted((RESOURCES / "sessions_bad").glob("*.yaml"))
AT_RUN = sorted((RESOURCES / "chains_at_run").glob("*.yaml"))
OK = sorted((RESOURCES / "chains_ok").glob("*"))
REFUSALS = GOLDEN / "refusals.txt"


def refuse_outside(path: str) -> Reason | None:
    because = f"The path {path!r} leads out of the data roots."
    instead = f'Use a path inside /work, or write the line `data_roots = ["{Path(path).parent}"]` into trainyard.toml.'
    return Reason("path-root", None, "", because, instead) if path.startswith(("..", "/")) else None


FACTS = RunFacts(
    endpoints=frozenset({"known"}),
    path_problem=refuse_outside,
    backends={BackendName.NATIVE: None, BackendName.TRL: None, BackendName.UNSLOTH: "Not installed."},
    devices=frozenset({Device.CPU}),
    embedded=False,
    opens_network=False,
    may_mirror=lambda address: address.startswith("gs://bucket/"),
    data_workers=frozenset({"http://worker.example:8892"}),
    may_read=lambda address: address.startswith("s3://bucket/"),
    has_module=lambda name: name != "pytorch_optimizer",
    confines_code=lambda: False,
)
"""A small machine: one CPU, the native and the trl backend, one endpoint, no server, no GaLore, no confinement."""
WITH_GPU = RunFacts(devices=frozenset({Device.CPU, Device.CUDA}), vllm_install="pip install vllm")
T5 = BaseFacts.from_config({"model_type": "t5", "is_encoder_decoder": True, "vocab_size": 32_128})
PADDED = BaseFacts.from_config({"model_type": "llama", "vocab_size": 32_000}, tokens=32_001)
GPT2 = BaseFacts.from_config({"model_type": "gpt2", "vocab_size": 50_257, "n_positions": 128})
LLAMA = BaseFacts.from_config({"model_type": "llama", "vocab_size": 32_000, "max_position_embeddings": 4096})
MLX = BaseFacts.from_config({"model_type": "llama", "quantization": {"group_size": 64, "bits": 4}})
SMALL, LARGE = (BaseFacts.from_config({"model_type": "llama"}, tokens=tokens) for tokens in (32_000, 151_936))
MIXTURE = BaseFacts.from_config({"model_type": "olmoe", "num_experts": 4})
SHARING = BaseFacts.from_config({"model_type": "zamba"})
FACTS_OF = {
    "adapter-experts": RunFacts(base=lambda name: MIXTURE),
    "adapter-experts-together": RunFacts(base=lambda name: MIXTURE),
    "adapter-shared-blocks": RunFacts(base=lambda name: SHARING),
    "backend-setting-here": RunFacts(devices=frozenset({Device.CPU})),
    "service-no-key": RunFacts(missing_key=lambda config: "TINKER_API_KEY"),
    "vllm-missing": WITH_GPU,
    "rollouts-missing": WITH_GPU,
    "base-layout": RunFacts(base=lambda name: T5),
    "base-positions": RunFacts(base=lambda name: GPT2),
    "rope-original": RunFacts(base=lambda name: LLAMA),
    "base-mlx": RunFacts(base=lambda name: MLX),
    "evaluator-mlx": RunFacts(base=lambda name: MLX),
    "base-vocabulary": RunFacts(base=lambda name: PADDED),
    "teacher-vocabulary": RunFacts(base=lambda name: LARGE if name == "org/teacher" else SMALL),
}
"""Files that another machine than the small one refuses."""


def read_expected_name(path: Path) -> str:
    """The first line of each file is a comment with the name of the row, or with the code of an invalid input."""
    return path.read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")


def list_reasons(path: Path) -> list[Reason]:
    try:
        return check(load_value(path))
    except Refused as refused:
        return list(refused.reasons)


def check_at_run(value: Any, facts: RunFacts = FACTS) -> list[Reason]:
    return run_reasons(resolve(value), facts)


def check_file_at_run(path: Path) -> list[Reason]:
    return check_at_run(load_chain(path), FACTS_OF.get(path.stem, FACTS))


def check_session_file(path: Path) -> list[Reason]:
    """What the rows of sessions say of a body."""
    config = trainer_of_session(SessionSpec.model_validate(load_value(path)))
    node = ResolvedNode(id="trainer", type="trainer", config=config)
    return session_reasons(ResolvedChain(name="s", tenant="default", nodes=(node,), order=("trainer",), digest=""))


def run_names(*nodes: dict[str, Any], facts: RunFacts = FACTS) -> list[str]:
    return [get_row_name(reason) for reason in check_at_run(chain(*nodes), facts)]


def says(reason: Reason) -> bool:
    """Whether a reason has the code and the texts of its row, with something in place of each field."""
    rows = [row for row in ROWS if row.name == reason.row]
    texts = [(row.because, reason.because) for row in rows] + [(row.instead, reason.instead) for row in rows]
    codes = [row.code == reason.code for row in rows]
    return all([*codes, *(re.fullmatch(make_pattern(text), message, re.DOTALL) for text, message in texts)])


def make_pattern(text: str) -> str:
    parts = [(re.escape(literal), field) for literal, field, _, _ in Formatter().parse(text)]
    return "".join(literal + (".*" if field is not None else "") for literal, field in parts)


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_each_bad_chain_is_refused_by_its_row(path: Path) -> None:
    own_reasons = [reason for reason in list_reasons(path) if get_row_name(reason) == read_expected_name(path)]
    assert own_reasons
    assert all(says(reason) for reason in own_reasons)


@pytest.mark.parametrize("path", AT_RUN, ids=lambda path: path.stem)
def test_what_only_a_run_can_know_is_refused_at_run(path: Path) -> None:
    assert list_reasons(path) == []
    (reason,) = check_file_at_run(path)
    assert get_row_name(reason) == read_expected_name(path)
    assert says(reason)
    assert check_at_run(load_chain(path), RunFacts()) == []


@pytest.mark.parametrize("path", AT_SESSION, ids=lambda path: path.stem)
def test_each_bad_session_is_refused_by_its_row(path: Path) -> None:
    reasons = check_session_file(path)
    assert {get_row_name(reason) for reason in reasons} == {read_expected_name(path)}
    assert all(says(reason) for reason in reasons)


def test_a_session_of_defaults_is_accepted(tmp_path: Path) -> None:
    for body in ("{}", "hyperparameters: {max_steps: 10, schedule: cosine, warmup_steps: 2}", "stage: dpo"):
        (tmp_path / "body.yaml").write_text(body)
        assert check_session_file(tmp_path / "body.yaml") == []


@pytest.mark.parametrize("path", OK, ids=lambda path: path.name)
def test_good_chains_are_accepted(path: Path) -> None:
    assert list_reasons(path) == []
    assert resolve(load_chain(path)).digest


def test_every_row_has_its_file() -> None:
    folders = {"spec": BAD, "run": AT_RUN, "session": AT_SESSION}
    files = {scope: {read_expected_name(path) for path in paths} for scope, paths in folders.items()}
    for scope, named in files.items():
        scopes = {scope, "words"} if scope == "spec" else {scope}
        assert {row.name for row in ROWS if row.scope in scopes} == {name for name in named if name[:2] != "E-"}


def test_every_row_has_a_name_of_its_own() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) >= 90
    assert [row.name for row in ROWS if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", row.name)] == []
    assert {row.name for row in ROWS} <= {path.stem for path in [*BAD, *AT_RUN, *AT_SESSION]}


def test_the_wording_of_every_refusal_is_as_agreed() -> None:
    """`GOLDEN=write` writes the file again, for a person to read."""
    lines = [f"{path.stem}: {reason.line()}" for path in BAD for reason in list_reasons(path)]
    lines += [f"{path.stem}: {reason.line()}" for path in AT_RUN for reason in check_file_at_run(path)]
    lines += [f"{path.stem}: {reason.line()}" for path in AT_SESSION for reason in check_session_file(path)]
    text = "\n".join(lines) + "\n"
    if os.environ.get("GOLDEN") == "write":
        REFUSALS.write_text(text, encoding="utf-8")
    assert text == REFUSALS.read_text(encoding="utf-8")


def test_rows_read_alike() -> None:
    for row in ROWS:
        assert row.because.rstrip("}").endswith((".", "why")), row.name
        assert row.instead.endswith("."), row.name
        assert row.field, row.name


NEAR: list[tuple[str, str, dict[str, Any]]] = [
    (name, way, edits)
    for name, ways in load_value(RESOURCES / "chains_near.yaml").items()
    for way, edits in ways.items()
]
"""A file of `chains_bad`, what the change is, and the change: path below `nodes` -> new value; None removes the key."""
STILL = {"control-stage", "no-heldout"}
"""Files whose nearest good chain still has another, unrelated reason."""


def edit_value(value: Any, edits: dict[str, Any]) -> Any:
    for path, replacement in edits.items():
        *parents, last = ["nodes", *path.split(".")]
        container = value
        for part in parents:
            container = container[int(part)] if isinstance(container, list) else container[part]
        if isinstance(container, list):
            container[int(last) : int(last) + 1] = [replacement]
        elif replacement is None:
            del container[last]
        else:
            container[last] = replacement
    return value


@pytest.mark.parametrize(("name", "way", "edits"), NEAR, ids=lambda part: part if isinstance(part, str) else "")
def test_the_nearest_chain_that_is_not_refused(name: str, way: str, edits: dict[str, Any]) -> None:
    path = RESOURCES / "chains_bad" / f"{name}.yaml"
    refusals = check(edit_value(load_value(path), edits))
    assert read_expected_name(path) not in [get_row_name(reason) for reason in refusals], way
    if name not in STILL:
        assert refusals == [], way


CHAINS = [path for path in BAD if not path.stem.startswith("e-spec-") and "nodes" in load_value(path)]


@pytest.mark.parametrize("path", CHAINS, ids=lambda path: path.stem)
def test_below_a_node_that_cannot_be_read_only_what_a_node_says_itself_is_told(path: Path) -> None:
    value = load_value(path)
    value["nodes"][0] = {"type": "zzz"}
    alone = [reason for reason in list_reasons(path) if not is_chained(reason) and reason.node != "data-source"]
    row_reasons = [reason for reason in check(value) if reason.row]
    assert [(get_row_name(reason), reason.node) for reason in row_reasons] == [
        (get_row_name(reason), reason.node) for reason in alone
    ]


def is_chained(reason: Reason) -> bool:
    """Whether the row of a reason looks at other nodes too."""
    rows = [row for row in ROWS if row.name == get_row_name(reason) and row.scope in ("spec", "words")]
    return all(row.chained for row in rows)


def test_every_row_of_the_spec_has_a_nearest_good_chain() -> None:
    covered = {read_expected_name(RESOURCES / "chains_bad" / f"{name}.yaml") for name, _, _ in NEAR}
    assert {row.name for row in ROWS if row.scope == "spec"} <= covered
