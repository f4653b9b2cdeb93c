"""Units, image and profiles of the night: they parse, and the commands in them exist."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from trainyard.api.operations import OPERATIONS
from trainyard.serve.inference_server.commands import read_profile

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
    words = service["ExecStart"].split()
    if words[0].endswith("/trainyard"):
        assert " ".join(words[1:3]) in OPERATIONS or words[1] in OPERATIONS
    if preset := re.search(r"--preset (\S+)", service["ExecStart"]):
        assert (DEPLOYMENTS / "presets" / f"{preset.group(1)}.yaml").is_file()


def test_the_image_holds_the_training_stack() -> None:
    lines = (DEPLOYMENTS / "image" / "Containerfile").read_text().splitlines()
    words = [line.split()[0] for line in lines if line and not line.startswith(("#", " "))]
    assert words[0] == "FROM"
    assert set(words) <= {"FROM", "RUN", "WORKDIR", "COPY", "USER", "ENV", "ENTRYPOINT", "CMD"}
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
