import stat
import subprocess

import pytest
from flwr.common.config import parse_config_args

from fl_app.field.kit import Kit
from fl_app.field.make import FILES, SHARED, add_helper, new_kit


def files(folder) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_every_machine_gets_a_folder_with_all_it_needs_and_nothing_else(tmp_path):
    wheel = tmp_path / "fl_app-0.1.0.whl"
    wheel.touch()
    new_kit(tmp_path / "out", nodes=2, hosts=["server.lan"], wheel=wheel)
    wheel.unlink()
    node = {"ca.crt", "node.key", "node.key.pub", "node.env"}
    node |= {"start.sh", "compose.yaml", "fl-supernode.service", "README.md"}
    shared = {path.name for path in SHARED} | {"fl_app-0.1.0.whl"}
    assert {"install.sh", "constraints.txt"} < shared
    node |= shared
    server = {"ca.crt", "server.crt", "server.key", "server.env", "keys/node-0.pub"}
    server |= {"keys/node-1.pub", "start.sh", "compose.yaml", "README.md"}
    server |= {"grafana.json", "fl-superlink.service", "fl-run.service"}
    server |= {"Caddyfile", "fl-caddy.service"}
    server |= shared
    assert files(tmp_path) == {
        *("out/ca/ca.crt", "out/ca/ca.key"),
        *(f"out/server/{name}" for name in server),
        *(f"out/node-{i}/{name}" for i in (0, 1) for name in node),
    }
    for name in ("ca", "server", "node-0", "node-1"):
        assert stat.S_IMODE((tmp_path / "out" / name).stat().st_mode) == 0o700


def test_settings_are_read_as_they_were_written(tmp_path):
    new_kit(tmp_path / "out", nodes=3, hosts=["10.0.0.1", "server.lan"], port=9000)
    server = Kit.read(tmp_path / "out" / "server", {})
    assert (server.role, server.address, server.insecure) == ("server", "127.0.0.1:8099", False)
    assert server.settings["PORT"] == "9000"
    assert server.root_certificate == tmp_path / "out" / "server" / "ca.crt"
    assert {"num_clients=3", "runtime=deployment", "deadline=600"} <= set(server.overrides)
    node = Kit.read(tmp_path / "out" / "node-2", {})
    assert (node.role, node.address) == ("node", "10.0.0.1:9000")
    assert node.settings["NODE_CONFIG"] == "partition-id=2 num-partitions=3"
    assert '"9000:9000"' in (tmp_path / "out" / "server" / "compose.yaml").read_text()


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ({"nodes": 0}, "--nodes=0 must be an integer >= 1: there would be nobody to learn from"),
        ({"port": 65536}, "--port=65536 must be between 1 and 65535"),
        ({"days": -1}, "--days=-1 must be an integer >= 1: the certificate would have expired"),
        ({"hosts": ["a b"]}, "--host=a b must be an IP address or a host name"),
    ],
)
def test_a_kit_that_could_not_work_is_not_written(tmp_path, arguments, refusal):
    with pytest.raises(ValueError, match=refusal):
        new_kit(tmp_path / "out", **{"nodes": 1, "hosts": ["server.lan"], **arguments})
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_not_overwritten(tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(ValueError, match=r"out=.*/out must be a new folder: keys that devices use"):
        new_kit(tmp_path / "out", nodes=1, hosts=["server.lan"])


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ("", "SUPERLINK of .*node.env= must be host:port: no device would find the server"),
        ("SUPERLINK=server", "SUPERLINK of .*node.env=server must be host:port"),
        ("SUPERLINK=server:99999", "SUPERLINK of .*node.env=server:99999 must be host:port"),
        ('SUPERLINK="server:1', "node.env must hold lines KEY=VALUE: No closing quotation"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(tmp_path, settings, refusal):
    (tmp_path / "node.env").write_text(settings)
    with pytest.raises(ValueError, match=refusal):
        Kit.read(tmp_path, {})


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"must hold server.env or node.env or helper.env: it is no"
    ):
        Kit.read(tmp_path, {})


@pytest.fixture
def commands(tmp_path):
    """Commands of Flower's names that tell how they were called."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("flower-superlink", "flower-supernode", "python"):
        script = folder / name
        asked = 'case "$*" in *register*) echo "$*" >../registers; exit 0 ;; esac'
        script.write_text(f'#!/bin/sh\n{asked}\nprintf "%s\\n" "$0" "$FLWR_HOME" "$@"\n')
        script.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("insecure", [False, True])
def test_start_scripts_give_flower_what_the_folder_says(tmp_path, commands, insecure):
    new_kit(tmp_path / "out", nodes=1, hosts=["server.lan"], port=9000, insecure=insecure)
    said = {}
    for name in ("server", "node-0"):
        folder = tmp_path / "out" / name
        (settings,) = folder.glob("*.env")
        settings.write_text(settings.read_text().replace("/opt/fl-app/.venv", str(commands)))
        result = subprocess.run(
            ["sh", folder / "start.sh"],
            env={"PATH": "/usr/bin:/bin"},
            text=True,
            capture_output=True,
        )
        assert result.stderr == ""
        said[name] = result.stdout.splitlines()
        assert said[name][1] == str(folder / "flower")
    secure = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt"]
    secure += ["--ssl-keyfile", "server.key", "--enable-supernode-auth"]
    assert said["server"][2:] == [
        *("--host", "127.0.0.1", "--port", "8099", "--database", "state.db"),
        *(["--insecure"] if insecure else secure),
    ]
    assert said["node-0"][2:] == [
        *("-m", "fl_app.node.warm"),
        *("--superlink", "server.lan:9000", "--port", "9094"),
        *("--node-config", "partition-id=0 num-partitions=1"),
        *(
            ["--insecure"]
            if insecure
            else ["--root-certificates", "ca.crt", "--auth-supernode-private-key", "node.key"]
        ),
    ]
    asked = (tmp_path / "out" / "server" / "flower" / "config.toml").read_text()
    trust = f'root-certificates = "{tmp_path}/out/server/ca.crt"'
    assert ("insecure = true" if insecure else trust) in asked
    assert 'address = "127.0.0.1:8099"' in asked
    registers = tmp_path / "out" / "registers"
    told = registers.read_text() if registers.exists() else ""
    assert told == ("" if insecure else "-m fl_app.field register .\n")


def test_data_of_a_devices_own_are_in_its_node_config(tmp_path, commands):
    """In the form in which Flower reads it, also with a blank in the path."""
    new_kit(tmp_path / "out", nodes=1, hosts=["server.lan"], insecure=True)
    folder = tmp_path / "out" / "node-0"
    settings = (folder / "node.env").read_text()
    assert 'DATA=""\n' in settings
    assert Kit.read(folder, {}).data is None
    settings = settings.replace('DATA=""', 'DATA="/srv/our data"')
    (folder / "node.env").write_text(settings.replace("/opt/fl-app/.venv", str(commands)))
    assert Kit.read(folder, {}).data == "/srv/our data"
    result = subprocess.run(
        ["sh", folder / "start.sh"], env={"PATH": "/usr/bin:/bin"}, text=True, capture_output=True
    )
    words = result.stdout.splitlines()
    node_config = words[words.index("--node-config") + 1]
    assert node_config == "partition-id=0 num-partitions=1 data='/srv/our data'"
    assert parse_config_args([node_config])["data"] == "/srv/our data"


def test_the_files_of_a_kit_know_its_places():
    """Units and images find the environment where the settings say it is."""
    assert "/opt/fl-app/.venv/" in (FILES / "server" / "fl-run.service").read_text()
    for unit in FILES.glob("*/fl-*.service"):
        role = unit.parent.name
        text = unit.read_text()
        assert f"EnvironmentFile=/opt/fl-app/{role}/{role}.env" in text
        assert f"ReadWritePaths=/opt/fl-app/{role}\n" in text
        assert f" /opt/fl-app/{role}" in text.split("ExecStart=")[1].splitlines()[0]


def test_a_helpers_folder_has_what_installs_it(tmp_path):
    wheel = tmp_path / "fl_app-1.0.whl"
    wheel.touch()
    new_kit(tmp_path / "out", nodes=2, hosts=["server.lan"], wheel=wheel)
    helper = add_helper(tmp_path / "out", ["helper.lan"], port=9001)
    mine = {"ca.crt", "helper.crt", "helper.key", "helper.pub", "helper.db", "helper.env"}
    mine |= {"keys/node-0.pub", "keys/node-1.pub"}
    programs = {path.name for path in (*SHARED, *(FILES / "helper").iterdir())}
    assert files(helper) == mine | programs | {"fl_app-1.0.whl"}
    assert stat.S_IMODE(helper.stat().st_mode) == 0o700
    kit = Kit.read(helper, {})
    assert (kit.role, kit.address, kit.data) == ("helper", "127.0.0.1:9001", None)
    assert kit.settings["MADE"] == Kit.read(tmp_path / "out" / "server", {}).settings["MADE"]
    with pytest.raises(ValueError, match=r"PORT of .*helper.env=x must be between 1 and 65535"):
        Kit.read(helper, {"PORT": "x"})
