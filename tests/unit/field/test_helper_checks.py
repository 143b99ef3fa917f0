"""What doctor finds about a helper, in its folder, from the server, and on a device."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from configs import composed

from fl_app.field.doctor import examine
from fl_app.field.findings import Finding, Verdict
from fl_app.field.health import healthy
from fl_app.field.helper import add_helper
from fl_app.field.helper_checks import (
    check_devices,
    of_helper,
    of_helpers_key,
    of_servers_helper,
)
from fl_app.field.kit import Kit, new_kit
from fl_app.field.loopback import free_ports
from fl_app.secure.service import configured

PORT = free_ports(1)[0]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("helper") / "out"
    new_kit(out, nodes=4, hosts=["localhost"])
    add_helper(out, ["localhost"], port=PORT, least=3, noise_multiplier=0.5)
    return out


def wrong(findings: Iterator[Finding] | list[Finding]) -> dict[str, str]:
    return {f.subject: f.text for f in findings if f.verdict is Verdict.WRONG}


@contextmanager
def changed(path: Path, content: bytes | None) -> Iterator[None]:
    """A file with another content, or none, for a while."""
    before, mode = path.read_bytes(), path.stat().st_mode
    path.unlink()
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    yield
    path.unlink(missing_ok=True)
    path.write_bytes(before)
    path.chmod(mode)


def test_a_sound_folder_is_not_running_yet_and_nothing_is_wrong(sound: Path) -> None:
    kit = Kit.read(sound / "helper", {})
    assert (kit.role, kit.address) == ("helper", f"127.0.0.1:{PORT}")
    findings = examine(kit)
    assert {f.verdict for f in findings} == {Verdict.GOOD}
    told = {f.subject: f.text for f in findings}
    assert told["record of seeds"] == "writable; 0 seeds were used"
    assert told["helper's devices"] == "it knows 4, and tells sums over 3 or more"
    assert not wrong(of_helpers_key(Kit.read(sound / "node-1", {})))
    assert not healthy(kit)


def test_what_is_wrong_in_its_folder(sound: Path) -> None:
    folder = sound / "helper"
    kit = Kit.read(folder, {})
    other = (sound / "ca" / "ca.crt").read_bytes()
    for name, content, subject, text in (
        ("helper.db", None, "record of seeds", "must be the helper's record"),
        ("helper.db", b"no record " * 99, "record of seeds", "file is not a database"),
        ("helper.pub", other, "helper's key", "must be the helper's public key"),
        ("keys/node-2.pub", b"ecdsa", "devices", "node-2.pub: "),
        ("keys/node-2.pub", None, "helper's devices", "it knows 3"),
    ):
        least = {**kit.settings, "MIN_CLIENTS": "4"}
        with changed(folder / name, content):
            found = wrong(of_helper(Kit(folder, "helper", least)))
            assert subject in found, name
            assert text in found[subject]


def test_a_device_with_another_key(sound: Path) -> None:
    kit = Kit.read(sound / "node-0", {})
    with changed(kit.folder / "helper.pub", b"no key"):
        assert "helper's key" in wrong(of_helpers_key(kit))
    with changed(kit.folder / "helper.pub", None):
        assert list(of_helpers_key(kit)) == []  # a federation without a helper


@contextmanager
def serving(folder: Path, least: int = 3, noise: float = 0.5) -> Iterator[None]:
    """A helper's process in a thread."""
    server = uvicorn.Server(configured(folder, "127.0.0.1", PORT, least, noise))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    yield
    server.should_exit = True
    thread.join()


def of_run(sound: Path, *more: str) -> Any:
    run = composed(
        *("runtime=deployment", "secure_aggregation=helper", "secure_aggregation.clip_norm=5"),
        *(f"secure_aggregation.address=localhost:{PORT}", "algorithm.schedule.buffer_size=3"),
        *("secure_aggregation.noise_multiplier=0.5", *more),
    )
    return list(of_servers_helper(Kit.read(sound / "server", {}), run))


@pytest.mark.slow
def test_what_the_server_finds(sound: Path) -> None:
    assert "does not answer as a helper" in wrong(of_run(sound))["helper"]
    with serving(sound / "helper"):
        assert healthy(Kit.read(sound / "helper", {}))
        findings = of_run(sound)
        assert {f.verdict for f in findings} == {Verdict.GOOD}
        assert [f.subject for f in findings] == [
            *("helper", "helper's key", "helper's devices"),
        ]
        asked = of_run(
            sound,
            "algorithm.schedule.buffer_size=2",
            "secure_aggregation.noise_multiplier=null",
        )
        assert wrong(asked).keys() == {"helper's devices", "helper's noise"}
        mine = sound / "server"
        with changed(mine / "helper.pub", None):
            assert "helper's key" in wrong(of_run(sound))
        with changed(mine / "helper-client.crt", None):
            assert "does not answer" in wrong(of_run(sound))["helper"]
    plain = composed("runtime=deployment")
    assert list(of_servers_helper(Kit.read(sound / "server", {}), plain)) == []


def test_another_helpers_key_is_told(sound: Path, tmp_path: Path) -> None:
    new_kit(tmp_path / "out", nodes=2, hosts=["localhost"])
    add_helper(tmp_path / "out", ["localhost"])
    with changed(
        sound / "helper" / "helper.pub", (tmp_path / "out/helper/helper.pub").read_bytes()
    ):
        found = wrong(of_helper(Kit.read(sound / "helper", {})))
    assert "is another helper's" in found["helper's key"]


@pytest.mark.parametrize(("devices", "members", "verdict"), [
    (3, 3, Verdict.GOOD), (2, 3, Verdict.WRONG), (9, 2, Verdict.WRONG), (3, None, Verdict.GOOD),
])  # fmt: skip
def test_devices_of_a_sum(devices: int, members: int | None, verdict: Verdict) -> None:
    assert check_devices(devices, 3, members).verdict is verdict


def test_a_helper_that_could_not_work_is_not_added(tmp_path: Path) -> None:
    out = tmp_path / "out"
    new_kit(out, nodes=3, hosts=["localhost"])
    before = sorted(out.rglob("*"))
    for arguments, text in (
        ({"hosts": ["a b"]}, "--host=a b must be an IP address or a host name"),
        ({"port": 0}, "--port=0 must be between 1 and 65535"),
        ({"least": 1}, "--min-clients=1 must be between 2 and the 3 devices"),
        ({"least": 4}, "--min-clients=4 must be between 2 and the 3 devices"),
        ({"noise_multiplier": -1.0}, r"--noise-multiplier=-1\.0 must be a finite number >= 0"),
        ({"days": 0}, "--days=0 must be an integer >= 1"),
    ):
        with pytest.raises(ValueError, match=f"^{text}"):
            add_helper(out, **{"hosts": ["localhost"], **arguments})  # type: ignore[arg-type]
    assert sorted(out.rglob("*")) == before
    add_helper(out, ["localhost"])
    with pytest.raises(ValueError, match="the key of its helper would be lost"):
        add_helper(out, ["localhost"])
