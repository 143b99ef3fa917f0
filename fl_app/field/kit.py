"""Reads a folder of the edge kit, and asks its process whether it answers.

A folder holds settings (``server.env``, ``node.env`` or ``helper.env``), files that start its
process (``start.sh``, systemd units, a compose file), their installer (``install.sh``, a wheel
of this project), certificates and keys. Flower writes its files to the same folder.
"""

import os
import re
import shlex
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from fl_app.core.errors import explaining, require
from fl_app.core.hyper import Bound

ROLES = ("server", "node", "helper")
PORT = 8100  # of Caddy, to which devices connect; as in the compose files
PORTS = Bound("between 1 and 65535", lambda port: f"{port}".isdecimal() and 0 < int(port) < 65536)
PATIENCE = 5.0  # seconds that a process has to answer
UNREACHED = (OSError, httpx.HTTPError, httpx.InvalidURL)  # errors of `request`


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
            if not path.is_file():
                continue
            with explaining(f"{path} must hold lines KEY=VALUE"):
                if b"\r" in path.read_bytes():
                    raise ValueError("its lines end as in Windows: sed -i 's/\\r$//' corrects it")
                words = shlex.split(path.read_text(), comments=True)
                if wrong := [word for word in words if not re.match(r"\w+=", word)]:
                    raise ValueError(f"{wrong[0]} is none")
            key = "PORT" if role == "helper" else "SUPERLINK"
            settings = {key: ""} | dict(word.partition("=")[::2] for word in words)
            kit = cls(folder, role, {k: environment.get(k, v) for k, v in settings.items()})
            port = kit.settings.get("PORT", "1")
            PORTS.check(f"PORT of {path}", port, "nothing could listen")
            _, colon, port = kit.address.rpartition(":")
            valid, effect = colon == ":" and PORTS.holds(port), "no device would find the server"
            require(valid, f"SUPERLINK of {path}", kit.address, "host:port", effect)
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
    def data(self) -> str | None:
        """Path of a device's own data; None = none."""
        return self.settings.get("DATA") or None

    @property
    def overrides(self) -> list[str]:
        """Overrides of the server's run, as after ``python -m fl_app``."""
        return shlex.split(self.settings.get("OVERRIDES", ""))

    def trusting(self) -> ssl.SSLContext:
        """TLS that trusts the kit's authority alone.

        Raises:
            OSError: a certificate cannot be read.
        """
        context = ssl.create_default_context(cafile=self.folder / "ca.crt")
        if self.role == "helper":  # it requires a client certificate, so show its own
            context.load_cert_chain(self.folder / "helper.crt", self.folder / "helper.key")
        return context

    def healthy(self) -> bool:
        """Whether the SuperLink, the SuperNode or the helper of this folder answers."""
        try:
            if self.role == "node":
                return request(f"127.0.0.1:{self.settings['PORT']}", "/health", None).is_success
            return request(self.address, "/health", self.trusting()).is_success
        except UNREACHED:
            return False


def request(
    address: str, path: str, context: ssl.SSLContext | None, method: str = "GET"
) -> httpx.Response:
    """Send a request without content and return the response, whatever its status.

    Args:
        address: host:port.
        path: such as ``/health``.
        context: the certificates to trust; None sends the request without TLS.
        method: of HTTP.

    Raises:
        httpx.HTTPError: there is no HTTP response.
        httpx.InvalidURL: `address` is invalid.
    """
    # Devices connect directly, as SuperNodes do: proxies of the environment are not used.
    url = f"{'http' if context is None else 'https'}://{address}{path}"
    return httpx.request(method, url, verify=context or False, timeout=PATIENCE, trust_env=False)
