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
