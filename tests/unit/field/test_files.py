"""Docker, systemd and shell files, examined by tools that know them; nothing is started."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from fl_app.field.make import FILES, new_kit

ROOT = Path(__file__).resolve().parents[3]
TOOLS = Path(sys.executable).parent


def examine(*command: object, cwd: Path = ROOT) -> str:
    result = subprocess.run(
        list(map(str, command)), cwd=cwd, text=True, capture_output=True, env={"PATH": "/usr/bin"}
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


@pytest.fixture(scope="module")
def kit(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("kit") / "out"
    new_kit(folder, nodes=3, hosts=["server.lan"], port=9000)
    return folder


def test_dockerfile_has_no_lint():
    assert examine(TOOLS / "hadolint", ROOT / "docker" / "Dockerfile") == ""


def test_images_get_what_they_need_and_no_more():
    """Else secrets, data or outputs of the clone would travel with them."""
    wanted = (ROOT / "docker" / "Dockerfile.dockerignore").read_text().splitlines()
    copied = {
        word
        for line in (ROOT / "docker" / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY ")
        for word in line.split()[1:-1]
    }
    assert wanted[0] == "*"
    assert {line[1:] for line in wanted if line.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


def test_scripts_have_no_lint():
    scripts = sorted(FILES.glob("*/*.sh"))
    assert [script.name for script in scripts] == ["install.sh", *["start.sh"] * 3]
    assert examine(TOOLS / "shellcheck", *scripts) == ""


def test_the_helpers_compose_file_follows_its_schema(tmp_path):
    (tmp_path / "helper.env").write_text('PORT="8102"\n')
    compose = (FILES / "helper" / "compose.yaml").read_text()
    (tmp_path / "compose.yaml").write_text(compose)
    words = ["--env-file", "helper.env", "config"]
    output = examine(TOOLS / "docker-compose", *words, cwd=tmp_path)
    (service,) = yaml.safe_load(output)["services"].values()
    assert (service["ports"][0]["target"], service["ports"][0]["published"]) == (8102, "8102")


@pytest.mark.parametrize("where", ["server", "node-1"])
def test_compose_files_follow_their_schema(kit, where):
    """``config`` validates against the Compose Specification."""
    output = examine(TOOLS / "docker-compose", "--profile", "*", "config", cwd=kit / where)
    services = yaml.safe_load(output)["services"]
    wanted = {"server": {"superlink", "caddy", "run"}, "node-1": {"supernode"}}
    assert services.keys() == wanted[where]
    for name, service in services.items():
        assert service["volumes"][0]["source"] == str(kit / where)
        assert service["user"] == "1000:1000"
        assert "restart" in service
        assert service["environment"]["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
        assert ("ports" in service) == (name == "caddy")
    if where == "server":
        assert services["caddy"]["ports"][0]["published"] == "9000"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_units_are_understood(kit, tmp_path):
    """With a Python that exists here."""
    units = [*kit.glob("server/*.service"), *kit.glob("node-0/*.service")]
    units += FILES.glob("helper/*.service")
    for unit in units:
        text = unit.read_text().replace("/opt/fl-app/.venv/bin/python", sys.executable)
        (tmp_path / unit.name).write_text(text)
    assert len(units) == 5
    assert examine("systemd-analyze", "verify", *sorted(tmp_path.iterdir())) == ""
