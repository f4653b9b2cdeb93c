"""Where Trainyard keeps its data when nobody says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainyard import home


def test_a_checkout_has_one_home_for_make_and_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINYARD_HOME", raising=False)
    assert home.default_home() == Path(home.__file__).resolve().parents[1] / ".trainyard"
    assert home.home_from_environment() == home.default_home()


def test_an_installed_package_uses_the_data_folder_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home, "CHECKOUT", tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert home.default_home() == tmp_path / "data" / "trainyard"
