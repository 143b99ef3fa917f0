"""What a federation on this machine says when it cannot be asked."""

from pathlib import Path

import pytest

from fl_app.field import loopback
from fl_app.field.loopback import Federation, FederationError


def test_no_answer_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flwr = tmp_path / "flwr"
    flwr.write_text("#!/bin/sh\nexec sleep 60\n")
    flwr.chmod(0o755)
    monkeypatch.setattr(loopback, "COMMANDS", tmp_path)
    federation = Federation(tmp_path / "federation", limit=0.0)
    try:
        with pytest.raises(FederationError, match="flwr supernode list: no answer within 0 s"):
            federation.ask("supernode", "list")
    finally:
        assert federation.stop()


def test_a_superlink_that_is_too_busy_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    federation = Federation(tmp_path / "federation")
    answers = iter([[], None, [{"status": "online"}]])

    def ask(*arguments: str) -> dict[str, list[dict[str, str]]]:
        nodes = next(answers)
        if nodes is None:
            raise FederationError("unavailable", federation.log("superlink"))
        return {"nodes": nodes}

    monkeypatch.setattr(loopback, "_listens", lambda port: True)
    monkeypatch.setattr(federation, "spawn", lambda *command: None)
    monkeypatch.setattr(federation, "wait", lambda seconds: None)
    monkeypatch.setattr(federation, "ask", ask)
    federation.start(1)
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "unavailable; asking again",
        "1 of 1 SuperNodes online",
    ]
    assert federation.stop()
