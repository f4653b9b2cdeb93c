"""`trainyard import` as a command: one config, a folder, a report, and what goes wrong."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from trainyard.app.chains.other_tools import ImportOutput, chain_name, import_configs
from trainyard.app.context import Context
from trainyard.app.plan.check import check_file
from trainyard.errors import Conflict, InvalidInput, NotFound, Refused
from trainyard.operations.chains import ImportInput, import_text
from trainyard.settings import settings

OWN = Path(__file__).parents[3] / "resources" / "imports"
ROW = {"instruction": "Add two and two.", "input": "", "output": "Four."}


@pytest.fixture
def work(tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(ROW | {"output": f"It is {n}."}) for n in range(40)))
    monkeypatch.setenv("TRAINYARD_WORKING_FOLDER", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings.cache_clear()
    return tmp_path


def import_source(source: Path, messages: list[str] | None = None, **fields: object) -> ImportOutput:
    lines = messages if messages is not None else []
    return import_configs(ImportInput(source=source, **fields), Context(settings(), lines.append))  # type: ignore[arg-type]


def test_a_config_becomes_a_file_that_check_accepts(work: Path, tiny_model: Path) -> None:
    messages: list[str] = []
    overrides = {"base_model": str(tiny_model), "data_source": {"path": "rows.jsonl"}}
    for tool in ("axolotl", "trl", "unsloth", "oumi", "torchtune"):
        out = work / f"{tool}.chain.yaml"
        result = import_source(OWN / f"{tool}.yaml", messages, settings=overrides, out=out)
        assert result.exit_code == 0
        file_check = check_file(out, Context(settings(), messages.append))
        assert file_check.ok, [reason.line for reason in file_check.reasons]
        assert import_text(result).startswith(f"{out}: ")
    assert any("WANDB" in line or "profile" in line.lower() or "store" in line for line in messages)


def test_without_out_the_chain_is_printed(work: Path) -> None:
    printed = import_text(import_source(OWN / "axolotl.yaml"))
    assert printed.startswith("# Imported from axolotl.yaml, a config of Axolotl.")
    assert yaml.safe_load(printed)["name"] == "axolotl"


def test_a_report_has_every_key(work: Path) -> None:
    source = work / "own.yaml"
    source.write_text((OWN / "axolotl.yaml").read_text() + "relora: true\n")
    result = import_source(source, report=True)
    assert result.exit_code == 5
    text = import_text(result)
    assert "refused  relora" in text
    assert text.splitlines()[-1].endswith("1 refused")
    with pytest.raises(Refused, match="E-IMPORT-KEY relora: ReLoRA is not a method here"):
        import_source(source)


def test_every_config_of_a_folder(work: Path) -> None:
    folder = work / "configs"
    shutil.copytree(OWN, folder / "good")
    (folder / "bad.yaml").write_text((OWN / "axolotl.yaml").read_text() + "relora: true\n")
    (folder / "broken.yaml").write_text("a: [1\n")
    (folder / "other.yaml").write_text("services: []\n")
    result = import_source(folder, out=work / "chains")
    lines = import_text(result).splitlines()
    assert result.exit_code == 5
    assert lines[-1] == "6 of 8 configs became chains; 1 files are not configs of trainings."
    assert [
        line for line in lines if line.startswith(f"{folder / 'bad.yaml'}: axolotl, ") and "1 refused: relora" in line
    ]
    assert [line for line in lines if line.startswith(f"{folder / 'broken.yaml'}: E-SPEC-SYNTAX")]
    assert [line for line in lines if line.startswith(f"{folder / 'other.yaml'}: skipped: E-IMPORT-TOOL")]
    assert len(list((work / "chains" / "good").iterdir())) == 6


def test_what_is_not_there(work: Path) -> None:
    (work / "empty").mkdir()
    with pytest.raises(NotFound, match=r"E-SPEC-FILE: .* contains no config"):
        import_source(work / "empty")
    with pytest.raises(NotFound, match="E-SPEC-FILE"):
        import_source(work / "none.yaml")


def test_broken_yaml_says_the_line(work: Path) -> None:
    (work / "broken.yaml").write_text("base_model: x\nadapter: [lora\n")
    with pytest.raises(InvalidInput, match="E-SPEC-SYNTAX line"):
        import_source(work / "broken.yaml")


def test_a_file_is_not_overwritten(work: Path) -> None:
    out = work / "chain.yaml"
    import_source(OWN / "axolotl.yaml", out=out)
    with pytest.raises(Conflict, match="E-FILE-EXISTS"):
        import_source(OWN / "axolotl.yaml", out=out)


def test_a_tool_can_be_named(work: Path) -> None:
    (work / "short.yaml").write_text("model_name_or_path: x\nlearning_rate: 1.0e-4\n")
    with pytest.raises(InvalidInput, match="E-IMPORT-TOOL"):
        import_source(work / "short.yaml")
    result = import_source(
        work / "short.yaml", tool="trl", settings={"data_source": {"path": "rows.jsonl"}, "stage": "sft"}
    )
    assert result.files[0].tool == "trl"


def test_names() -> None:
    names = [chain_name(Path(name)) for name in ("Qwen3 8B_LoRA.yaml", "___.yml", f"{'a' * 80}.yaml", "ß.yaml")]
    assert names == ["qwen3-8b-lora", "chain", "a" * 63, "chain"]


# LLaMA-Factory's list of data sets

LISTED = {
    "house": {"file_name": "house.json"},
    "chats": {"hf_hub_url": "acme/chats", "subset": "en", "split": "test", "formatting": "sharegpt", "num_samples": 9},
    "pairs": {"file_name": "pairs.json", "ranking": True, "columns": {"prompt": "instruction", "chosen": "chosen"}},
    "renamed": {"file_name": "r.json", "columns": {"prompt": "ask", "response": "output"}},
    "tagged": {"file_name": "t.json", "formatting": "sharegpt", "tags": {"role_tag": "speaker"}},
    "script": {"script_url": "acme/loader"},
    "pictures": {"file_name": "p.json", "columns": {"prompt": "ask", "response": "output", "images": "images"}},
}


def with_list(work: Path, folder: str, dataset: str) -> Path:
    (work / folder).mkdir()
    (work / folder / "dataset_info.json").write_text(json.dumps(LISTED))
    config = yaml.safe_load((OWN / "llamafactory.yaml").read_text())
    config |= {"dataset": dataset, "dataset_dir": folder, "stage": "sft"}
    for key in ("pref_beta", "pref_loss", "pref_ftx", "max_samples"):
        config.pop(key, None)
    (work / "own.yaml").write_text(yaml.safe_dump(config))
    return work / "own.yaml"


def read_source(path: Path) -> dict[str, object]:
    chain = yaml.safe_load(import_text(import_source(path)))
    return dict(chain["nodes"][0]["config"])


def test_a_limit_is_one_of_each_set_and_the_default_alpha_is_printed(work: Path) -> None:
    path = with_list(work, "data", "house,script-free")
    config = {
        "model_name_or_path": "acme/base", "stage": "sft", "finetuning_type": "lora", "lora_rank": 64,
        "dataset": "first,second", "dataset_dir": "data", "max_samples": 40, "template": "qwen3",
    }  # fmt: skip
    path.write_text(yaml.safe_dump(config))
    listed = {"first": {"file_name": "first.json"}, "second": {"file_name": "second.json"}}
    (work / "data" / "dataset_info.json").write_text(json.dumps(listed))
    messages: list[str] = []
    result = import_source(path, messages, out=work / "chain.yaml")
    nodes = yaml.safe_load((work / "chain.yaml").read_text())["nodes"]
    assert {data_set["path"]: data_set["max_rows"] for data_set in nodes[0]["config"]["mix"]["sets"].values()} == {
        "data/first.json": 40, "data/second.json": 40,
    }  # fmt: skip
    assert nodes[1]["config"]["method"]["alpha"] == 128
    assert any("LLaMA-Factory's own defaults" in line and "method.alpha 128 (lora_alpha)" in line for line in messages)
    assert result.files[0].counts["default"] > 5
    assert "# Left out, so LLaMA-Factory's own defaults" in (work / "chain.yaml").read_text()


def test_a_column_that_is_not_listed_is_not_read_there(work: Path) -> None:
    path = with_list(work, "data", "house")
    (work / "data" / "house.json").write_text(json.dumps([{"instruction": "a", "output": "b", "system": "Be kind."}]))
    assert read_source(path) == {
        "sets": {
            "sft": {
                "path": "data/house.json",
                "columns": {"prompt": "instruction", "input": "input", "completion": "output"},
            }
        }
    }
    listed = {"house": {"file_name": "house.json", "columns": {"prompt": "instruction", "response": "output",
                                                               "system": "system"}}}  # fmt: skip
    (work / "data" / "dataset_info.json").write_text(json.dumps(listed))
    assert read_source(path) == {"path": "data/house.json", "format": "alpaca"}


def test_the_family_of_a_base_on_this_machine_chooses_the_modules(work: Path) -> None:
    (work / "base").mkdir()
    (work / "base" / "config.json").write_text(json.dumps({"model_type": "gpt_neox"}))
    keys = {"model_name_or_path": "base", "dataset_name": "rows.jsonl", "use_peft": True, "completion_only_loss": True}
    (work / "own.yaml").write_text(yaml.safe_dump(keys))
    chain = yaml.safe_load(import_text(import_source(work / "own.yaml")))
    assert chain["nodes"][1]["config"]["method"]["target_modules"] == ["query_key_value"]


# Files of other tools

OTHERS = {
    "ludwig.yaml": (
        "model_type: llm\nbase_model: org/m\ninput_features: [{name: prompt, type: text}]\n"
        "adapter: {type: lora, r: 8}\ntrainer: {type: finetune, epochs: 3}\n"
    ),
    "nemo.yaml": "sft: {max_num_epochs: 1}\npolicy: {model_name: org/m}\ndata: {train: {split: train}}\n",
    "swift.yaml": (
        "rlhf_type: dpo\nmodel: org/m\ntuner_type: lora\ndataset: [org/rows]\nnum_train_epochs: 1\n"
        "micro_batch_size: 2\nlr: 1.0e-4\n"
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_config_of_a_tool_that_is_not_known_says_which_is_the_nearest(work: Path, name: str) -> None:
    (work / name).write_text(OTHERS[name])
    with pytest.raises(InvalidInput, match=r"E-IMPORT-TOOL: This is not a config of a tool .* Of its \d+ keys"):
        import_source(work / name)
    if name != "swift.yaml":
        with pytest.raises(InvalidInput, match="This is not a config of Axolotl"):
            import_source(work / name, tool="axolotl")


def test_toml_is_no_config_of_a_known_tool(work: Path) -> None:
    (work / "train.toml").write_text('max_steps = 20\n[model]\nname = "org/m"\n')
    with pytest.raises(InvalidInput, match=r"E-IMPORT-TOOL: train.toml is not .* TOML, in which prime-rl"):
        import_source(work / "train.toml")


def test_data_sets_are_those_of_the_list_next_to_the_config(work: Path) -> None:
    assert read_source(with_list(work, "one", "house")) == {"path": "one/house.json", "format": "alpaca"}
    several = read_source(with_list(work, "two", "house,chats"))
    assert several == {
        "mix": {
            "sets": {
                "house-json": {"path": "two/house.json", "format": "alpaca"},
                "chats": {
                    "hub": {"name": "acme/chats", "config": "en", "split": "test"}, "format": "sharegpt", "max_rows": 9
                },
            },
            "exhausted": "continue",
            "port": "sft",
        }
    }  # fmt: skip


@pytest.mark.parametrize(
    ("dataset", "problem"),
    [
        ("pictures", "pictures has a column for images, which a data source here does not read"),
        ("tagged", "tagged has the role_tag 'speaker', and turns here are read by from or role"),
        ("script", "script is at a script_url, which is not read"),
        ("other", "other is not in dataset_info.json"),
    ],
)
def test_a_data_set_that_is_not_read_by_its_names_is_refused(work: Path, dataset: str, problem: str) -> None:
    with pytest.raises(Refused, match=problem):
        import_source(with_list(work, "listed", dataset))
