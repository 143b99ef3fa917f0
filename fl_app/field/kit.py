"""Writes and reads the edge kit: one folder for the server and one for every device.

A folder holds settings (``server.env``, ``node.env`` or ``helper.env``), files that start its
process (``start.sh``, systemd units, a compose file), what installs them (``install.sh``, a wheel
of this project), certificates and keys. Flower writes its files to the same folder.
"""

import os
import re
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fl_app.core.errors import require, require_count

HERE = Path(__file__).parent
FILES = HERE / "files"
WHEEL = "fl_app-*.whl"
# What every folder gets beside the files of its role.
SHARED = (
    FILES / "both" / "install.sh",
    *HERE.glob("packages.py"),
    FILES / "project" / "constraints.txt",
)
ROLES = ("server", "node", "helper")
PORT = 8100  # of Caddy, to which devices connect; as in the compose files
LINK_PORT = 8099  # of the SuperLink behind it, on loopback; likewise
NODE_PORT = 9094  # Flower's default for the first node; nodes of one kit can share a machine
VENV = "/opt/fl-app/.venv"  # as in the systemd units and the images
ALWAYS = ("localhost", "127.0.0.1", "::1", "superlink")  # the last is its service in compose files
# Devices often have no network but the server's, and their dependencies are installed already.
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
# The value of ``data`` in a node's configuration, in quotes or without.
CONFIGURED = re.compile(r"""\bdata=(?:'([^']*)'|"([^"]*)"|(\S+))""")
# What a Caddyfile has for certificates.
OF_TLS = re.compile(r"\n\ttls [^\n]*| \{\n\t*transport http \{.*?\n\t\t\}", re.DOTALL)
DEADLINE, CHECKPOINT_EVERY = 600, 10  # seconds and versions, for the run in server.env


@dataclass(frozen=True, slots=True)
class Kit:
    """A folder of the kit, with its settings.

    Args:
        folder: absolute path.
        role: "server", "node" or "helper".
        settings: of its ``.env`` file; environment variables take precedence.
    """

    folder: Path
    role: str
    settings: Mapping[str, str]

    @classmethod
    def read(cls, folder: Path, environment: Mapping[str, str] = os.environ) -> "Kit":
        """Read the kit in a folder.

        Raises:
            ValueError: the folder holds no kit, or its settings cannot be read.
        """
        folder = folder.resolve()
        for role in ROLES:
            path = folder / f"{role}.env"
            if path.is_file():
                settings = _settings(path)
                settings.setdefault("PORT" if role == "helper" else "SUPERLINK", "")
                mine = {key: environment.get(key, value) for key, value in settings.items()}
                kit = cls(folder, role, mine)
                _, colon, port = kit.address.rpartition(":")
                sound = colon == ":" and port.isdecimal() and 0 < int(port) < 65536
                key, bound, lost = (
                    ("PORT", "between 1 and 65535", "no server would find the helper")
                    if role == "helper"
                    else ("SUPERLINK", "host:port", "no device would find the server")
                )
                require(sound, f"{key} of {path}", mine[key], bound, lost)
                return kit
        raise ValueError(
            f"{folder} must hold {' or '.join(f'{role}.env' for role in ROLES)}: it is no folder "
            "of the edge kit; `python -m fl_app.field init` writes some"
        )

    @property
    def address(self) -> str:
        """Address of the SuperLink, as host:port; of a helper's folder, that of the helper."""
        if self.role == "helper":
            return f"127.0.0.1:{self.settings['PORT']}"
        return self.settings["SUPERLINK"]

    @property
    def insecure(self) -> bool:
        """Whether INSECURE=1: no TLS and no keys."""
        return self.settings.get("INSECURE") == "1"

    @property
    def root_certificate(self) -> Path | None:
        """Certificate of the authority that signs the SuperLink's; None if insecure."""
        return None if self.insecure else self.folder / "ca.crt"

    @property
    def data(self) -> str | None:
        """Path of a device's own data, from DATA or ``data=`` in NODE_CONFIG; None = none."""
        found = CONFIGURED.search(self.settings.get("NODE_CONFIG", ""))
        configured = next(filter(None, found.groups()), None) if found else None
        return (self.settings.get("DATA") or configured) if self.role == "node" else None

    @property
    def environment(self) -> dict[str, str]:
        """Environment for ``start.sh``, with the virtual environment of this Python."""
        return {**os.environ, **self.settings, "VENV": sys.prefix}

    @property
    def overrides(self) -> list[str]:
        """Overrides of the server's run, as after ``python -m fl_app``."""
        return shlex.split(self.settings.get("OVERRIDES", ""))


def new_kit(
    out: Path,
    *,
    nodes: int,
    hosts: Sequence[str],
    port: int = PORT,
    days: int = 3650,
    insecure: bool = False,
    wheel: Path | None = None,
) -> None:
    """Write the folders ``server``, ``node-0``, ..., and ``ca``, the authority.

    Args:
        out: a new folder, because devices use the keys of an earlier kit.
        nodes: number of devices, at least 1.
        hosts: names and addresses of the server; devices use the first.
        port: of the server, to which devices connect.
        days: days until the certificates expire.
        insecure: write neither certificates nor keys. Anybody who reaches the port can then read
            all messages and join.
        wheel: of this project, which the devices install; None leaves it out.

    Raises:
        ValueError: an argument is out of its bounds; nothing was written.
    """
    require_count("--nodes", nodes, "there would be nobody to learn from")
    require(0 < port < 65536, "--port", port, "between 1 and 65535", "no server can listen there")
    require(not out.exists(), "out", out, "a new folder", "keys that devices use would be lost")
    out = out.resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        for name in ["server", *(f"node-{i}" for i in range(nodes))]:
            (draft / name).mkdir(mode=0o700)
            write_program(draft / name, name.partition("-")[0], port, wheel)
        trust = {"MADE": str(int(time.time()))} | ({"INSECURE": "1"} if insecure else {})
        write_settings(draft / "server" / "server.env", _server(nodes, port) | trust)
        if insecure:
            _without_tls(draft / "server" / "Caddyfile")
        for i in range(nodes):
            write_settings(
                draft / f"node-{i}" / "node.env", _node(i, nodes, hosts[0], port) | trust
            )
        if not insecure:
            _certify(draft, nodes, hosts, days)
        draft.chmod(0o755)
        draft.rename(out)
    except BaseException:
        shutil.rmtree(draft)
        raise


def write_program(folder: Path, role: str, port: int, wheel: Path | None) -> None:
    """Write the files that are the same in all folders of a role.

    Args:
        folder: of the kit.
        role: its role.
        port: of the server.
        wheel: of this project; None leaves it out.
    """
    for file in [*(FILES / role).iterdir(), *SHARED, *filter(None, [wheel])]:
        shutil.copy(file, folder)
    if role == "server":
        _set_port(folder / "compose.yaml", port)


def _without_tls(caddyfile: Path) -> None:
    caddyfile.write_text(OF_TLS.sub("", caddyfile.read_text()).replace("https://", "http://"))


def _certify(draft: Path, nodes: int, hosts: Sequence[str], days: int) -> None:
    # Imported here because it takes time: health checks read kits and need no certificates.
    from fl_app.field.certificates import new_authority, new_certificate, new_node

    (draft / "ca").mkdir(mode=0o700)
    (draft / "server" / "keys").mkdir()
    new_authority(draft / "ca", days)
    new_certificate(draft / "ca", draft / "server", "server", [*hosts, *ALWAYS], days)
    shutil.copy(draft / "ca" / "ca.crt", draft / "server")
    for i in range(nodes):
        new_node(draft / f"node-{i}", f"node-{i}")
        shutil.copy(draft / "ca" / "ca.crt", draft / f"node-{i}")
        shutil.copy(draft / f"node-{i}" / "node.key.pub", draft / f"server/keys/node-{i}.pub")


def _server(nodes: int, port: int) -> dict[str, str]:
    run = [
        *("algorithm=fedbuff", "task=digits", "runtime=deployment", f"num_clients={nodes}"),
        f"algorithm.schedule.concurrency={nodes}",
        f"algorithm.schedule.buffer_size={max(1, nodes // 2)}",
        f"deadline={DEADLINE}",
        f"checkpoint_every={CHECKPOINT_EVERY}",
    ]
    return {
        "SUPERLINK": f"127.0.0.1:{LINK_PORT}",
        "PORT": str(port),  # of Caddy
        "OVERRIDES": shlex.join(run),
        "VENV": VENV,
        **OFFLINE,
    }


def _node(i: int, nodes: int, host: str, port: int) -> dict[str, str]:
    return {
        "SUPERLINK": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "NODE_CONFIG": f"partition-id={i} num-partitions={nodes}",
        "DATA": "",  # path of the device's own data
        "PORT": str(NODE_PORT + i),
        "WARM": "1",  # or 0: whether a process stays between two orders
        "VENV": VENV,
        **OFFLINE,
    }


def _set_port(compose: Path, port: int) -> None:
    compose.write_text(compose.read_text().replace(str(PORT), str(port)))


def write_settings(path: Path, settings: Mapping[str, str]) -> None:
    """Write settings in the spelling that the shell, systemd and Docker read alike."""
    path.write_text("".join(f'{key}="{value}"\n' for key, value in settings.items()))


def _settings(path: Path) -> dict[str, str]:
    try:
        words = shlex.split(path.read_text(), comments=True)
        return dict((key, value) for key, _, value in (word.partition("=") for word in words))
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} must hold lines KEY=VALUE: {error}") from None
