"""The installer: its requests to uv on each machine, and its refusals."""

import os
import shutil
import socket
import ssl
import subprocess
import venv
import zipfile
from contextlib import closing, contextmanager, suppress
from http.client import HTTPSConnection
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk
from helpers import executable, python
from kit_processes import free_ports, superlink, wait_for

from fl_app.field.make import new_kit
from fl_app.field.packages import (
    AARCH64,
    NEVER_LOADED,
    TOLERATE,
    TORCH,
    Environment,
    InstallError,
    Plan,
    check_torch,
    plan_for,
    uv_variables,
)
from fl_app.field.project import app_folder, build_wheel, own_modules

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's


class Offered(Environment):
    """An environment with given versions of torch, which needs no package index."""

    def __init__(self, versions):
        super().__init__(Path("nowhere"), [])
        self._versions = versions

    def torch(self, *arguments, pinned=True):
        return self._versions.get(arguments[-1])


ALL = {"auto": "2.15", "cpu": "2.15.0+cpu", "--no-index": "2.13.0+cpu"}
CPU = Plan(words=("--torch-backend", "cpu"))


@pytest.mark.parametrize(
    ("choice", "processor", "versions", "plan"),
    [
        ("auto", "x86_64", ALL, CPU),
        ("cpu", "aarch64", ALL, CPU),
        ("auto, and there is a GPU", "x86_64", ALL, Plan(words=("--torch-backend", "auto"))),
        ("cpu, and there is a GPU", "x86_64", ALL, CPU),
        ("cpu", "x86_64", {"--no-index": "2.13.0+cpu"}, Plan(pins=("torch==2.13.0+cpu",))),
        ("cpu", "x86_64", {"--no-index": "2.15.0"}, Plan(excluded=NEVER_LOADED)),
        ("cpu", "x86_64", {}, Plan(excluded=NEVER_LOADED)),
        ("cpu", "aarch64", {"--no-index": "2.15.0"}, Plan(pins=AARCH64)),
        ("auto, and there is a GPU", "x86_64", {}, Plan()),  # the default index has CUDA
        ("cuda", "x86_64", ALL, Plan()),
        ("none", "x86_64", ALL, Plan(excluded=TORCH)),
    ],
)
def test_the_source_of_torch(monkeypatch, choice, processor, versions, plan):
    monkeypatch.setattr("platform.machine", lambda: processor)
    result = plan_for(choice.split(",")[0], Offered(versions), gpu="GPU" in choice)
    assert result._replace(note="") == plan
    assert bool(result.note) == bool(plan.pins or plan.excluded)


def test_uv_gets_the_settings_of_pip():
    pip = {"PIP_FIND_LINKS": "/a /b", "PIP_INDEX_URL": "file:///x", "PIP_CONSTRAINT": "c.txt"}
    uv = uv_variables({**pip, "UV_DEFAULT_INDEX": "file:///y", "UV_CONSTRAINT": "d.txt"})
    assert uv["UV_FIND_LINKS"] == "/a,/b"
    assert uv["UV_DEFAULT_INDEX"] == "file:///y"  # uv's own settings win
    assert "UV_CONSTRAINT" not in uv


def python_that(folder, script):
    """An environment whose Python is a shell script."""
    executable(folder / "bin" / "python", script)
    return Environment(folder, [])


def test_the_error_of_a_torch_for_another_processor_names_its_cause(tmp_path):
    with pytest.raises(InstallError, match="does not compute: Illegal instruction"):
        check_torch(python_that(tmp_path / "signal", "kill -s ILL $$"))
    with pytest.raises(InstallError, match="does not compute: ImportError: no libcudart"):
        check_torch(python_that(tmp_path / "error", "echo 'ImportError: no libcudart' >&2; exit 1"))
    assert check_torch(python_that(tmp_path / "good", "echo 2.15.0+cpu")) == ""


@pytest.mark.slow  # it imports torch
def test_any_program_imports_a_torchvision_of_another_build_of_torch(tmp_path):
    """The installed torchvision, without its compiled operators."""
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    source = Path(find_spec("torchvision").origin).parent
    shutil.copytree(source, packages / "torchvision", ignore=shutil.ignore_patterns("*.so"))
    paths = [ROOT, *{source.parent, Path(find_spec("torch").origin).parents[1]}]
    (packages / "others.pth").write_text("".join(f"{path}\n" for path in paths))
    environment = Environment(tmp_path / "venv", [])
    program = "from torchvision.transforms import v2; from torchvision.models import resnet18"
    assert "operator torchvision::nms does not exist" in environment.runs(program)
    assert "without its compiled operators" in check_torch(environment)
    process = subprocess.run([environment.python, "-c", program], capture_output=True, text=True)
    assert (process.returncode, process.stderr) == (0, "")
    assert check_torch(environment) == ""


def test_uv_is_in_the_environment_even_if_the_base_image_has_one(tmp_path):
    """pip regards a requirement as met if it is installed beside the interpreter."""
    calls = tmp_path / "calls"
    environment = python_that(tmp_path / "venv", f'echo "$@" >>{calls}')
    environment.make(above=True)
    assert calls.read_text().splitlines()[-1].endswith("uv --ignore-installed")
    environment.uv.touch()
    environment.make(above=True)
    assert calls.read_text().splitlines()[-1].endswith("uv")


# -- the project's files, of a clone and of an installed package ----------------------------------


def test_an_app_carries_the_modules_that_a_run_names(tmp_path):
    one, other = tmp_path / "here", tmp_path / "there"
    (other / "losses").mkdir(parents=True)
    one.mkdir()
    for file in (one / "my_model.py", other / "losses" / "focal.py", other / "losses" / "x.bin"):
        file.write_text("")
    overrides = ["task=csv", "task.model=my_model:make", "+task.loss='losses.focal:loss'"]
    overrides += ["task.schema=a:b", "task.model=torch.nn:Linear", "task.loss=fl_app.tasks:x"]
    modules = own_modules(overrides, [one, other, ROOT])
    assert modules == [one / "my_model.py", other / "losses"]
    with app_folder(modules) as folder:
        names = zipfile.ZipFile(BytesIO(build_fab_from_disk(folder))).namelist()
    assert {"my_model.py", "losses/focal.py", "fl_app/server_app.py"} <= {*names}
    with pytest.raises(ValueError, match=f"absent.py must lie in {one} or {other}"):
        own_modules(["task.model=absent:make"], [one, other])


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_wheel_makes_the_same_wheel_and_the_same_flower_app(tmp_path):
    """So an installed package can make a kit and submit runs like a clone."""
    wheel = build_wheel(tmp_path)
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
        names = set(file.namelist())
    code = (
        "import sys; from pathlib import Path; from fl_app.field import project\n"
        "print(project.build_wheel(Path(sys.argv[1])))\n"
        "from flwr.cli.build import build_fab_from_disk\n"
        "with project.app_folder() as folder:\n"
        "    Path(sys.argv[1], 'fab').write_bytes(build_fab_from_disk(folder))\n"
    )
    output = tmp_path / "again"
    output.mkdir()
    python("-c", code, output, env={"PYTHONPATH": str(site)})
    with zipfile.ZipFile(next(output.glob("*.whl"))) as file:
        assert set(file.namelist()) == names
    shutil.rmtree(site)
    assert (output / "fab").read_bytes() == build_fab_from_disk(ROOT)


# -- the proxy -------------------------------------------------------------------------------------

needs_caddy = pytest.mark.skipif(
    shutil.which("caddy") is None, reason="there is no caddy to start (apt-get install caddy)"
)
PUSH, LIST_RUNS = "/v1/fleet/push-object", "/v1/control/list-runs"
MB = 10**6


@pytest.fixture
def server(tmp_path):
    new_kit(tmp_path / "out", nodes=1, hosts=["server.lan"])
    return tmp_path / "out" / "server"


@contextmanager
def caddy(server, link_port):
    """Run Caddy in front of a port of this machine; yields a stranger's connection to it."""
    (port,) = free_ports(1)
    settings = {"PORT": str(port), "SUPERLINK": f"127.0.0.1:{link_port}"}
    log = server / "caddy.log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            ["sh", server / "start.sh", "caddy"],
            env={**os.environ, **settings},
            stdout=file,
            stderr=file,
        )

    def listens():
        assert process.poll() is None, log.read_text()
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_for(listens, "Caddy listens", 20.0)
        context = ssl.create_default_context(cafile=server / "ca.crt")
        stranger = HTTPSConnection("127.0.0.1", port, timeout=10.0, context=context)
        with closing(stranger):
            yield stranger
    finally:
        process.terminate()
        process.wait(20)


def status(stranger, method, path, body=None):
    stranger.request(method, path, body)
    response = stranger.getresponse()
    response.read()
    stranger.close()
    return response.status


@needs_caddy
def test_a_stranger_reaches_the_calls_of_supernodes_alone_and_not_with_large_bodies(server):
    with superlink(server) as port, caddy(server, port) as stranger:
        assert status(stranger, "POST", PUSH) == 200
        for method, path in (
            ("POST", LIST_RUNS),
            ("GET", "/"),
            ("GET", "/health"),
            ("GET", "/openapi.json"),
            ("POST", "/v1/runtime/pull-task"),
            ("POST", f"/v1/fleet/..{LIST_RUNS.removeprefix('/v1')}"),
            ("POST", f"/v1/fleet/%2e%2e{LIST_RUNS.removeprefix('/v1')}"),
            ("POST", f"/{LIST_RUNS}"),
            ("POST", "/v1/fleetcontrol"),
        ):
            assert status(stranger, method, path) == 403, path
        assert status(stranger, "POST", PUSH, bytes(5 * 2**20 + 4096)) == 200
        stranger.putrequest("POST", PUSH)  # refused before the body is read
        stranger.putheader("Content-Length", str(10 * MB))
        stranger.endheaders()
        assert stranger.getresponse().status == 413
        stranger.close()
        with suppress(ConnectionError, ssl.SSLError):  # Caddy closes the connection early
            assert status(stranger, "POST", PUSH, (bytes(MB) for _ in range(20))) == 413
    with caddy(server, free_ports(1)[0]) as stranger:  # while the SuperLink is down
        assert status(stranger, "POST", PUSH) == 502
        assert status(stranger, "POST", LIST_RUNS) == 403


def test_the_start_of_a_process_leaves_no_module_of_the_package_behind():
    python("-c", f"{TOLERATE}assert 'fl_app' not in sys.modules\nimport torchvision")
