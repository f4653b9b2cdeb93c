"""Units, image and profiles of the night: they parse, and the commands in them exist."""

from __future__ import annotations

import configparser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from trainyard.backends import environments as env
from trainyard.operations.table import OPERATIONS
from trainyard.serve.inference_server.commands import read_profile
from trainyard.spec.axes.backends import ServerName

pytestmark = pytest.mark.integration

DEPLOYMENTS = Path(__file__).parents[3] / "deployments"


@pytest.mark.parametrize("unit", sorted((DEPLOYMENTS / "systemd").glob("*.service")), ids=lambda path: path.stem)
def test_units_are_whole_and_their_commands_exist(unit: Path) -> None:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    assert set(parser.sections()) == {"Unit", "Service", "Install"}
    service = parser["Service"]
    assert service["User"] == "trainyard"
    assert service["Restart"] == "always"
    command = service["ExecStart"].split()
    if command[0].endswith("/trainyard"):
        assert " ".join(command[1:3]) in OPERATIONS or command[1] in OPERATIONS
    if preset := re.search(r"--preset (\S+)", service["ExecStart"]):
        assert (DEPLOYMENTS / "presets" / f"{preset.group(1)}.yaml").is_file()


def test_both_images_have_the_checkout_vllm_and_the_worker() -> None:
    container = (DEPLOYMENTS / "image" / "Containerfile").read_text()
    machine = (DEPLOYMENTS / "image" / "install.sh").read_text()
    for text in (container, machine):
        assert "make" in text
        assert "setup" in text
        assert "trainyard backends install vllm" in text
    assert "COPY --chown=trainyard . ." in container
    assert json.loads(re.search(r"^CMD (.*)$", container, re.MULTILINE).group(1))[:2] == ["nightly", "worker"]  # type: ignore[union-attr]
    assert "deployments/systemd/*.service" in machine
    assert env.pins(ServerName.VLLM)["vllm"]
    packed = (DEPLOYMENTS / "image" / "nightly.pkr.hcl").read_text()
    assert (DEPLOYMENTS / "image" / re.search(r'default\s+= "(\.\.[./]*)"', packed).group(1) / "Makefile").is_file()  # type: ignore[union-attr]
    assert {".venv", ".trainyard", ".git"} <= set((DEPLOYMENTS.parent / ".dockerignore").read_text().split())


def test_the_machine_of_the_night_is_an_l4_on_a_spot_machine() -> None:
    """Against Compute Engine's instanceTemplates resource; none of this was run in a project."""
    value = json.loads((DEPLOYMENTS / "gcp" / "instance-template.json").read_text())
    properties = value["properties"]
    assert properties["machineType"] == "g2-standard-4"
    assert properties["guestAccelerators"] == [{"acceleratorType": "nvidia-l4", "acceleratorCount": 1}]
    scheduling = properties["scheduling"]
    assert (scheduling["provisioningModel"], scheduling["instanceTerminationAction"]) == ("SPOT", "STOP")
    # A machine with a GPU cannot be migrated, and a spot machine cannot be restarted automatically.
    assert (scheduling["onHostMaintenance"], scheduling["automaticRestart"]) == ("TERMINATE", False)
    (disk,) = properties["disks"]
    family = re.search(r'\n\s+image_family\s+= "([\w-]+)"', (DEPLOYMENTS / "image" / "nightly.pkr.hcl").read_text())
    assert family is not None
    assert disk["initializeParams"]["sourceImage"] == f"global/images/family/{family.group(1)}"
    assert properties["machineType"] in (DEPLOYMENTS / "image" / "nightly.pkr.hcl").read_text()
    scripts = {item["key"]: item["value"] for item in properties["metadata"]["items"]}
    assert set(scripts) == {"startup-script", "shutdown-script"}
    for text in scripts.values():
        path = re.search(r"/opt/trainyard/(deployments/\S+)", text)
        assert path is not None
        assert (DEPLOYMENTS.parent / path.group(1)).is_file()


@pytest.mark.parametrize("script", sorted((DEPLOYMENTS / "gcp").glob("*.sh")), ids=lambda path: path.stem)
def test_scripts_of_the_machine_are_valid_and_name_what_is_there(script: Path) -> None:
    subprocess.run(["bash", "-n", str(script)], check=True)
    if shutil.which("shellcheck"):
        subprocess.run(["shellcheck", str(script)], check=True)
    assert script.stat().st_mode & 0o111
    text = script.read_text()
    for unit in re.findall(r"(trainyard-nightly-worker)\.service", text):
        assert (DEPLOYMENTS / "systemd" / f"{unit}.service").is_file()
    for name in re.findall(r"bin/trainyard (\w+ \w+)", text):
        assert name in OPERATIONS
    for preset in re.findall(r"--preset (\S+)", text):
        assert (DEPLOYMENTS / "presets" / f"{preset}.yaml").is_file()


def test_the_start_script_refuses_another_role_and_makes_or_starts_the_machine(tmp_path: Path) -> None:
    """With a stand-in for gcloud that writes down what it was asked: a machine that is there, then one that is not."""
    gcloud, log = tmp_path / "gcloud", tmp_path / "log"
    gcloud.write_text(f'#!/bin/sh\necho "$@" >> {log}\ncase "$*" in "$MISSING"*) exit 1 ;; esac\n')
    gcloud.chmod(0o755)

    def start(*arguments: str, missing: str = "nothing") -> subprocess.CompletedProcess[str]:
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "MISSING": missing}
        argv = ["bash", str(DEPLOYMENTS / "gcp" / "start.sh"), *arguments]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)

    assert start("laptop").returncode == 2
    assert not log.exists()
    assert start("worker", "gs://weights/night").returncode == 0
    log_text = log.read_text()
    assert "add-metadata trainyard-night" in log_text
    assert "trainyard-role=worker,trainyard-weights-store=gs://weights/night" in log_text
    assert log_text.splitlines()[-1].startswith("compute instances start trainyard-night")
    log.unlink()
    assert start("night", missing="compute instances describe").returncode == 0
    created = log.read_text().splitlines()[-1]
    assert created.startswith("compute instances create trainyard-night")
    assert "--source-instance-template=trainyard-night" in created
    assert "trainyard-role=night" in created


def test_the_image_holds_the_training_stack() -> None:
    lines = (DEPLOYMENTS / "image" / "Containerfile").read_text().splitlines()
    instructions = [line.split()[0] for line in lines if line and not line.startswith(("#", " "))]
    assert instructions[0] == "FROM"
    assert set(instructions) <= {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "ENTRYPOINT", "CMD"}
    assert any("make setup" in line for line in lines)
    assert lines[[line.startswith("USER") for line in lines].index(True)] == "USER trainyard"
    assert not [line for line in lines if line.startswith("FROM") and ("latest" in line or ":" not in line)]


def test_the_packer_template_is_balanced_and_names_files_that_are_there() -> None:
    folder = DEPLOYMENTS / "image"
    text = (folder / "nightly.pkr.hcl").read_text()
    bare = re.sub(r'"(?:[^"\\]|\\.)*"|#.*', "", text)
    assert bare.count("{") == bare.count("}")
    assert re.findall(r"^(packer|variable|source|build)\b", text, re.MULTILINE).count("build") == 1
    (script,) = re.findall(r"\$\{path\.root\}/(\S+)\"", text)
    assert (folder / script).is_file()
    declared, used = set(re.findall(r'variable "(\w+)"', text)), set(re.findall(r"var\.(\w+)", text))
    assert used == declared
    subprocess.run(["bash", "-n", str(folder / script)], check=True)
    if shutil.which("packer"):
        subprocess.run(["packer", "fmt", "-check", str(folder)], check=True)


@pytest.mark.parametrize("profile", sorted((DEPLOYMENTS / "profiles").glob("*.yaml")), ids=lambda path: path.stem)
def test_profiles_are_valid(profile: Path) -> None:
    assert read_profile(profile).engine.model
