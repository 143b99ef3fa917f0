"""A run that was killed and went on ends as one that was not."""

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any, NoReturn

import hydra
import numpy as np
import pytest
from configs import composed

from fl_app.cli import CONF
from fl_app.core.errors import RunError
from fl_app.record.files import JsonLines
from fl_app.record.provenance import provenance
from fl_app.runner import earlier
from fl_app.runner.cell import run_cell
from fl_app.runner.run import run

SMALL = ["num_clients=8", "num_versions=12", "eval_every=4", "checkpoint_every=2", "partition=iid"]
SMALL += ["runtime.workers=0", "algorithm.client.batch_size=64"]
FEW = ["algorithm.schedule.buffer_size=3"]
# States of servers, schedules and clients of each kind; a name is that of an algorithm, and what
# else there is behind a hyphen.
CASES = {
    "wkafl": [*FEW, "algorithm.strategy.stage_two_at=5"],
    "fedasmu": [
        *("algorithm.client.local_epochs=3", "algorithm.schedule.concurrency=4"),
        "devices/network=normal",
    ],
    "fedhist": [*FEW, "algorithm.strategy.buffer_length=3", "algorithm.strategy.norm_decay=0.01"],
    "eafl": ["algorithm.strategy.num_clusters=2", "algorithm.strategy.recluster_every=3"],
    "port": [
        *(*FEW, "algorithm.schedule.concurrency=6", "devices=uniform_110x"),
        *("algorithm.client.local_epochs=3", "algorithm.strategy.staleness_bound=2"),
    ],
    "overlap_fedavg": ["devices/network=normal"],
    "fedbuff": [*FEW, "algorithm.schedule.concurrency=6"],
    "twafl": ["algorithm/schedule=random_k", *FEW],
    "scaffold": ["algorithm/schedule=buffered", *FEW, "algorithm.schedule.concurrency=6"],
    "dp_fedbuff": [
        *(*FEW, "algorithm.schedule.concurrency=6", "algorithm.client.top_k=0.1"),
        *("guard.max_norm_ratio=1.2", "guard.min_interval=1.2"),
    ],
}
CHURN = ["devices/availability=churn", "deadline=4.0"]
ON_CLIENTS = ["client_eval_every=2", "client_eval_fraction=0.5", *CHURN]
CASES["fedbuff-on_clients"] = [*CASES["fedbuff"], *ON_CLIENTS]
SERVER = ["devices/server=measured", "devices.server.table=null", "devices.server.poll=0.3"]
SERVER += [f"devices.server.{work}=0.4" for work in ("dispatch", "receipt", "evaluation")]
CASES["fedasmu-server"] = [*CASES["fedasmu"], *SERVER, "devices.server.serial=false"]


def federation(name: str, folder: Path, *more: str) -> dict[str, Any]:
    overrides = [f"algorithm={name.partition('-')[0]}", *SMALL, *CASES.get(name, []), *more]
    return run_cell(composed(*overrides), folder, label=name)[1]


def resumed(name: str, folder: Path) -> None:
    """As `run` does, without its report."""
    config = composed(
        f"algorithm={name.partition('-')[0]}", *SMALL, *CASES.get(name, []), "resume=auto"
    )
    assert earlier.finished(config, folder) is None
    run_cell(config, folder, label=name)


def killed(name: str, folder: Path, event: int) -> None:
    """Run in a process of its own that is killed as it emits its event of this number."""
    if os.fork() == 0:
        emit, seen = JsonLines.emit, 0

        def fatal(self: JsonLines, what: Any) -> None:
            nonlocal seen
            seen += 1
            if seen == event:
                self.position()  # all but this one is on disk
                os.kill(os.getpid(), signal.SIGKILL)
            emit(self, what)

        JsonLines.emit = fatal  # type: ignore[method-assign]
        dies(name, folder)
    was_killed()


def dies(name: str, folder: Path) -> NoReturn:
    """Of a forked process: run until what it has prepared kills it."""
    try:
        federation(name, folder)
    finally:
        os._exit(1)


def was_killed() -> None:
    _, status = os.wait()
    assert os.WTERMSIG(status) == signal.SIGKILL


def outcome(folder: Path) -> tuple[bytes, bytes, str]:
    summary = json.loads((folder / "summary.json").read_text())
    return (
        (folder / "events.jsonl").read_bytes(),
        (folder / "metrics.csv").read_bytes(),
        summary["model_sha256"],
    )


def check_kills(name: str, tmp_path: Path, num_kills: int) -> None:
    whole = tmp_path / "whole"
    straight = federation(name, whole)
    events = (whole / "events.jsonl").read_text().splitlines()
    moments = np.random.default_rng(11).choice(len(events) - 1, num_kills, replace=False) + 1
    for moment in moments:
        folder = tmp_path / str(moment)
        killed(name, folder, int(moment))
        resumed = federation(name, folder, "resume=auto")
        assert outcome(folder) == outcome(whole), f"killed at event {moment} of {len(events)}"
        for own in ("wall_seconds", "updates_per_second", *provenance([])):
            resumed.pop(own)
        assert {key: straight[key] for key in resumed} == resumed


def test_three_kills(tmp_path: Path) -> None:
    check_kills("fedasmu", tmp_path, 3)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_five_kills(name: str, tmp_path: Path) -> None:
    check_kills(name, tmp_path, 5)


def test_a_torn_checkpoint_is_passed_over_and_a_foreign_one_refused(tmp_path: Path) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "torn"
    federation("fedbuff", whole)
    killed("fedbuff", folder, 60)
    files = sorted((folder / "checkpoints").iterdir())
    assert len(files) == 2
    last = files[-1].read_bytes()
    files[-1].write_bytes(last[:-3] + b"???")
    federation("fedbuff", folder, "resume=auto")
    assert outcome(folder) == outcome(whole)
    for file in (folder / "checkpoints").iterdir():
        file.write_bytes(b"nothing of the kind")
    (folder / "summary.json").unlink()
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be read: .*torn"):
        federation("fedbuff", folder, "resume=auto")


@pytest.mark.parametrize("name", ["fedbuff", "overlap_fedavg"])
def test_what_is_finished_is_not_run_again(name: str, tmp_path: Path) -> None:
    """Also where the devices decide how many local epochs are trained."""
    overrides = [f"algorithm={name.partition('-')[0]}", *SMALL, *CASES[name]]
    again, other = (
        [*overrides, "resume=auto", "tensorboard=true"],
        [*overrides, "resume=auto", "seed=1"],
    )
    summary = federation(name, tmp_path)
    before = (tmp_path / "events.jsonl").stat().st_mtime_ns
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        assert run(hydra.compose("config", overrides=again), again, tmp_path) == [summary]
        assert (tmp_path / "events.jsonl").stat().st_mtime_ns == before
        with pytest.raises(ValueError, match=r"another configuration \(seed=0 instead of 1\)"):
            run(hydra.compose("config", overrides=other), other, tmp_path)


def test_a_full_disk_ends_a_run_with_its_reason_and_with_room_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "full"
    federation("fedbuff", whole)
    overrides = ["algorithm=fedbuff", *SMALL, *CASES["fedbuff"], "resume=auto"]
    write = JsonLines._write

    def full(self: JsonLines) -> None:
        if self._lines and self._file.tell() > 2000:
            self._file.write(self._lines.pop(0)[:10])  # as far as there was room
            self._file.flush()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self)

    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("config", overrides=overrides)
        with monkeypatch.context() as patch:
            patch.setattr(JsonLines, "_write", full)
            with pytest.raises(RunError, match="No space left on device; the run's folder"):
                run(config, overrides, folder)
    assert not (folder / "summary.json").exists()
    resumed("fedbuff", folder)
    assert outcome(folder) == outcome(whole)


def results(folder: Path) -> tuple[dict[str, bytes], dict[str, Any]]:
    """All that a run came to, apart from what depends on the host and the moment."""
    files = ("events.jsonl", "metrics.csv", "model.npz")
    summary = json.loads((folder / "summary.json").read_text())
    for key in ("wall_seconds", "updates_per_second", *provenance([]), "began_with"):
        summary.pop(key, None)
    return {name: (folder / name).read_bytes() for name in files}, summary


def extended(name: str, folder: Path, *limits: str, workers: tuple[int, ...] = (0, 2, 0)) -> None:
    """A run that ends at one limit after the other is as if it had ended at the last alone."""
    mine = ["checkpoint_every=null"]
    for limit, number in zip(limits, workers, strict=True):
        words = (*mine, *limit.split(), f"runtime.workers={number}")
        federation(name, folder / "extended", *words, "resume=auto")
    federation(name, folder / "whole", *mine, *limits[-1].split())
    assert results(folder / "extended") == results(folder / "whole"), limits


LONGER = {
    "num_versions": ["num_versions=5", "num_versions=6", "num_versions=11"],
    "max_seconds": [f"max_seconds={t} num_versions=null" for t in (4.3, 4.4, 9.1)],
    "max_updates": [f"max_updates={n} num_versions=null" for n in (13, 14, 31)],
}


SLOW = pytest.mark.slow


@pytest.mark.parametrize("limit", LONGER)
@pytest.mark.parametrize(
    "name",
    ["fedbuff", *(pytest.param(name, marks=SLOW) for name in ("wkafl", "fedasmu"))],
)
def test_a_run_that_is_extended_ends_as_one_that_was_longer_from_the_start(
    name: str, limit: str, tmp_path: Path
) -> None:
    extended(name, tmp_path, *LONGER[limit])


@pytest.mark.parametrize("limit", ["num_versions=3", "max_seconds=2", "max_updates=9"])
def test_a_limit_that_was_passed_is_refused(limit: str, tmp_path: Path) -> None:
    federation("fedbuff", tmp_path, "num_versions=7")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=f"{limit} must be above .*, which the run in .* reached"):
        federation("fedbuff", tmp_path, limit, "resume=auto")
    killed("fedbuff", tmp_path / "killed", 60)
    with pytest.raises(ValueError, match=f"{limit} must be above .*, which the run in .* reached"):
        federation("fedbuff", tmp_path / "killed", limit, "resume=auto")
    assert contents(tmp_path).items() >= before.items()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
