"""Where Trainyard keeps its data when nobody says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard import locations


def test_a_checkout_has_one_home_for_make_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINYARD_HOME", raising=False)
    assert locations.default_home() == Path(locations.__file__).resolve().parents[1] / ".trainyard"
    assert locations.home_from_environment() == locations.default_home()


def test_an_installed_package_uses_the_data_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locations, "CHECKOUT", tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert locations.default_home() == tmp_path / "data" / "trainyard"
