"""Flower's front door on the server."""

from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fl_app import server_app


def test_a_mistyped_key_is_named(tmp_path: Path) -> None:
    run_config: dict[str, Any] = {"overrides": "num_clientz=3", "output": str(tmp_path)}
    context = Context(1, 1, {}, RecordDict(), run_config)
    with pytest.raises(ValueError, match=r"unknown key 'num_clientz'.*num_clients"):
        server_app.main(None, context)  # type: ignore[arg-type]
