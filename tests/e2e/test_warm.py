"""A federation of warm nodes, which fork their ClientApps from Flower's executor."""

import sys
from pathlib import Path

import psutil
import pytest

from fl_app.field.demo import demo
from fl_app.field.loopback import Federation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.federation,
]


def with_state_in(folder: Path) -> list[list[str]]:
    """Commands of processes that were told to keep their clients' memory in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get("FL_APP_STATE_DIR") == str(folder):
                found.append(process.cmdline())
        except psutil.Error:  # gone meanwhile, or somebody else's
            continue
    return found


class Watched(Federation):
    """Notes which commands were seen."""

    folder: Path
    seen: frozenset[str] = frozenset()

    def wait(self, seconds: float) -> None:
        super().wait(seconds)
        self.seen |= {" ".join(command) for command in with_state_in(self.folder)}


def test_warm_nodes_serve_and_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FL_APP_STATE_DIR", str(tmp_path))
    monkeypatch.delenv("WARM", raising=False)
    overrides = ["algorithm=fedbuff", "partition=iid", "runtime=deployment"]
    overrides += ["num_clients=2", "num_versions=6", "algorithm.schedule.concurrency=2"]
    overrides += ["algorithm.schedule.buffer_size=2"]
    federation = Watched(tmp_path / "federation")
    federation.folder = tmp_path
    warm = [sys.executable, "-m", "fl_app.node.warm"]
    try:
        federation.start(2, supernode=warm)
        summary = demo(federation, tmp_path / "run", overrides, versions=6)
    finally:
        assert federation.stop()
    assert (summary["num_versions"], summary["failures"]) == (6, 0)
    assert with_state_in(tmp_path) == []
    assert any("fl_app.node.warm flower-superexec" in command for command in federation.seen)
    # What was forked is called so without a path; Flower's executor starts Python and a script.
    assert any(command.startswith("flwr-clientapp ") for command in federation.seen)
    assert not [command for command in federation.seen if "/flwr-clientapp " in command]
    for i in range(2):
        log = federation.log(f"node-{i}").read_text()
        assert log.count("Start `flwr-clientapp` process") >= 6
        assert "WARM=auto: " in log
        assert "the executor forks ClientApps" in log
        assert log.count("has started") == 1  # the resident
