"""Every file that is stored carries a schema version, or there is a reason why it has none."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.architecture.test_budgets import format_path, sources
from trainyard.stores.schema import KINDS

WRITERS = {"write_json_durably", "write_whole", "create_whole", "write_folder", "seal"}
OUTSIDE = ("trainyard/workers/", "trainyard/testing/", "trainyard/stores/whole.py")
"""Doubles, the writers themselves, and what runs in another tool's interpreter: it hands files to its own parent."""
HASHED = "content of an artifact, an adapter or a model: its digest stays equal, and its manifest has the version"
CHILD = "between a parent and its child, which are of one version"
WORK = "in the work folder of one training, whose checkpoint has `format`"
CACHE = "made again when it does not fit"
GIVEN = "bytes or text of the user, or for people to read"
C2SP = "in a format of C2SP, which has its own version"
WITHOUT = {
    "trainyard/app/artifacts/ledger.py: export": C2SP,
    "trainyard/app/artifacts/ledger.py: keep_cosigned": C2SP,
    "trainyard/stores/ledger/anchors/folders.py: place_in_folder": C2SP,
    "trainyard/stores/ledger/witnessing.py: cosign": C2SP,
    "trainyard/app/artifacts/ledger.py: witness": C2SP,
    "trainyard/app/artifacts/lineage_export.py: export_lineage": GIVEN,
    "trainyard/app/adapters/signing.py: list_keys": GIVEN,
    "trainyard/app/plan/limits.py: sign_limits": "a signed note of C2SP, whose text has `format`",
    "trainyard/serve/signatures.py: sign_published": "a Sigstore bundle, whose media type has its version",
    "trainyard/stores/adapters.py: keep_signature": "a Sigstore bundle, whose media type has its version",
    "trainyard/app/run_records.py: begin": GIVEN,
    "trainyard/app/stack/api_service.py: start_api": CACHE,
    "trainyard/app/services.py: choose_working_folder": CACHE,
    "trainyard/app/services.py: mark_bootstrapped": CACHE,
    "trainyard/app/scripts.py: save_script": GIVEN,
    "trainyard/app/adapters/versions.py: show_card": GIVEN,
    "trainyard/app/reports/report.py: write_report": GIVEN,
    "trainyard/backends/axolotl/program.py: finish": CHILD,
    "trainyard/backends/axolotl/program.py: stop": CHILD,
    "trainyard/backends/base.py: run_training": CHILD,
    "trainyard/app/jobs/training_manager.py: read_rows": CACHE,
    "trainyard/backends/cloud/program.py: fill": HASHED,
    "trainyard/backends/cloud/program.py: save_result": HASHED,
    "trainyard/backends/cloud/program.py: take_weights": HASHED,
    "trainyard/backends/cloud/submission.py: note": WORK,
    "trainyard/backends/environments.py: health": CACHE,
    "trainyard/backends/installing.py: build": CACHE,
    "trainyard/backends/external/plan.py: adapter": CHILD,
    "trainyard/backends/external/plan.py: write_plan": CHILD,
    "trainyard/backends/external/reload.py: reload_adapter": CHILD,
    "trainyard/backends/external/runner.py: start_run": CHILD,
    "trainyard/backends/frame.py: fill": HASHED,
    "trainyard/backends/frame.py: name_base": HASHED,
    "trainyard/backends/frame.py: save_result": HASHED,
    "trainyard/backends/frame.py: decide_precision": WORK,
    "trainyard/backends/job.py: rename_work_folder": WORK,
    "trainyard/backends/llamacpp/build.py: keep": CACHE,
    "trainyard/backends/hosts.py: prepare_hosts": CHILD,
    "trainyard/backends/llamacpp/plan.py: write_plan": CHILD,
    "trainyard/backends/llamacpp/program.py: write_result": CHILD,
    "trainyard/backends/llamacpp/program.py: run_epoch": WORK,
    "trainyard/backends/llamacpp/program.py: write": CHILD,
    "trainyard/backends/native/assembly.py: keep_layout": WORK,
    "trainyard/backends/native/program.py: with_memory_fit": WORK,
    "trainyard/backends/native/sessions/server.py: start": CHILD,
    "trainyard/backends/native/sessions/verbs.py: save_result": HASHED,
    "trainyard/backends/oom.py: record_smaller_batch": WORK,
    "trainyard/backends/oom.py: remember": WORK,
    "trainyard/backends/remote_steps/program.py: train": WORK,
    "trainyard/backends/results.py: collect_result": HASHED,
    "trainyard/backends/script/files.py: write": CHILD,
    "trainyard/backends/native/ranks.py: receive_outcome": HASHED,
    "trainyard/backends/sessions/running.py: run_session": CHILD,
    "trainyard/compute/energy.py: keep_energy": WORK,
    "trainyard/compute/rank_process.py: write_note": CHILD,
    "trainyard/data/corpora.py: keep": GIVEN,
    "trainyard/data/validation.py: validate": HASHED,
    "trainyard/evals/program.py: main": CHILD,
    "trainyard/evals/runner.py: write_report": HASHED,
    "trainyard/serve/embedded.py: launch": CACHE,
    "trainyard/serve/conversion/merged.py: merge_files": GIVEN,
    "trainyard/serve/conversion/merged.py: write": GIVEN,
    "trainyard/serve/card.py: keep_card": GIVEN,
    "trainyard/serve/deploy.py: deploy": HASHED,
    "trainyard/serve/trial_program.py: main": CHILD,
    "trainyard/serve/versions/merge_program.py: main": CHILD,
    "trainyard/stores/graph/contract.py: export": GIVEN,
    "trainyard/stores/models.py: model_sha256": CACHE,
    "trainyard/stores/objects/local.py: download": GIVEN,
    "trainyard/stores/repositories/storage.py: write": "a record of `commits.py` or `quota.py`, which add the version",
    "trainyard/train/checkpoint/checkpoints.py: commit": WORK,
    "trainyard/train/checkpoint/state.py: save_snapshot": WORK,
    "trainyard/train/starter/build.py: build_starter": CACHE,
    "trainyard/train/starter/pretrain.py: pretrain": HASHED,
}
"""Function -> why what it writes has no version of its own."""


def get_called_name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def writing_without_version(name: str, text: str) -> Iterator[str]:
    """The functions that write a file and no version. A record's `to_json` has one: `test_each_kind` looks there."""
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef):
            called = {get_called_name(call) for call in ast.walk(function) if isinstance(call, ast.Call)}
            if called & WRITERS and not called & {"add_version", "to_json"}:
                yield f"{name}: {function.name}"


def test_what_is_stored_has_a_version_or_a_reason() -> None:
    paths = [path for path in sources("trainyard") if not format_path(path).startswith(OUTSIDE)]
    writers = {writer for path in paths for writer in writing_without_version(format_path(path), path.read_text())}
    assert writers - WITHOUT.keys() == set()
    assert WITHOUT.keys() - writers == set(), "these functions have a version now, or write nothing: remove them"


@pytest.mark.parametrize(
    "text",
    [
        "def keep(path, facts):\n    write_json_durably(path, facts)",
        "class Store:\n    def put(self, one):\n        create_whole(self.files, self.path, orjson.dumps(one))",
        "def keep(folder):\n    write_folder(folder, fill, facts={})",
    ],
)
def test_a_stored_kind_without_a_version_is_found(text: str) -> None:
    assert list(writing_without_version("trainyard/stores/planted.py", text))


def test_each_kind_is_written_and_read_with_its_version() -> None:
    written: set[str] = set()
    read: set[str] = set()
    for path in sources("trainyard"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant):
                kind = str(call.args[0].value)
                written |= {kind} if get_called_name(call) == "add_version" else set()
                read |= {kind} if get_called_name(call) in ("read_versioned", "strip_version") else set()
    assert written == read == KINDS.keys()
