"""The programs of docs/flower.md run as they stand there."""

import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from fake_grid import FakeGrid
from flwr.app import Context, RecordDict

from fl_app.field.control import COMMANDS
from lab.demo import Federation

PAGE = (Path(__file__).parents[2] / "docs/flower.md").read_text()
BLOCKS = re.findall(r"^`{3}(\w+)\n(.*?)^`{3}$", PAGE, re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
(CLIENT,) = (code for code in PYTHON if "ClientApp()" in code)
(SIMULATE,) = (code for code in PYTHON if "run_simulation" in code)
SERVERS = [code for code in PYTHON if "ServerApp()" in code]
PROJECT = next(code for language, code in BLOCKS if language == "toml" and "serverapp" in code)


def app(folder: Path, server: str) -> Path:
    files = {"client_app.py": CLIENT, "server_app.py": server, "simulate.py": SIMULATE}
    for name, text in {**files, "pyproject.toml": PROJECT}.items():
        (folder / name).write_text(text)
    return folder


def found(printed: str) -> list[float]:
    (line,) = re.findall(r"weight and bias: \[(\S+)\] \[(\S+)\]", printed)
    return [float(number) for number in line]


@pytest.mark.parametrize("server", SERVERS, ids=["FedHist", "FedAdam"])
def test_server_app_and_client_app(
    server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.syspath_prepend(app(tmp_path, server))
    for name in ("client_app", "server_app"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    client_app, server_app = import_module("client_app").app, import_module("server_app").app
    server_app(FakeGrid(client_app, 4), Context(1, 0, {}, RecordDict(), {}))
    assert found(capsys.readouterr().out) == pytest.approx([2, 1], abs=0.1)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_simulation(tmp_path: Path) -> None:
    folder = app(tmp_path, SERVERS[0])
    done = subprocess.run(
        [sys.executable, "simulate.py"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert found(done.stdout) == pytest.approx([2, 1], abs=0.1)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.federation
def test_real_nodes(tmp_path: Path) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    federation = Federation(tmp_path / "federation", 3)
    home = {**os.environ, "FLWR_HOME": str(federation.kit.folder / "flower")}
    home["PATH"] = f"{COMMANDS}{os.pathsep}{home['PATH']}"
    try:
        federation.start()
        command = [COMMANDS / "flwr", "run", str(app(folder, SERVERS[0])), "field", "--stream"]
        done = subprocess.run(command, env=home, capture_output=True, text=True, timeout=300)
        assert found(done.stdout + done.stderr) == pytest.approx([2, 1], abs=0.1)
    finally:
        assert federation.stop()
