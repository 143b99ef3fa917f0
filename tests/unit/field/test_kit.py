"""The kit: its files, settings of a folder, and checks of the files by tools."""

import re
import shlex
import shutil
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from flwr.common.config import parse_config_args
from helpers import executable, status_of

from fl_app.field.__main__ import _parser, main
from fl_app.field.control import public_bytes
from fl_app.field.kit import Kit
from fl_app.field.make import (
    FILES,
    SHARED,
    add_helper,
    new_authority,
    new_certificate,
    new_kit,
    new_node,
)

ROOT = Path(__file__).resolve().parents[3]
TOOLS = Path(sys.executable).parent
HOSTS = ["server.lan", "192.168.1.7", "::1"]
WHEEL = "fl_app-0.1.0.whl"


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kit")
    (folder / WHEEL).touch()
    new_kit(folder / "out", nodes=2, hosts=HOSTS, port=9000, wheel=folder / WHEEL)
    assert add_helper(folder / "out", ["helper.lan"], port=9001) == folder / "out" / "helper"
    return folder / "out"


OWN = {
    "server": "ca.crt server.crt server.key keys/node-0.pub keys/node-1.pub helper.pub "
    "helper-client.crt helper-client.key",
    "node-1": "ca.crt node.key node.key.pub helper.pub",
    "helper": "ca.crt helper.crt helper.key helper.pub helper.db keys/node-0.pub keys/node-1.pub",
    "ca": "ca.crt ca.key",
}


@pytest.mark.parametrize("name", OWN)
def test_every_machine_gets_the_files_it_needs_and_only_their_owner_may_read_keys(kit, name):
    expected, files = (
        {*OWN[name].split()},
        [path for path in (kit / name).rglob("*") if path.is_file()],
    )
    if name != "ca":
        programs = {path.name for path in (*SHARED, *(FILES / name.partition("-")[0]).iterdir())}
        assert programs >= {"install.sh", "start.sh", "compose.yaml", "constraints.txt"}
        expected |= programs | {WHEEL}
    assert {path.relative_to(kit / name).as_posix() for path in files} == expected
    assert stat.S_IMODE((kit / name).stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in files if path.suffix == ".key"} == {0o600}


def test_settings_are_read_as_they_were_written(kit):
    server, node, helper = (Kit.read(kit / name, {}) for name in ("server", "node-1", "helper"))
    assert (server.role, server.address) == ("server", "127.0.0.1:8099")
    assert server.settings["PORT"] == "9000"
    assert {"num_clients=2", "runtime=deployment", "deadline=600"} <= set(server.overrides)
    assert (node.role, node.address) == ("node", "server.lan:9000")
    assert node.settings["NODE_CONFIG"] == "partition-id=1 num-partitions=2"
    assert (helper.role, helper.address, helper.data) == ("helper", "127.0.0.1:9001", None)
    assert helper.settings["MADE"] == server.settings["MADE"]
    with pytest.raises(ValueError, match=r"PORT of .*helper.env=x must be between 1 and 65535"):
        Kit.read(kit / "helper", {"PORT": "x"})


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ({"nodes": 0}, "--nodes=0 must be an integer >= 1: there would be nobody to learn from"),
        ({"port": 65536}, "--port=65536 must be between 1 and 65535"),
        ({"port": 8099}, "--port=8099 must be another than 8099"),
        ({"hosts": ["a b"]}, "--host=a b must be an IP address or a host name"),
        ({"out": Path("/etc")}, "out=/etc must be a new folder: keys that devices use"),
    ],
)
def test_a_kit_that_could_not_work_is_not_written(tmp_path, arguments, refusal):
    with pytest.raises(ValueError, match=refusal):
        new_kit(**{"out": tmp_path / "out", "nodes": 1, "hosts": ["server.lan"], **arguments})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        ({"min_clients": 1}, "--min-clients=1 must be between 2 and the 3 devices of the kit"),
        ({"min_clients": 4}, "--min-clients=4 must be between 2 and the 3 devices"),
        ({"port": 0}, "--port=0 must be between 1 and 65535: no helper can listen there"),
        ({"hosts": ["a b"]}, "--host=a b must be an IP address or a host name"),
    ],
)
def test_a_helper_that_could_not_work_is_not_added(tmp_path, arguments, refusal):
    new_kit(tmp_path / "out", nodes=3, hosts=["server.lan"])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=refusal):
        add_helper(tmp_path / "out", **{"hosts": ["helper.lan"], **arguments})
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("settings", "refusal"),
    [
        ("", "SUPERLINK of .*node.env= must be host:port: no device would find the server"),
        ("SUPERLINK=server", "SUPERLINK of .*node.env=server must be host:port"),
        ("SUPERLINK=server:99999", "SUPERLINK of .*node.env=server:99999 must be host:port"),
        ('SUPERLINK="server:1', "node.env must hold lines KEY=VALUE: No closing quotation"),
        ('DATA = "/x"', "node.env must hold lines KEY=VALUE: DATA is none"),
        ("WARM=1\r\n", "node.env must hold lines KEY=VALUE: its lines end as in Windows"),
        ("SUPERLINK=server:1\nPORT=x", "PORT of .*node.env=x must be between 1 and 65535"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(tmp_path, settings, refusal):
    with pytest.raises(
        ValueError, match=r"must hold server.env or node.env or helper.env: it is no"
    ):
        Kit.read(tmp_path, {})
    (tmp_path / "node.env").write_text(settings)
    with pytest.raises(ValueError, match=refusal):
        Kit.read(tmp_path, {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((word, "is a device's folder (node.env)") for word in ("run", "status", "register")),
        ("run --output x runtime=ray", "runtime=ray must be deployment here"),
    ],
)
def test_only_the_servers_folder_has_a_superlink(kit, capsys, arguments, message):
    command, *more = arguments.split()
    assert status_of(main, command, kit / "node-1", *more) == 2
    assert message in capsys.readouterr().err


def test_an_error_does_not_ask_for_words_that_may_be_left_out(capsys):
    with pytest.raises(SystemExit):
        status_of(main, "doctor")
    assert capsys.readouterr().err.endswith("are required: folder\n")


def test_start_scripts_pass_the_folders_settings_to_flower(tmp_path):
    """Fake commands of Flower print their arguments; the path of the data has a blank."""
    register = 'case "$*" in *register*) echo "$*" >../registers; exit 0 ;; esac'
    for name in ("flower-superlink", "flower-supernode", "python"):
        executable(tmp_path / "bin" / name, f'{register}\nprintf "%s\\n" "$FLWR_HOME" "$@"')
    out, arguments = tmp_path / "out", {}
    new_kit(out, nodes=1, hosts=["server.lan"], port=9000)
    for name in ("server", "node-0"):
        (path,) = (out / name).glob("*.env")
        settings = path.read_text().replace("/opt/fl-app/.venv", str(tmp_path))
        path.write_text(settings.replace('DATA=""', 'DATA="/srv/our data"'))
        result = subprocess.run(
            ["sh", out / name / "start.sh"],
            env={"PATH": "/usr/bin:/bin"},
            text=True,
            capture_output=True,
        )
        assert result.stderr == ""
        home, *arguments[name] = result.stdout.splitlines()
        assert home == str(out / name / "flower")
    secure = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt"]
    secure += ["--ssl-keyfile", "server.key", "--enable-supernode-auth"]
    assert arguments["server"] == [
        *("--host", "127.0.0.1", "--port", "8099", "--database", "state.db"),
        *secure,
    ]
    data = "partition-id=0 num-partitions=1 data='/srv/our data'"
    secure = ["--root-certificates", "ca.crt", "--auth-supernode-private-key", "node.key"]
    assert arguments["node-0"] == [
        *("-m", "fl_app.node.warm", "--superlink", "server.lan:9000", "--port", "9094"),
        *("--node-config", data, *secure),
    ]
    assert parse_config_args([data])["data"] == "/srv/our data"
    assert Kit.read(out / "node-0", {}).data == "/srv/our data"
    register = (out / "server" / "flower" / "config.toml").read_text()
    trust = f'root-certificates = "{out}/server/ca.crt"'
    assert trust in register
    assert 'address = "127.0.0.1:8099"' in register
    assert (out / "registers").exists()


def test_the_files_of_a_kit_have_the_default_paths():
    """Units and images use the environment's place in the settings."""
    assert "/opt/fl-app/.venv/" in (FILES / "server" / "fl-run.service").read_text()
    for unit in FILES.glob("*/fl-*.service"):
        role = unit.parent.name
        text = unit.read_text()
        assert f"EnvironmentFile=/opt/fl-app/{role}/{role}.env" in text
        assert f"ReadWritePaths=/opt/fl-app/{role}\n" in text
        assert f" /opt/fl-app/{role}" in text.split("ExecStart=")[1].splitlines()[0]


# -- keys and certificates ------------------------------------------------------------------------


def handshake(server_folder, authority, host):
    """A TLS handshake in memory between a device and the SuperLink."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(server_folder / "server.crt", server_folder / "server.key")
    client = ssl.create_default_context(cafile=authority)
    client.verify_flags |= ssl.VERIFY_X509_STRICT  # the default from Python 3.13 on
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    while ends:
        for end in list(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue


def test_a_device_trusts_the_server_under_its_names_and_no_other(kit, tmp_path):
    for name in HOSTS:
        handshake(kit / "server", kit / "node-0" / "ca.crt", name)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(kit / "server", kit / "node-0" / "ca.crt", "other.lan")
    new_authority(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        handshake(kit / "server", tmp_path / "ca.crt", "server.lan")


def test_a_key_is_never_overwritten(kit):
    for make in (
        lambda: new_authority(kit / "ca"),
        lambda: new_certificate(kit / "ca", kit / "server", "server", ["server.lan"]),
        lambda: new_node(kit / "node-0", "node-0"),
    ):
        with pytest.raises(FileExistsError):
            make()


def test_node_keys_have_flowers_format(kit):
    private, public = (kit / "node-0" / name for name in ("node.key", "node.key.pub"))
    assert private.read_bytes().startswith(b"-----BEGIN OPENSSH PRIVATE KEY-----")
    key = serialization.load_ssh_private_key(private.read_bytes(), None)
    assert key.curve.name == "secp384r1"
    assert public.read_text().startswith("ecdsa-sha2-nistp384 ")
    assert public_bytes(public) == key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


@pytest.mark.parametrize("host", ["server.lan:8100", "https://server", "", "two words", "-x"])
def test_a_host_that_is_none_is_refused(kit, tmp_path, host):
    with pytest.raises(ValueError, match=r"--host=.* must be an IP address or a host name"):
        new_certificate(kit / "ca", tmp_path, "server", [host])
    assert [*tmp_path.iterdir()] == []


# -- checks of the files by tools ------------------------------------------------------------------


def examine(*command, cwd=ROOT):
    result = subprocess.run(
        list(map(str, command)), cwd=cwd, text=True, capture_output=True, env={"PATH": "/usr/bin"}
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_dockerfile_has_no_lint():
    assert examine(TOOLS / "hadolint", ROOT / "docker" / "Dockerfile") == ""


def test_images_contain_only_the_files_they_need():
    """Otherwise they would contain secrets, data or outputs of the clone."""
    patterns = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    sources = {
        word
        for line in (ROOT / "docker" / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ")
        for word in line.split()[1:-1]
    }
    assert patterns[0] == "*"
    assert {line[1:] for line in patterns if line.startswith("!")} == sources
    assert all((ROOT / name).exists() for name in sources)


def test_scripts_have_no_lint():
    scripts = sorted(FILES.glob("*/*.sh"))
    assert [script.name for script in scripts] == ["install.sh", *["start.sh"] * 3]
    assert examine(TOOLS / "shellcheck", *scripts) == ""


def test_settings_are_spelt_as_systemd_and_the_shell_read_them_alike(kit):
    for path in kit.glob("*/*.env"):
        assert re.fullmatch(r'(([A-Z_]+="[^"$`\\]*"|# .*)\n)+', path.read_text()), path


@pytest.mark.parametrize("folder", ["server", "node-1", "helper"])
def test_compose_files_follow_their_schema(kit, folder):
    """``config`` validates against the Compose Specification."""
    arguments = [] if folder == "server" else ["--env-file", f"{folder.partition('-')[0]}.env"]
    arguments += ["--profile", "*", "config"]
    services = yaml.safe_load(examine(TOOLS / "docker-compose", *arguments, cwd=kit / folder))[
        "services"
    ]
    expected = {
        "server": {"superlink", "caddy", "run"},
        "node-1": {"supernode"},
        "helper": {"helper"},
    }
    assert services.keys() == expected[folder]
    ports = {"caddy": "9000", "helper": "9001"}
    for name, service in services.items():
        assert service["volumes"][0]["source"] == str(kit / folder)
        assert service["user"] == "1000:1000"
        assert "restart" in service
        assert [port["published"] for port in service.get("ports", [])] == [
            *filter(None, [ports.get(name)])
        ]
        env, settings = service["environment"], Kit.read(kit / folder, {}).settings
        ours = {key: env[key] for key in ("SUPERLINK", "VENV") if name in ports and key in env}
        assert env.items() >= (settings | ours).items()  # Docker parses them like the shell


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_units_are_valid(kit, tmp_path):
    """`systemd-analyze` accepts them, with the Python of this machine."""
    units = [
        each for name in ("server", "node-0", "helper") for each in kit.glob(f"{name}/*.service")
    ]
    for unit in units:
        text = unit.read_text().replace("/opt/fl-app/.venv/bin/python", sys.executable)
        (tmp_path / unit.name).write_text(text)
    assert len(units) == 5
    assert examine("systemd-analyze", "verify", *sorted(tmp_path.iterdir())) == ""


# -- commands in documents -------------------------------------------------------------------------

EDGE = [ROOT / "docs" / "edge.md", ROOT / "docs" / "edge-operations.md"]
YOUR_DATA = ROOT / "docs" / "your-data.md"
KIT = [FILES / role / "README.md" for role in ("node", "server")]
PLACES = [*EDGE, YOUR_DATA, *KIT, FILES / "server" / "fl-run.service"]
COMMAND = re.compile(r"python -m fl_app\.field ([^#`\n]+)")


@pytest.mark.parametrize("place", PLACES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_commands_exist(place):
    commands = COMMAND.findall(place.read_text())
    assert commands
    for command in commands:
        try:
            _parser().parse_args(shlex.split(command))
        except SystemExit:
            pytest.fail(f"python -m fl_app.field {command}")


def test_the_guide_shows_every_command_a_person_uses():
    texts = [page.read_text() for page in EDGE]
    commands = {command.split()[0] for text in texts for command in COMMAND.findall(text)}
    assert commands == {"init", "certificate", "register", "run", "doctor", "status"}
