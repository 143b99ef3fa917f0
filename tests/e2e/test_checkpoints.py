"""A run that was killed and resumed ends like one that was not."""

import errno
import json
import os
import signal

import numpy as np
import pytest
from helpers import make_config

from fl_app.core.errors import RunError
from fl_app.record.log import JsonLines
from fl_app.record.provenance import provenance
from fl_app.runner import earlier
from fl_app.runner.cell import Plan, run_cell
from fl_app.runner.run import run

SLOW = pytest.mark.slow
pytestmark = pytest.mark.timeout(240)
SMALL = ["num_clients=8", "num_versions=12", "eval_every=4", "checkpoint_every=2", "partition=iid"]
SMALL += ["runtime.workers=0", "algorithm.client.batch_size=64"]
FEW = ["algorithm.schedule.buffer_size=3"]
# Each kind of state of servers, schedules, clients and clocks.
CASES = {
    "fedhist": [
        *(*FEW, "algorithm.strategy.buffer_length=3", "algorithm.strategy.norm_decay=0.01"),
        "guard.max_norm_ratio=1.2",
    ],
    "eafl": ["algorithm.strategy.num_clusters=2", "algorithm.strategy.recluster_every=3"],
    "port": [
        *(*FEW, "algorithm.schedule.concurrency=6", "devices.ratio=110"),
        *("algorithm.client.local_epochs=3", "algorithm.strategy.staleness_bound=2"),
    ],
    "overlap_fedavg": ["devices/network=normal"],
    "fedbuff": [*FEW, "algorithm.schedule.concurrency=6"],
    "dp_fedbuff": [*FEW, "algorithm.schedule.concurrency=6"],
}
CHURN = ["devices/availability=churn", "deadline=4.0"]
ON_CLIENTS = ["client_eval_every=2", "client_eval_fraction=0.5", *CHURN]
CASES["fedbuff-on_clients"] = [*CASES["fedbuff"], *ON_CLIENTS]
LEAVE = ["devices/availability=arrivals", "devices.availability.spread=9"]
CASES["fedbuff-arrivals"] = [*CASES["fedbuff"], *LEAVE, "devices.availability.mean_stay=30"]
SERVER = ["devices/server=measured", "devices.server.table=null", "devices.server.poll=0.3"]
SERVER += [f"devices.server.{work}=0.4" for work in ("dispatch", "receipt", "evaluation")]
CASES["fedasmu"] = [
    *("algorithm.client.local_epochs=3", "algorithm.schedule.concurrency=4"),
    *("devices/network=normal", *SERVER),
]


def settings(name, *more):
    return [f"algorithm={name.partition('-')[0]}", *SMALL, *CASES[name], *more]


def federation(name, folder, *more):
    return run_cell(Plan(make_config(*settings(name, *more))), folder, label=name)[1]


def kill_run(name, folder, event):
    """Run in a separate process that is killed when it emits the event of this number."""
    if os.fork() == 0:
        emit, count = JsonLines.emit, 0

        def fatal(self, emitted):
            nonlocal count
            count += 1
            if count == event:
                self.position()  # all events before this one are on disk
                os.kill(os.getpid(), signal.SIGKILL)
            emit(self, emitted)

        JsonLines.emit = fatal
        try:
            federation(name, folder)
        finally:
            os._exit(1)
    _, status = os.wait()
    assert os.WTERMSIG(status) == signal.SIGKILL


def outcome(folder):
    summary = json.loads((folder / "summary.json").read_text())
    return (
        (folder / "events.jsonl").read_bytes(),
        (folder / "metrics.csv").read_bytes(),
        summary["model_sha256"],
    )


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "num_kills"),
    [("fedbuff", 3), *(pytest.param(name, 5, marks=SLOW) for name in CASES if name != "fedbuff")],
)
def test_random_kills_lose_nothing(name, num_kills, tmp_path):
    whole = tmp_path / "whole"
    straight = federation(name, whole)
    events = (whole / "events.jsonl").read_text().splitlines()
    moments = np.random.default_rng(11).choice(len(events) - 1, num_kills, replace=False) + 1
    for moment in (*moments, len(events)):  # the last one may be of an evaluation after the run
        folder = tmp_path / str(moment)
        kill_run(name, folder, int(moment))
        resumed = federation(name, folder, "resume=auto")
        assert outcome(folder) == outcome(whole), f"killed at event {moment} of {len(events)}"
        for entry in ("wall_seconds", "wall_updates_per_second", *provenance([])):
            resumed.pop(entry)
        assert {key: straight[key] for key in resumed} == resumed


@pytest.mark.parametrize("name", ["fedbuff", "overlap_fedavg"])
def test_a_finished_run_is_not_run_again(name, tmp_path):
    """Also if the devices determine the number of local epochs."""
    overrides = settings(name, "resume=auto", "failures=tolerate")
    summary = federation(name, tmp_path)
    before = (tmp_path / "events.jsonl").stat().st_mtime_ns
    assert run({"": make_config(*overrides)}, overrides, tmp_path) == [summary]
    assert (tmp_path / "events.jsonl").stat().st_mtime_ns == before
    for other, message in (("seed=1", "seed=0 instead of 1"), ("num_versions=13", "12 instead")):
        with pytest.raises(ValueError, match=rf"another configuration \(.*{message}"):
            run({"": make_config(*overrides, other)}, overrides, tmp_path)


def test_a_full_disk_ends_a_run_with_its_reason_and_with_room_it_resumes(tmp_path, monkeypatch):
    whole, folder = tmp_path / "whole", tmp_path / "full"
    federation("fedbuff", whole)
    overrides = settings("fedbuff", "resume=auto")
    write = JsonLines._write

    def full(self):
        if self._lines and self._file.tell() > 2000:
            self._file.write(self._lines.pop(0)[:10])  # as far as there was room
            self._file.flush()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(self)

    with monkeypatch.context() as patch:
        patch.setattr(JsonLines, "_write", full)
        with pytest.raises(RunError, match="No space left on device; the run's folder"):
            run({"": make_config(*overrides)}, overrides, folder)
    assert not (folder / "summary.json").exists()
    assert earlier.ended_summary(make_config(*overrides), folder) is None
    federation("fedbuff", folder, "resume=auto")
    assert outcome(folder) == outcome(whole)
