"""Tests of tasks see no data of this machine, unless they ask for the real ones."""

import pytest


@pytest.fixture(autouse=True)
def _no_data(tmp_path, monkeypatch):
    monkeypatch.delenv("FL_APP_DATA", raising=False)
    monkeypatch.setenv("FL_APP_CACHE", str(tmp_path / "cache"))
