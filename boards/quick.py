"""``--quick``: the images, and a server with a device on one machine; minutes.

The device trains on data of its own, under the protections of its unit.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from boards import bases, images
from boards.commands import ask
from boards.kits import HOME, PYTHON, make_kit, told
from boards.machine import Machine
from boards.podman import PROJECT, Podman
from boards.row import Disappointed, Row, attempt, wait_for

PART = "systemd"
KITS, UNITS = ("server", "node-0"), ("fl-superlink", "fl-supernode")
INSTALL = 600.0  # seconds that an install.sh may take
DATA = "/srv/readings.csv"
OWN = {"/tmp", "/var/tmp"}  # of every service
RUN = (
    *("algorithm=fedbuff", "runtime=deployment", "num_clients=null", "num_versions=3"),
    *("algorithm.schedule.concurrency=1", "algorithm.schedule.buffer_size=1", "deadline=200"),
    *("task=csv", f"task.schema={HOME}/server/schema.json", "task.holdout=0.1"),
    *("checkpoint_every=1", "tensorboard=false"),
)


def run(work: Path) -> Iterator[Row]:
    """Yield a row for everything that is tried.

    Args:
        work: empty folder for the files of this run.
    """
    with Podman() as podman:
        small = Small(podman, work)
        yield from attempt(
            "containers",
            [
                ("a base made of Debian's packages", partial(images.make_base, podman)),
                ("docker/Dockerfile", partial(images.build, podman)),
            ],
        )
        steps: list[tuple[str, Callable[[], str]]] = [
            ("a board's system made of Debian's packages", small.boot),
            *((f"install.sh --torch cpu in {name}", partial(small.install, name)) for name in KITS),
            ("the services run", small.run),
            ("the device trains on its own data, protected as its unit says", small.train),
            ("after a power failure the services start by themselves", small.cut),
        ]
        yield from attempt(PART, steps)


class Small:
    """Server and device on one machine.

    Args:
        podman: that runs it.
        work: folder for the kit.
    """

    def __init__(self, podman: Podman, work: Path) -> None:
        self._podman = podman
        self._work = work
        self._kit = work / "out"

    def boot(self) -> str:
        """Make the system and boot it, with the kit in the user's home."""
        image = bases.make(self._podman, bases.BOARD)
        make_kit(self._kit, "localhost", nodes=1)
        self._machine = Machine(self._podman, "both", image, [self._podman.network()])
        for name in KITS:
            self._machine.receive(self._kit / name)
        return f"Debian's {bases.SUITE}, {self._podman.megabytes(image):,.0f} MB"

    def install(self, folder: str) -> str:
        """Run a folder's install.sh."""
        self._machine.leave()
        command = f"cd {folder} && sudo sh install.sh --torch cpu"
        return self._machine.type(command, INSTALL).splitlines()[-1]

    def run(self) -> str:
        """Wait until the services run, and the SuperLink answers."""
        try:
            seconds = wait_for(self._answers, "the services answer", 240.0, every=2.0)
        except Disappointed as error:
            said = "\n".join(map(self._machine.journal, UNITS))
            raise Disappointed(f"{error}; they said:\n{said}") from None
        return f"{', '.join(UNITS)} are active and answer after {seconds:.0f} s"

    def train(self) -> str:
        """Give the device a table; complete a run, for which the server has no data."""
        table, schema = self._work / "readings.csv", self._work / "schema.json"
        rows = [f"{i % 7},{i % 5},{'yes' if i % 7 > 3 else 'no'}" for i in range(70)]
        table.write_text("\n".join(["pulse,salt,ill", *rows]) + "\n")
        command = [sys.executable, "-m", "fl_app.tasks.schema", "task=csv", f"task.path={table}"]
        ask([*command, "task.target=ill", "-o", str(schema)], cwd=PROJECT)
        self._machine.container.put(table, DATA)
        self._machine.container.put(schema, f"{HOME}/server/schema.json")
        self._machine.root("chmod", "644", DATA, f"{HOME}/server/schema.json")
        name = f"{HOME}/node/node.env"
        self._machine.root("sed", "-i", f's|^DATA=.*|DATA="{DATA}"|', name)
        self._machine.root("systemctl", "restart", UNITS[1])
        writable = self._machine.may_write(UNITS[1])
        if set(writable) - OWN != {f"{HOME}/node"}:
            raise Disappointed(f"{UNITS[1]} may write to {', '.join(writable)}")
        self._machine.leave()
        self._machine.type(
            f"cd {HOME} && sudo -u fl-app {PYTHON} -m fl_app.field run --output server/run-data "
            f"server {' '.join(RUN)}",
            INSTALL,
        )
        run = self._machine.fetch(f"{HOME}/server/run-data", self._work)
        return f"{told(run)}; the SuperNode may write to {', '.join(writable)} only"

    def cut(self) -> str:
        """Cut the power and boot it again."""
        self._machine.switch_off()
        self._machine.switch_on()
        return self.run()

    def _answers(self) -> bool:
        if not all(map(self._machine.active, UNITS)):
            return False
        try:
            for home in ("server", "node"):
                self._machine.root(PYTHON, "-m", "fl_app.field", "healthy", f"{HOME}/{home}")
        except Disappointed:
            return False
        return True
