"""Part ``arm``: the app on an emulated 64-bit ARM board, and in a federation with x86-64.

A board with torch joins a federation in the part ``arm-machine``.

Seconds under emulation say nothing about a board. Wheels, instructions, numbers and the paths of
the start do.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from boards import replay
from boards.arm_root import (
    CPUS,
    PLATFORM,
    PYTHON,
    UV,
    VENV,
    Root,
    finish,
    output_of,
    require_emulation,
)
from boards.podman import CACHE, PROJECT
from boards.recording import Recording, as_runs, difference, record
from boards.row import Disappointed, Row, attempt
from fl_app.field.packages import AARCH64, TORCH
from fl_app.field.project import build_wheel

PART = "arm"
Steps = list[tuple[str, Callable[[], str]]]
BASE = CACHE / "arm64"  # the root without Python packages, for other runs too
SCRIPT, ORDERS, UPLOADS = (
    "/opt/replay.py",
    "/opt/orders.safetensors",
    "/opt/uploads.safetensors",
)  # in the root
REPLAY = 900.0  # seconds that the orders of all runs may take; a QEMU that hangs is ended then

# Runs whose orders are carried out on both processors: uploads of every kind, client state, extra
# vectors and pauses; dense layers and convolutions.
LENET = ("task=synthetic", "task.model=lenet", "task.num_examples=96", "task.num_test=20")
RUNS: dict[str, Sequence[str]] = {
    "fedbuff": LENET,
    "fedasync": (),
    "wkafl": (),
    "scaffold": (),
    "fedasmu": ("algorithm.client.local_epochs=2",),
}
COMMON = (
    *("num_clients=3", "eval_every=100"),
    *("num_versions=null", "max_updates=6", "partition=iid"),
)
TOLERANCE = 1e-4  # of relative differences: two builds of torch add float32 in different orders

# Built for processors newer than a Raspberry Pi 4's.
MISFIT, ASIDE = "torch==2.10.0", "/opt/misfit"


def run(work: Path) -> Iterator[Row]:
    """Yield a row for everything that is tried.

    Args:
        work: folder for the files of this run.
    """
    base, board = Root(BASE), Root(work / "board")
    recordings: dict[str, Recording] = {}
    basis: Steps = [
        ("programs for arm64 run here", able),
        ("the root file system of a board", partial(make_base, base)),
        (f"orders of {len(RUNS)} algorithms on this machine", partial(record_runs, recordings)),
    ]
    equipped: Steps = [
        ("a device's packages for arm64, from outside", partial(equip, base, board)),
        *(
            (f"the same orders on an emulated {cpu}", partial(compare, board, cpu, recordings))
            for cpu in CPUS
        ),
        ("a torch for newer processors", partial(misfit, board)),
    ]
    rows = []
    for row in attempt(PART, basis):
        rows.append(row)
        yield row
    if rows[-1].verdict == "passed":
        yield from attempt(PART, equipped)


def able() -> str:
    """Check that this machine can emulate a board."""
    require_emulation()
    return "QEMU, binfmt_misc, namespaces and mmdebstrap are there"


def make_base(base: Root) -> str:
    """Make the root without Python packages, or take the one of an earlier run."""
    how = "made anew" if base.build() else "of an earlier run"
    return f"{base.folder}, {base.megabytes():.0f} MB, {how}"


def record_runs(recordings: dict[str, Recording]) -> str:
    """Record short runs in this process."""
    for name, words in RUNS.items():
        recordings[name] = record([f"algorithm={name}", *COMMON, *words])
    return ", ".join(f"{name} {len(each.orders)}" for name, each in recordings.items())


def equip(base: Root, board: Root) -> str:
    """Copy the root, and install what a device needs, with torch for its processor."""
    base.copy(board.folder)
    board.make_venv()
    pins = (PROJECT / "constraints.txt").read_text().splitlines()
    pins = [pin for pin in pins if pin.partition("==")[0] not in TORCH]
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        wheel = build_wheel(folder)
        words = ["--constraints", _write(folder / "pins.txt", *pins, *AARCH64)]
        wanted = _write(folder / "wanted.txt", str(wheel))
        loaded = board.download(*words, wanted)
        began = time.monotonic()
        board.install(*words, "--requirements", wanted)
        seconds = time.monotonic() - began
    return (
        f"{len(loaded)} packages, {sum(loaded.values()) / 1e6:.0f} MB to download, "
        f"{board.megabytes(VENV):.0f} MB on disk, installed in {seconds:.0f} s"
    )


def _write(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


def compare(board: Root, cpu: str, recordings: Mapping[str, Recording]) -> str:
    """Carry out recorded orders on a board; compare the uploads with those of this machine.

    Args:
        board: with a device's packages.
        cpu: QEMU's name of its processor.
        recordings: of this machine, by name.

    Raises:
        Disappointed: an upload differs, or the board fails.
    """
    replay.save(board.at(ORDERS), as_runs(recordings))
    shutil.copy(replay.__file__, board.at(SCRIPT))
    said = output_of(
        board.run(f"{VENV}/bin/python", SCRIPT, ORDERS, UPLOADS, limit=REPLAY, cpu=cpu)
    )
    facts = json.loads(said.splitlines()[-1])
    done = replay.load(board.at(UPLOADS))
    apart = {
        name: difference(each.uploads, done[name], each.orders) for name, each in recordings.items()
    }
    told = ", ".join(f"{name} {value:.1e}" for name, value in apart.items())
    if max(apart.values()) > TOLERANCE:
        raise Disappointed(f"relative differences above {TOLERANCE:g}: {told}")
    return f"{facts['machine']}, torch {facts['torch']}; relative differences: {told}"


def misfit(board: Root) -> str:
    """Let doctor look at a torch that has instructions which the board's processor lacks."""
    finish(
        [
            *(UV, "pip", "install", "--no-deps", "--target", str(board.at(ASIDE)), MISFIT),
            *("--python-platform", PLATFORM, "--python-version", PYTHON),
        ],
        limit=900,
    )
    said = board.run(
        f"{VENV}/bin/python",
        "-m",
        "fl_app.field",
        "doctor",
        limit=600,
        environment={"PYTHONPATH": ASIDE},
    )
    lines = [line.strip() for line in said.stdout.splitlines() if "torch" in line]
    if not any("Illegal instruction" in line for line in lines):
        raise Disappointed(f"{MISFIT} on {CPUS[0]}: doctor says {lines}")
    return lines[0]
