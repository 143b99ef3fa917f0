"""A federation on this machine whose SuperLink does not answer."""

import socket
from pathlib import Path
from typing import Any

import pytest

from fl_app.field.loopback import HOST, Federation, FederationError


def test_no_answer_in_time(tmp_path: Path) -> None:
    flwr = tmp_path / "flwr"
    flwr.write_text("#!/bin/sh\nexec sleep 60\n")
    flwr.chmod(0o755)
    federation = Federation(tmp_path / "federation", limit=0.0, commands=tmp_path)
    try:
        with pytest.raises(FederationError, match="flwr supernode list: no answer within 0 s"):
            federation.ask("supernode", "list")
    finally:
        assert federation.stop()


class Busy(Federation):
    """Its SuperLink only listens; it has no time for the second question."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.link = socket.socket()
        self._answers = iter([[], None, [{"status": "online"}]])

    def spawn(self, name: str, command: str, *arguments: str) -> Any:
        if name == "superlink":
            self.link.bind((HOST, int(arguments[arguments.index("--port") + 1])))
            self.link.listen()

    def wait(self, seconds: float) -> None: ...

    def ask(self, *arguments: str) -> Any:
        nodes = next(self._answers)
        if nodes is None:
            raise FederationError("unavailable", self.log("superlink"))
        return {"nodes": nodes}


def test_a_superlink_that_is_too_busy_is_asked_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = Busy(tmp_path / "federation")
    with federation.link:
        federation.start(1)
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "unavailable; asking again",
        "1 of 1 SuperNodes online",
    ]
    assert federation.stop()
