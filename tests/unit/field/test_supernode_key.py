"""A device whose key is in use waits, and says which key it is if another device has it."""

import subprocess
import sys

import pytest
from fake_superlink import superlink

from fl_app.core.errors import RunError
from fl_app.field.certificates import new_node
from fl_app.field.identity import fingerprint, known_to_server
from fl_app.field.kit import new_kit
from fl_app.field.supernode import Asks, wait_for_key


class Told:
    """Statuses in turn; the last one stands."""

    def __init__(self, *statuses) -> None:
        self.statuses = list(statuses)
        self.waited = 0.0
        self.said: list[str] = []

    def wait(self) -> None:
        wait_for_key(self.status, "K", pause=self.pause, tell=self.said.append)

    def status(self):
        return self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]

    def pause(self, seconds) -> None:
        self.waited += seconds


@pytest.mark.parametrize("status", ["offline", "registered", "", None])
def test_a_key_that_is_free_is_not_waited_for(status):
    told = Told(status)
    told.wait()
    assert (told.waited, told.said) == (0.0, [])


def test_a_device_that_crashed_waits_until_it_is_missed():
    told = Told(*["online"] * 12, "offline")
    told.wait()
    assert told.waited == 60.0
    assert told.said == [
        "the key K still counts as online: the server misses the process that died"
    ]


def test_a_second_device_is_told_which_key_it_shares():
    told = Told("online")
    with pytest.raises(RunError, match="another device is online with this device's key, K: the"):
        told.wait()
    assert told.waited == 75.0


def test_a_key_is_named_as_ssh_names_it(tmp_path):
    new_node(tmp_path, "node-0")
    named = subprocess.run(
        ["ssh-keygen", "-l", "-f", tmp_path / "node.key.pub"], capture_output=True, text=True
    )
    assert fingerprint(tmp_path / "node.key") == named.stdout.split()[1]


def test_the_status_comes_from_the_server_of_flowers_arguments(tmp_path):
    new_kit(tmp_path / "out", nodes=1, hosts=["127.0.0.1"])
    folder = tmp_path / "out" / "node-0"
    key = str(folder / "node.key")
    words = ["--root-certificates", str(folder / "ca.crt"), "--auth-supernode-private-key", key]
    words += ["--node-config", "partition-id=7 num-partitions=9"]
    with superlink(tmp_path / "out" / "server", gate="online", version="9.9") as port:
        asks = Asks(["--superlink", f"127.0.0.1:{port}", *words, "--port", "9"])
        assert asks.told() == {"status": "online", "flower": "9.9", "project": "9.9"}
        assert asks._about["client"] == "7"
        assert "of fl-app, and the server 9.9: orders may fail" in asks.other_version()
    assert asks.told() == {}  # nobody answers: the SuperNode itself tries again
    assert asks.other_version() == ""
    with superlink(tmp_path / "out" / "server") as port:  # Flower's own server, without a gate
        assert Asks(["--superlink", f"127.0.0.1:{port}", *words]).told() == {}
    insecure = Asks(["--insecure", "--superlink", "127.0.0.1:1"])
    assert insecure.key is None
    assert insecure.told() == {}


def test_a_device_that_is_there_before_its_server_asks_it_first(tmp_path):
    new_kit(tmp_path / "out", nodes=1, hosts=["127.0.0.1"])
    folder = tmp_path / "out" / "node-0"
    key = ["--auth-supernode-private-key", str(folder / "node.key")]
    said: list[str] = []
    with superlink(tmp_path / "out" / "server", gate="registered") as port:
        words = ["--superlink", f"127.0.0.1:{port}", *key, "--root-certificates"]
        there = Asks([*words, str(folder / "ca.crt")])
        there.wait(tell=said.append)
        new_kit(tmp_path / "other", nodes=1, hosts=["127.0.0.1"])
        stranger = Asks([*words, str(tmp_path / "other" / "node-0" / "ca.crt")])
        stranger.wait(tell=said.append)  # is not waited for: it is another server
    assert said == []
    pauses: list[float] = []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 3:
            raise TimeoutError

    with pytest.raises(TimeoutError):
        there.wait(pause, said.append)
    assert said[0].startswith(f"waiting for the server: 127.0.0.1:{port} does not answer: ")
    assert len(said) == 1
    Asks(["--insecure", "--superlink", "127.0.0.1:1"]).wait(pause)  # there is nothing to ask


def test_a_key_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        known_to_server("127.0.0.1:1", tmp_path / "node.key", None)


def test_a_second_device_ends_with_a_line_and_no_traceback():
    script = (
        "from fl_app.core.errors import RunError\n"
        "from fl_app.field.supernode import serve\n"
        "def node(): raise RunError('another device')\n"
        "serve(node)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr == "error: another device\nThe SuperNode has given up\n"
