"""Runs on data of the user's own, from the command line."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import own_files
import pytest
from omegaconf import OmegaConf

from fl_app.__main__ import main
from fl_app.tasks.schema import __main__ as schema_command
from fl_app.tasks.schema import read_schema

SMALL = [
    *(f"num_clients={own_files.CLIENTS}", "num_versions=6", "eval_every=3"),
    *("algorithm.client.batch_size=8", "runtime.workers=0"),
]


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FL_APP_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *overrides: str) -> dict[str, Any]:
    words = ["fl_app", *SMALL, f"hydra.run.dir={folder}", *overrides]
    monkeypatch.setattr(sys, "argv", words)
    assert main() == 0
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return summary


def test_nothing_is_begun_with_data_that_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*own_files.table(tmp_path), "task.target=bougth"]
    arguments = ["fl_app", *SMALL, f"hydra.run.dir={tmp_path}/run", *words]
    monkeypatch.setattr(sys, "argv", arguments)
    assert main() == 2
    error = capsys.readouterr().err
    assert "error: task.target=bougth must be a column of task.path=" in error
    assert "has first, second, city, bought, price, user" in error
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file()]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_run_on_a_schema_keeps_its_contents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = own_files.table(tmp_path)
    assert schema_command.main([*words, "-o", "schema.json"]) == 0
    assert "schema.json: classification, inputs 4, outputs no, yes" in capsys.readouterr().out
    before = run(monkeypatch, tmp_path / "plain", *words)
    summary = run(monkeypatch, tmp_path / "run", *words, "task.schema=schema.json")
    assert summary["model_sha256"] == before["model_sha256"]
    kept = OmegaConf.load(tmp_path / "run" / "config.yaml").task.schema
    assert read_schema(kept) == read_schema("schema.json")
    again = run(
        monkeypatch, tmp_path / "run", *words, "task.schema=schema.json", "resume=auto",
        "num_versions=8",
    )  # fmt: skip
    whole = run(monkeypatch, tmp_path / "whole", *words, "num_versions=8")
    assert again["model_sha256"] == whole["model_sha256"]


def test_the_schema_command_prints_and_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = own_files.arrays(tmp_path)
    assert schema_command.main(words) == 0
    assert read_schema(capsys.readouterr().out).input_shape == (3,)  # type: ignore[union-attr]
    for arguments, message in (
        (["task=digits"], "error: task=digits has no schema"),
        (["task=arrays"], "error: task.path=null must be the place of the data"),
        (["task=array"], "error: task=array does not exist; did you mean arrays?"),
        ([*words, "-o", "no/such/folder.json"], "error: no/such/folder.json cannot be written"),
    ):
        assert schema_command.main(arguments) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_flowers_engine_gives_the_same_model(tmp_path: Path) -> None:
    """The path is relative: the nodes are other processes."""
    words = [*SMALL, *own_files.table(tmp_path)]
    words = [word.replace(f"{tmp_path}/", "") for word in words]
    hashes = set()
    for name in ("inprocess", "flower"):
        command = [sys.executable, "-m", "fl_app", f"runtime={name}", f"hydra.run.dir={name}"]
        rest = [word for word in words if name == "inprocess" or "workers" not in word]
        done = subprocess.run([*command, *rest], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        hashes.add(json.loads(Path(name, "summary.json").read_text())["model_sha256"])
    assert len(hashes) == 1
