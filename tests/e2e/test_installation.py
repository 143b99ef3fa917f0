"""Contents of a wheel, and packages that a device installs."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from fake_grid import FakeGrid
from flwr.app import Message
from flwr.common.serde import message_to_proto
from helpers import initial_vector, make_config, python
from omegaconf import OmegaConf

from fl_app import client_app
from fl_app.client.build import build_task
from fl_app.core.extras import EXTRAS
from fl_app.core.types import Order
from fl_app.field.project import build_wheel
from fl_app.flower import codec, names

ROOT = Path(__file__).resolve().parents[2]
MAX_MEGABYTES = 1500  # megabytes of an installation, without CUDA
OF_TORCH = {"jinja2", "markupsafe"}  # torch requires them, too

# Carries out an order, and prints the norm of the upload and the installed packages.
NODE = """
import json, sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from flwr.app import Context, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message

import fl_app
from fl_app import client_app

order = message_from_proto(Message.FromString(Path(sys.argv[1]).read_bytes()))
node_config = {"partition-id": 1, "state-dir": str(Path(sys.argv[1]).parent)}
reply = client_app.app(order, Context(1, 5, node_config, RecordDict(), {}))
assert reply.has_content(), reply.error
arrays = [a.numpy() for record in reply.content.array_records.values() for a in record.values()]
print(json.dumps({
    "file": fl_app.__file__,
    "norm": float(np.sqrt(sum((a.astype(float) ** 2).sum() for a in arrays))),
    "there": [name for name in sys.argv[2:] if find_spec(name)],
}))
"""

# Prints where Python finds package and configuration, and a value of the configuration.
COMPOSE = """
import hydra
import fl_app
from fl_app.cli import CONF
with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
    config = hydra.compose("config", overrides=["algorithm=krum", "experiment=quickstart"])
print(fl_app.__file__, CONF, config.algorithm.strategy.inner.num_malicious_nodes)
"""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_wheel(tmp_path_factory.mktemp("installed"))


def test_a_wheel_holds_its_configuration_and_claims_no_name_but_its_own(wheel, tmp_path):
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    assert {path.name.partition("-")[0] for path in site.iterdir()} == {"fl_app"}
    for folder, pattern, below in (("conf", "*.yaml", "fl_app/conf"), ("fl_app", "*", "fl_app")):
        for source in (ROOT / folder).rglob(pattern):
            if source.is_file() and "__pycache__" not in source.parts:
                copy = site / below / source.relative_to(ROOT / folder)
                assert copy.read_bytes() == source.read_bytes()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    output = python("-c", COMPOSE, cwd=tmp_path, env=environment).stdout.split()
    assert output == [str(site / "fl_app/__init__.py"), str(site / "fl_app/conf"), "2"]


def order(path):
    """Write a training order of FedBuff on the digits, as a real node gets it."""
    FakeGrid(client_app.app, 0)  # gives this process the identity of a ServerApp
    settings = ("num_clients=20", "algorithm.client.local_steps=5")
    config = make_config("algorithm=fedbuff", "runtime=deployment", *settings)
    vector, layout = initial_vector(build_task(config), config.seed)
    packer = codec.OrderPacker(layout, {names.APP_CONFIG: OmegaConf.to_yaml(config, resolve=True)})
    content = packer.pack(Order(0, 5, 0, 0, vector, {}, 0.0))
    message = Message(content, dst_node_id=5, message_type="train")
    path.write_bytes(message_to_proto(message).SerializeToString())


def carry_out(interpreter, path):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [interpreter, "-c", NODE, path, *EXTRAS]
    if interpreter == sys.executable:
        environment["PYTHONPATH"] = str(ROOT)
    process = subprocess.run(
        command, cwd=path.parent, env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(process.stdout.splitlines()[-1])


def test_a_device_trains_with_the_requirements_of_a_wheel(wheel, tmp_path, capsys):
    """Packages that only servers, reports and simulations need are not installed."""
    venv = tmp_path / "venv"
    command = [sys.executable, ROOT / "fl_app/field/packages.py", "--venv", venv, "--torch", "cpu"]
    command += ["--constraints", ROOT / "constraints.txt", wheel]
    command.append("--no-compile-bytecode")  # slow, and `make setup` has done it
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if process.returncode and any(
        word in process.stderr for word in ("distribution found for uv", "error sending request")
    ):
        pytest.skip(f"NOT TESTED, for packages cannot be had here: {process.stderr[-500:]}")
    assert process.returncode == 0, process.stderr
    with capsys.disabled():
        print(f"\n{process.stdout}", end="")

    order(tmp_path / "order")
    small = carry_out(venv / "bin" / "python", tmp_path / "order")
    full = carry_out(sys.executable, tmp_path / "order")
    assert str(small["file"]).startswith(str(venv))
    assert small["norm"] == pytest.approx(full["norm"], rel=1e-4)
    assert set(small["there"]) <= OF_TORCH
    assert set(full["there"]) >= EXTRAS.keys()
    usage = subprocess.run(["du", "-sm", venv], capture_output=True, text=True, check=True).stdout
    print(f"{usage.split()[0]} MB")
    if "CUDA's libraries" not in process.stdout:
        assert int(usage.split()[0]) <= MAX_MEGABYTES
