"""The YAML files of devices and their parts fit what they name, and build what an engine needs."""

from pathlib import Path

import pytest
from configs import composed

from fl_app.client.build import instantiate
from fl_app.devices import Fleet
from fl_app.runner.components import build_components
from fl_app.runner.validate import PARTS, validate_config

CONF = Path(__file__).parents[3] / "conf"
PROFILES = sorted(path.stem for path in (CONF / "devices").glob("*.yaml"))
OPTIONS = sorted(path for part in PARTS for path in (CONF / "devices" / part).glob("*.yaml"))
FACTS = {
    "num_clients",
    "seed",
    "num_bytes",
    "num_examples",
    "mean_seconds",
    "download_share",
    "upload_share",
}  # from the factory
FOUR = ["devices.boards={rpi5:3,rpi4:1}"]


def configuration(*overrides):
    return composed("num_clients=4", *overrides)


@pytest.mark.parametrize("name", [name for name in PROFILES if name != "overlap"])
def test_every_profile_gives_times(name):
    config = configuration(f"devices={name}", *(FOUR if name == "boards" else []))
    fleet = build_components(config).devices
    assert isinstance(fleet, Fleet)
    assert all(0.0 < fleet.parts(client, 0, 0.0).seconds < 1e4 for client in range(4))


@pytest.mark.parametrize("path", OPTIONS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_part_can_be_chosen_for_any_profile(path):
    part, name = path.parent.name, path.stem
    of_one = ["devices=boards", "devices.boards={rpi5:1}"] if name == "boards" else []
    node = configuration(*of_one, f"devices/{part}={name}").devices[part]
    facts = dict.fromkeys(FACTS, 1) | {"mean_seconds": [1.0], "num_bytes": 4 * 199_210}
    assert instantiate(node, facts)


def test_random_k_has_times_of_its_own():
    random_k = "algorithm=fedavg_k algorithm/schedule=random_k algorithm.schedule.buffer_size=2"
    config = configuration(*random_k.split())
    validate_config(config)
    assert build_components(config).devices is None
    with pytest.raises(ValueError, match=r"leave it out with '~devices/availability'"):
        validate_config(configuration(*random_k.split(), "devices/availability=churn"))
