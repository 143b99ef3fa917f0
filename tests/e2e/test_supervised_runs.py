"""A supervised run, with the program's own rules on folders that hold a run."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from fl_app.command import command
from fl_app.field.runs import Supervisor

WORDS = ["algorithm=fedbuff", "runtime.workers=0", "num_versions=2"]


class Local:
    """Runs what is submitted at once, in this process, as the ServerApp would."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.submitted: list[str] = []
        self._monkeypatch = monkeypatch

    def online(self) -> int:
        return 1

    def under_way(self, output: Path) -> None:
        return None

    def submit(self, overrides: Sequence[str], output: Path) -> int:
        words = [*overrides, f"hydra.run.dir={output}"]
        self.submitted.append(shlex.join(overrides))
        self._monkeypatch.setattr("sys.argv", ["fl-app", *words])
        assert command(words) == 0
        return 1

    def status(self, run_id: int) -> tuple[str, str]:
        return "finished:completed", ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lost", "further"),
    [
        (["summary.json", "config.yaml", "checkpoints/*"], []),  # at its very beginning
        (["summary.json", "checkpoints/*"], []),  # before its first checkpoint
        (["summary.json"], []),  # after one
        ([], ["resume=auto"]),  # after its end
        ([], ["num_versions=3", "resume=auto"]),  # after its end, and it is extended
    ],
    ids=["beginning", "no checkpoint", "checkpoint", "end", "extended"],
)
def test_a_run_that_died_is_seen_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: list[str], further: list[str]
) -> None:
    link = Local(monkeypatch)
    link.submit(WORDS, tmp_path)
    for pattern in lost:
        for path in tmp_path.glob(pattern):
            path.unlink()
    words = [w for w in WORDS if w.split("=")[0] not in {f.split("=")[0] for f in further}]
    Supervisor(link, pause=lambda seconds: None).complete([*words, *further], tmp_path)
    assert len(link.submitted) == 2
    versions = 3 if "num_versions=3" in further else 2
    assert OmegaConf.load(tmp_path / "summary.json").num_versions == versions
