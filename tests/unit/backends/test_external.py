"""The parent's half of deepspeed, unsloth and axolotl, and what leads them: no environment is needed here."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import orjson
import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.conftest import REPOSITORY
from tests.small_jobs import Jobs
from trainyard.backends.axolotl import program as axolotl_program
from trainyard.backends.axolotl.backend import BACKEND as axolotl
from trainyard.backends.axolotl.config import STAGES, AxolotlFacts, build_config, convert_row
from trainyard.backends.axolotl.program import STEP_LINE, list_finished, new_steps
from trainyard.backends.deepspeed import program as deepspeed_program
from trainyard.backends.deepspeed.backend import BACKEND as deepspeed
from trainyard.backends.deepspeed.build import clear_stale_locks
from trainyard.backends.external.plan import write_plan
from trainyard.backends.external.runner import ExternalRun, ExternalTool, pick_device, run_external, run_tool
from trainyard.backends.job import TrainingJob
from trainyard.backends.unsloth.backend import BACKEND as unsloth
from trainyard.compute.child import LOG_FILE, SPEC_FILE, Events, Stopped
from trainyard.compute.events import LineTail
from trainyard.data.rows import Message, PreferenceRow, write_rows
from trainyard.errors import Corrupt, InvalidInput, TrainyardError
from trainyard.spec.axes.backends import OWN_KEYS, BackendName
from trainyard.spec.axes.data import Port
from trainyard.spec.axes.devices import Device
from trainyard.spec.axes.stages import Stage
from trainyard.train.checkpoint.checkpoints import FoundCheckpoint, newest_valid
from trainyard.workers.trainyard_worker import names
from trainyard.workers.trainyard_worker.failures import WorkerError
from trainyard.workers.trainyard_worker.files import WorkerFiles, checkpoint_places, commit, require_finite

pytestmark = pytest.mark.integration

GOLDEN = REPOSITORY / "tests" / "golden" / "axolotl.yaml"
PARENTS = {"deepspeed": deepspeed, "unsloth": unsloth, "axolotl": axolotl}


def work_folder(job: TrainingJob, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SPEC_FILE).write_text(job.model_dump_json())
    return folder


def plan_job(job: TrainingJob, folder: Path, **options: bool) -> WorkerFiles:
    """The job as its tool would see it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries
        write_plan(work_folder(job, folder), "cpu", first_weights=options.get("first_weights", False))
    (folder / names.PLAN_FOLDER / names.RESUME_FILE).write_bytes(orjson.dumps({"path": None, "restarted_from": None}))
    return WorkerFiles(folder)


@pytest.mark.parametrize("tool", PARENTS)
def test_the_runner_is_started_by_our_own_interpreter_and_imports_no_torch(
    tool: str, jobs: Jobs, tmp_path: Path
) -> None:
    command = PARENTS[tool].command(jobs(backend=tool), tmp_path)
    module = f"trainyard.backends.{tool}.program"
    assert command == [sys.executable, "-P", "-m", "trainyard.compute.launch", f"{module}:train", str(tmp_path)]
    code = f"import sys, {module}; assert not {{'torch', 'transformers', 'peft'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_processes_of_deepspeed_each_see_a_device(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    job = jobs(backend="deepspeed", launch={"strategy": "zero2", "processes": 2})
    assert deepspeed.environment(job)["CUDA_VISIBLE_DEVICES"] == "0,1"


@pytest.mark.parametrize(
    ("backend", "here", "device"),
    [
        ("script", ("mps", "cpu"), "mps"),
        ("mlx", ("mps", "cpu"), "mps"),
        ("mlx", ("cuda", "cpu"), "cpu"),
        ("unsloth", ("mps", "cpu"), "cpu"),
        ("deepspeed", ("cuda", "cpu"), "cuda"),
        ("llamacpp", ("cuda", "cpu"), "cpu"),
    ],
)
def test_auto_takes_the_first_device_here_that_the_backend_takes(
    backend: str, here: tuple[str, ...], device: str
) -> None:
    assert pick_device(Device.AUTO, BackendName(backend), [Device(name) for name in here]) == device


def test_apple_s_device_is_taken_where_the_backend_computes_on_it() -> None:
    here = (Device.MPS, Device.CPU)
    assert pick_device(Device.MPS, BackendName.SCRIPT, here) == "mps"
    assert pick_device(Device.CPU, BackendName.SCRIPT, here) == "cpu"
    with pytest.raises(
        InvalidInput, match=r"E-DEVICE: .*'mps'.*It computes on cpu, cuda, and this machine has mps, cpu"
    ):
        pick_device(Device.MPS, BackendName.UNSLOTH, here)
    with pytest.raises(InvalidInput, match=r"E-DEVICE: .*'cuda'.*this machine has mps, cpu"):
        pick_device(Device.CUDA, BackendName.SCRIPT, here)


# The plan


def test_plan_names_the_same_rows_for_a_step_however_it_is_shared(jobs: Jobs, tmp_path: Path) -> None:
    shapes = {"one": (1, 4, 1), "cut": (1, 2, 2), "two": (2, 2, 1), "four": (4, 1, 1)}
    steps = {}
    for name, (processes, rows, accumulation) in shapes.items():
        job = jobs(
            backend="deepspeed",
            launch={"strategy": "zero1", "processes": processes},
            hyperparameters={"batch_size": rows, "gradient_accumulation": accumulation},
        )
        desk = plan_job(job, tmp_path / name)
        lines = list(desk.steps(0))
        steps[name] = [(line["rate"], [row for micro in line["rows"] for row in micro]) for line in lines]
        assert all(len(micro) <= rows for line in lines for micro in line["rows"])
    assert steps["one"] == steps["cut"] == steps["two"] == steps["four"]
    assert len(steps["one"]) == 14
    assert sorted(row for _, rows in steps["one"][:7] for row in rows) == list(range(28))


def test_plan_holds_the_account_the_shape_and_the_tokenizer(jobs: Jobs, tmp_path: Path) -> None:
    desk = plan_job(jobs(backend="unsloth", method={"type": "lora", "profile": "classic"}), tmp_path)
    assert desk.plan["ledger"]["rows"] == {"read": 30, "trained": 28, "truncated": 3, "dropped_truncated": 2}
    assert (desk.plan["total_steps"], desk.plan["steps_per_epoch"], desk.plan["device"]) == (14, 7, "cpu")
    assert desk.plan["lora"]["target_modules"] == ["q_proj", "v_proj"]
    assert json.loads((desk.plan_folder / names.MODULES_FILE).read_text()) == ["q_proj", "v_proj"]
    assert LoraConfig.from_pretrained(str(desk.plan_folder / names.ADAPTER_FOLDER)).r == 8
    assert "<|im_start|>" in (desk.plan_folder / names.TOKENIZER_FOLDER / "chat_template.jinja").read_text()
    assert not (desk.plan_folder / names.ADAPTER_FOLDER / names.ADAPTER_WEIGHTS).exists()


def test_first_weights_of_an_adapter_are_a_function_of_the_seed(jobs: Jobs, tmp_path: Path) -> None:
    folders = [
        plan_job(
            jobs(backend="axolotl", hyperparameters={"seed": seed}), tmp_path / name, first_weights=True
        ).plan_folder
        for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    digests = [
        hashlib.sha256((folder / names.ADAPTER_FOLDER / names.ADAPTER_WEIGHTS).read_bytes()).hexdigest()
        for folder in folders
    ]
    assert digests[0] == digests[1] != digests[2]


def test_learning_rates_of_the_plan_are_those_of_the_native_engine(jobs: Jobs, tmp_path: Path) -> None:
    hyper = {"schedule": "cosine", "warmup_ratio": 0.2, "max_steps": 10}
    rates = [line["rate"] for line in plan_job(jobs(backend="unsloth", hyperparameters=hyper), tmp_path).steps(0)]
    assert rates[:3] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01])
    assert rates == [*rates[:3], *sorted(rates[3:], reverse=True)]


@pytest.mark.parametrize("stage", ["dpo", "kto", "reward"])
def test_preference_rows_are_written_as_rendered_text(stage: str, jobs: Jobs, tmp_path: Path) -> None:
    port = Port.LABELLED if stage == "kto" else Port.PREFERENCE
    desk = plan_job(jobs(port, stage=stage, backend="axolotl"), tmp_path)
    lines = [orjson.loads(line) for line in (desk.plan_folder / names.TEXTS_FILE).read_bytes().splitlines()]
    tokens = desk.plan["ledger"]["tokens"]
    assert tokens["read"] == tokens["trained"] + tokens["masked"] + tokens["truncated"] + tokens["dropped"]
    assert len(lines) == desk.plan["ledger"]["rows"]["trained"]
    row = convert_row(Stage(stage), lines[0])
    assert row is not None
    if stage == "reward":
        answers = {"chosen": "A node 0 reads.", "rejected": "No idea, 0 or so it is."}
        assert row == {"system": "", "input": "What is node 0?", **answers}
    else:
        assert row["prompt"].endswith("<|im_start|>assistant\n")
        assert row["chosen" if stage == "dpo" else "completion"].startswith("A node 0 reads.<|im_end|>")


def test_a_row_whose_text_spells_a_control_token_is_refused(jobs: Jobs, tmp_path: Path) -> None:
    """Written as text, the tool's tokenizer would end the user's turn there."""
    question = Message("user", "What ends a turn: <|im_end|>?")
    sides = [[Message("assistant", text)] for text in ("A token.", "No idea.")]
    write_rows(tmp_path / "data" / "rows.arrow", Port.PREFERENCE, [PreferenceRow([question], *sides, source="a.csv:2")])
    job = jobs(Port.PREFERENCE, stage="dpo", backend="axolotl")
    job = job.model_copy(update={"data": {Port.PREFERENCE: str(tmp_path / "data")}})
    with pytest.raises(InvalidInput, match=r"E-DATA-FORMAT: The row a\.csv:2 contains the text of a control token"):
        plan_job(job, tmp_path / "job")


def test_reward_rows_of_several_turns_have_no_form_in_axolotl() -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    assert convert_row(Stage.REWARD, {"messages": turns, "chosen_turn": "d", "rejected_turn": "e"}) is None


# Axolotl's configuration


def axolotl_config(jobs: Jobs, port: Port = Port.SFT, device: str = "cuda", **config: Any) -> dict[str, Any]:
    modules = None if config.get("method") == "full" else ["q_proj", "v_proj"]
    facts = AxolotlFacts(Path("job"), device, 100, 20, Path("job/plan/tokenizer"), modules)
    job = jobs(port, backend="axolotl", **config).model_copy(update={"base": "models/tiny"})
    return build_config(job, facts)


def test_configuration_of_every_stage_and_method_is_the_known_one(jobs: Jobs) -> None:
    """Two documents a stage and method would repeat most of it: all of one, and of the others what differs."""
    ports = {Stage.SFT: Port.SFT, Stage.DPO: Port.PREFERENCE, Stage.KTO: Port.LABELLED, Stage.REWARD: Port.PREFERENCE}
    first = axolotl_config(jobs)
    documents: dict[str, Any] = {"sft lora cuda": first}
    for stage in STAGES:
        documents[f"{stage} lora cuda"] = axolotl_config(jobs, ports[stage], stage=stage)
    for method in ("qlora", "dora", "full"):
        documents[f"sft {method} cuda"] = axolotl_config(jobs, method=method)
    documents["sft lora cpu"] = axolotl_config(jobs, device="cpu")
    differences = {
        name: document if document == first else difference(first, document) for name, document in documents.items()
    }
    text = yaml.safe_dump(differences, sort_keys=False)
    assert text == GOLDEN.read_text()


def test_steps_of_warmup_and_own_keys_are_written(jobs: Jobs) -> None:
    changes = {"hyperparameters": {"warmup_steps": 7}, "extra": {"neftune_noise_alpha": 5, "plugins": ["axolotl.x"]}}
    config = axolotl_config(jobs, **changes)
    assert (config["warmup_steps"], config["neftune_noise_alpha"], config["plugins"]) == (7, 5, ["axolotl.x"])
    assert "warmup_ratio" not in config


def test_every_key_that_is_written_is_not_a_chains_to_give(jobs: Jobs) -> None:
    """`extra` would change the run behind the back of the settings that say it."""
    ports = {Stage.SFT: Port.SFT, Stage.DPO: Port.PREFERENCE, Stage.KTO: Port.LABELLED, Stage.REWARD: Port.PREFERENCE}
    written = {key for stage in STAGES for key in axolotl_config(jobs, ports[stage], stage=stage)}
    written |= {key for method in ("qlora", "dora", "full") for key in axolotl_config(jobs, method=method)}
    kernels = {"lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"}
    fixed = {"attn_implementation"}
    assert written - OWN_KEYS[BackendName.AXOLOTL].keys() - kernels <= fixed


AXOLOTL_DOUBLE = """
from pydantic import BaseModel


class AxolotlInputConfig(BaseModel):
    base_model: str
    lora_r: int = 8
    neftune_noise_alpha: float | None = None
"""


def test_own_keys_are_asked_for_in_the_schema_of_the_tools_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real worker module, in an interpreter in which a package of axolotl's name has a schema of three keys."""
    folder = tmp_path / "axolotl" / "utils" / "schemas"
    folder.mkdir(parents=True)
    (folder / "config.py").write_text(AXOLOTL_DOUBLE)
    names = ("SFTDataset", "DPODataset", "KTODataset")
    (folder / "datasets.py").write_text("from pydantic import BaseModel\n" + "".join(
        f"class {name}(BaseModel): path: str\n" for name in names
    ))  # fmt: skip
    monkeypatch.setattr(axolotl_program.environments, "find_python", lambda _name: Path(sys.executable))
    variables = {"PYTHONPATH": f"{tmp_path}:{REPOSITORY / 'trainyard' / 'workers'}"}

    def ask(**extra: Any) -> None:
        (tmp_path / "axolotl.yaml").write_text(yaml.safe_dump({"base_model": "tiny", "lora_r": 4, **extra}))
        axolotl_program.require_valid(tmp_path, variables)

    ask(neftune_noise_alpha=5)
    with pytest.raises(InvalidInput, match=r"no key 'neftune_noise_alfa'.*Did you mean 'neftune_noise_alpha'"):
        ask(neftune_noise_alfa=5)
    with pytest.raises(InvalidInput, match=r"schema refuses the configuration: neftune_noise_alpha: .*number.*`extra`"):
        ask(neftune_noise_alpha="much")


def difference(first: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    changed = {name: value for name, value in other.items() if name not in first or first[name] != value}
    return changed | {name: "(left out)" for name in first if name not in other}


def test_steps_are_read_from_lines_that_a_progress_bar_has_overwritten() -> None:
    text = (
        b"  0%|          | 0/6 [00:00<?]{'loss': '5.988', 'grad_norm': '1.587', 'learning_rate': '0', 'ppl': '398.6'}\r"
        b" 17%|#         | 1/6{'loss': 6.077, 'learning_rate': 0.005}\n{'train_runtime': '1.2', 'train_loss': '5.8'}"
    )
    assert len(STEP_LINE.findall(text)) == 2


def test_line_that_is_not_whole_yet_is_read_at_the_next_look(tmp_path: Path) -> None:
    log = tmp_path / LOG_FILE
    tail = LineTail(log)
    log.write_bytes(b"{'loss': '5.9', 'learning_")
    assert list(new_steps(tail)) == []
    with log.open("ab") as stream:
        stream.write(b"rate': '0.1'}\n{'loss': '5.8'}\n")
    assert [values["loss"] for values in new_steps(tail)] == ["5.9", "5.8"]
    assert list(new_steps(tail)) == []


def test_checkpoint_counts_when_its_last_file_is_whole(tmp_path: Path) -> None:
    for step, text in ((2, '{"log_history": []}'), (4, '{"log_h'), (6, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if text is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(text)
    assert [step for step, _ in list_finished(tmp_path)] == [2]


# DeepSpeed's launcher, locks and checkpoints


@pytest.fixture
def python(home: Path) -> Path:
    """The interpreter of an environment of deepspeed, which is a link as the installer makes it."""
    interpreter = home / "envs" / ".deepspeed-1" / "bin" / "python"
    interpreter.parent.mkdir(parents=True)
    interpreter.symlink_to(sys.executable)
    (home / "envs" / "deepspeed").symlink_to(".deepspeed-1")
    return interpreter


def make_run(job: TrainingJob, folder: Path, checkpoint: FoundCheckpoint) -> ExternalRun:
    return ExternalRun(job, folder, Events(folder / "events.jsonl"), "cpu", checkpoint, {})


def test_launchers_are_started_in_the_interpreter_of_deepspeed(jobs: Jobs, tmp_path: Path, python: Path) -> None:
    launch = {"strategy": "zero2", "processes": 2}
    job = jobs(backend="deepspeed", launch=launch)
    argv = deepspeed_program.argv(make_run(job, tmp_path, FoundCheckpoint(None, 0)))
    assert argv[:3] == [str(python), "-m", "torch.distributed.run"]
    assert "--nproc-per-node=2" in argv
    assert argv[-4:] == ["-m", *deepspeed_program.WORKER, str(tmp_path)]
    own_launcher = jobs(backend="deepspeed", launch=launch | {"launcher": "deepspeed"})
    argv = deepspeed_program.argv(make_run(own_launcher, tmp_path, FoundCheckpoint(None, 0)))
    assert argv[:2] == [str(python), str(python.with_name("deepspeed"))]


def test_operators_are_looked_for_where_they_were_compiled(
    jobs: Jobs, tmp_path: Path, python: Path, home: Path
) -> None:
    """By the real path of the environment: under the link's name ninja would compile them anew."""
    run = make_run(jobs(backend="deepspeed"), tmp_path, FoundCheckpoint(None, 0))
    beside = home / "envs" / "extensions-deepspeed"
    assert deepspeed_program.variables(run)["TORCH_EXTENSIONS_DIR"] == str(beside)
    (home / "envs" / "deepspeed" / "torch_extensions").mkdir()
    extensions = home / "envs" / ".deepspeed-1" / "torch_extensions"
    assert deepspeed_program.variables(run)["TORCH_EXTENSIONS_DIR"] == str(extensions)


def test_locks_of_dead_compilers_are_removed_and_those_of_living_ones_kept(tmp_path: Path) -> None:
    for name in ("finished", "old", "young"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    (tmp_path / "finished" / "op.so").touch()
    long_ago = time.time() - 3600
    os.utime(tmp_path / "old" / "lock", (long_ago, long_ago))
    assert [lock.parent.name for lock in clear_stale_locks(tmp_path)] == ["finished", "old"]
    assert (tmp_path / "young" / "lock").exists()


def checkpoint(folder: Path, step: int, **facts: Any) -> FoundCheckpoint:
    temporary, _ = checkpoint_places(folder, step)
    (temporary / f"global_step{step}").mkdir(parents=True)
    (temporary / "latest").write_text(f"global_step{step}")
    (temporary / f"global_step{step}" / "state.pt").write_bytes(b"state")
    commit(folder, step, facts)
    return newest_valid(folder / "checkpoints")


def test_worker_writes_checkpoints_that_are_verified_and_keeps_two(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        newest = checkpoint(tmp_path, step, processes=1, strategy="single")
    assert newest.step == 6
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-0000000004", "step-0000000006"]
    assert newest.path is not None
    (newest.path / "latest").write_text("global_step4")
    again = newest_valid(tmp_path / "checkpoints")
    assert again.step == 4
    assert again.quarantined


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"processes": 2, "strategy": "zero1"}, "made with processes 2, this run has 1"),
        ({"processes": 1, "strategy": "zero1"}, "made with strategy zero1, this run has single"),
    ],
)
@pytest.mark.usefixtures("python")
def test_checkpoint_of_other_shares_is_refused(facts: dict[str, Any], message: str, jobs: Jobs, tmp_path: Path) -> None:
    run = make_run(jobs(backend="deepspeed"), tmp_path, checkpoint(tmp_path, 2, **facts))
    with pytest.raises(Corrupt, match=rf"E-CHECKPOINT-MISMATCH: .*{message}"):
        deepspeed_program.check(run)


@pytest.mark.usefixtures("python")
def test_pointer_to_a_missing_state_is_refused(jobs: Jobs, tmp_path: Path) -> None:
    newest = checkpoint(tmp_path, 2, processes=1, strategy="single")
    assert newest.path is not None
    (newest.path / "latest").write_text("global_step9")
    with pytest.raises(Corrupt, match=r"E-CHECKPOINT-CORRUPT: .*names global_step9 as its latest state"):
        deepspeed_program.check(make_run(jobs(backend="deepspeed"), tmp_path, newest))


def test_loss_that_is_no_number_is_told() -> None:
    with pytest.raises(WorkerError, match="E-NON-FINITE: The loss of step 3 is nan"):
        require_finite(3, float("nan"))


# The runner, with programs of a few lines in the place of the tool

WRITE_WEIGHTS = """shutil.copy(folder / "plan" / "made.safetensors", made / "adapter_model.safetensors")"""
WELL = """
import json, pathlib, shutil, sys
folder = pathlib.Path(sys.argv[1])
made = folder / "made" / "weights"
made.mkdir(parents=True)
shutil.copy(folder / "plan" / "adapter" / "adapter_config.json", made)
shutil.copy(folder / "plan" / "made.safetensors", made / "adapter_model.safetensors")
print("the tool says hello")
report = {"losses": [[1, 2.0, 0.1], [2, 1.0, 0.1]], "tool": {"name": "toy", "version": "7"},
          "versions": {"toy": "7"}, "precision": "fp32", "precision_why": "toy"}
(folder / "made" / "report.json").write_text(json.dumps(report))
"""
ENDLESS = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
HALTING = """
import json, pathlib, signal, sys, time
def halt(*_):
    (pathlib.Path(sys.argv[1]) / "halt.json").write_text(json.dumps({"step": 5}))
    sys.exit(0)
signal.signal(signal.SIGTERM, halt)
time.sleep(600)
"""
BROKEN = "import sys\nprint('no such layer', file=sys.stderr)\nsys.exit(3)"
TELLING = """
import json, pathlib, sys
error = {"kind": "TrainyardError", "code": "E-DEVICE-MEMORY", "what": "The device ran out of memory.", "why": "",
         "do": "Lower batch_size."}
(pathlib.Path(sys.argv[1]) / "failure.json").write_text(json.dumps(error))
sys.exit(1)
"""


def toy(program: str) -> ExternalTool:
    return ExternalTool(argv=lambda run: [sys.executable, "-c", program, str(run.folder)])


class StopOn(Events):
    """Asked to stop as soon as an event of a name is emitted."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path)
        self.name = name

    def emit(self, event: str, **fields: Any) -> None:
        super().emit(event, **fields)
        if event == self.name:
            time.sleep(0.5)  # the program has begun by then
            self.request_stop()


@pytest.fixture(scope="module")
def plan(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work folder with its plan, made once."""
    folder = tmp_path_factory.mktemp("planned")
    job = jobs(backend="unsloth")
    plan_job(job, folder)
    config = LoraConfig.from_pretrained(folder / "plan" / "adapter")
    with warnings.catch_warnings(action="ignore"):  # PEFT asks transformers for a name that goes
        model = get_peft_model(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(job.base)), config)
    weights = {name: torch.full_like(value, 0.01) for name, value in get_peft_model_state_dict(model).items()}
    save_file(weights, folder / "plan" / "made.safetensors", metadata={"format": "pt"})
    return folder


def lead_program(program: str, plan: Path, folder: Path, stop_on: str = "never") -> list[dict[str, Any]]:
    """Lead a program through the planned job; returns the events."""
    if plan != folder:
        shutil.copytree(plan, folder, dirs_exist_ok=True)
    events = StopOn(folder / "events.jsonl", stop_on)
    job = TrainingJob.model_validate_json((folder / SPEC_FILE).read_text())
    written_plan = orjson.loads((folder / names.PLAN_FOLDER / names.PLAN_FILE).read_bytes())
    try:
        run_tool(ExternalRun(job, folder, events, "cpu", FoundCheckpoint(None, 0), written_plan), toy(program))
    finally:
        events.close()
    return [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]


def test_result_of_a_tool_is_completed_and_sealed(plan: Path, tmp_path: Path) -> None:
    log = tmp_path / LOG_FILE
    log.write_text("of an earlier start\n")
    events = lead_program(WELL, plan, tmp_path)
    assert [event["event"] for event in events] == ["program", "metrics"]
    result = tmp_path / "result"
    record = json.loads((result / "adapter" / "training.json").read_text())
    assert record["tool"] == {"name": "toy", "version": "7", "log_head": "the tool says hello"}
    assert (record["first_loss"], record["final_loss"], record["backend"]) == (2.0, 1.0, "unsloth")
    assert (record["steps"], record["epochs"], record["data"]["rows"]["trained"]) == (14, 2.0, 28)
    assert record["tokens"] == {name: 2 * record["data"]["tokens"][name] for name in ("trained", "masked")}
    assert (record["rows"], record["counted"]) == ({"trained": 56}, "plan")
    assert (result / "adapter" / "tokenizer" / "tokenizer.json").is_file()
    assert (result / "manifest.json").is_file()
    assert not (tmp_path / "made").exists()
    assert record["adapter_run"] == "yes"


@pytest.mark.parametrize("fault", ["missing", "shape", "infinite"])
def test_an_adapter_that_its_base_cannot_run_is_no_result(fault: str, plan: Path, tmp_path: Path) -> None:
    shutil.copytree(plan, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "plan" / "made.safetensors"
    weights = load_file(path)
    name = next(iter(weights))
    faults = {"missing": {}, "shape": {name: weights[name][:1]}, "infinite": {name: weights[name] * float("inf")}}
    changed = faults[fault]
    unchanged = {key: value for key, value in weights.items() if key != name}
    save_file({**unchanged, **changed}, path, metadata={"format": "pt"})
    with pytest.raises(TrainyardError, match="E-ADAPTER-INVALID"):
        lead_program(WELL, tmp_path, tmp_path)
    assert not (tmp_path / "result").exists()


def test_tool_that_halts_after_saving_is_stopped_at_its_step(plan: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped) as stopped:
        lead_program(HALTING, plan, tmp_path, stop_on="program")
    assert stopped.value.fields == {"step": 5}


def test_tool_that_ends_by_the_signal_is_stopped_without_a_step(plan: Path, tmp_path: Path) -> None:
    with pytest.raises(Stopped) as stopped:
        lead_program(ENDLESS, plan, tmp_path, stop_on="program")
    assert stopped.value.fields == {"program_exit": -15}


def test_failure_of_a_tool_is_told_with_the_last_line_of_its_log(plan: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainyardError, match=r"E-PROGRAM: unsloth ended with exit code 3\. Why: no such layer"):
        lead_program(BROKEN, plan, tmp_path)


def test_error_that_a_tool_leaves_keeps_its_code(plan: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainyardError, match="E-DEVICE-MEMORY: The device ran out of memory"):
        lead_program(TELLING, plan, tmp_path)


def test_tool_without_weights_has_no_result(plan: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainyardError, match=r"E-PROGRAM: unsloth ended without adapter_model\.safetensors"):
        lead_program(WELL.replace(WRITE_WEIGHTS, ""), plan, tmp_path)
    assert not (tmp_path / "result").exists()


@pytest.mark.slow  # the plan is made in a process of its own
def test_error_of_the_plan_reaches_the_caller(jobs: Jobs, tmp_path: Path) -> None:
    work_folder(jobs(backend="unsloth", method={"type": "lora", "target_modules": ["no_such_proj"]}), tmp_path)
    events = Events(tmp_path / "events.jsonl")
    with pytest.raises(InvalidInput, match="E-TRAINABLE: The adapter does not fit the model"):
        run_external(tmp_path, events, toy(WELL))
    events.close()


def test_stop_during_the_plan_ends_it(jobs: Jobs, tmp_path: Path) -> None:
    work_folder(jobs(backend="unsloth"), tmp_path)
    events = Events(tmp_path / "events.jsonl")
    events.request_stop()
    with pytest.raises(Stopped) as stopped:
        run_external(tmp_path, events, toy(WELL))
    events.close()
    assert stopped.value.fields == {"step": 0}
