"""Boards and a server with the seconds of a device file; and devices by configuration."""

import json
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from configs import composed

from fl_app.devices.compute import Boards
from fl_app.devices.fleet import Fleet, MeasuredServer
from fl_app.devices.network import BoardLinks
from fl_app.devices.table import read_table
from fl_app.runner.components import build_components
from fl_app.runner.validate import PARTS, validate_config

KINDS = {
    "fast": {
        "seconds": 10.0,
        "spread": 0.2,
        "first": 30.0,
        "examples": 100,
        "network": {"down": 1000.0, "up": 500.0, "latency": 0.5},
    },
    "slow": {"seconds": [40.0, 50.0]},
}


def written(tmp_path, **changes):
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"kinds": KINDS, "boards": {"fast": 1, "slow": 1}} | changes))
    return str(path)


def boards(table, counts, sizes):
    return Boards(num_clients=len(sizes), num_examples=sizes, table=table, boards=counts, seed=3)


def test_clients_are_boards_in_the_order_of_the_kinds(tmp_path):
    made = boards(written(tmp_path), {"slow": 3, "fast": 2}, [100, 1, 7, 100, 50])
    assert made.kinds == ["slow", "slow", "slow", "fast", "fast"]
    assert made.mean_seconds == [40.0, 50.0, 40.0, 10.0, 5.0]
    assert made.seconds(0, 0, 0.0) == made.seconds(0, 5, 9.0) == 40.0


def test_orders_have_the_spread_and_first_ones_the_extra(tmp_path):
    made = boards(written(tmp_path), None, [100, 100])
    seconds = [made.seconds(0, sequence, 0.0) for sequence in range(1, 3001)]
    assert min(seconds) > 0
    assert fmean(seconds) == pytest.approx(10.0, rel=0.01)
    assert pstdev(seconds) == pytest.approx(2.0, rel=0.05)
    assert 30 + 5 < made.seconds(0, 0, 0.0) < 30 + 20
    assert made.seconds(0, 7, 1.0) == boards(written(tmp_path), None, [100, 9]).seconds(0, 7, 2.0)


def test_a_kind_has_its_own_link(tmp_path):
    links = BoardLinks(
        num_bytes=2000, num_clients=2, table=written(tmp_path), download_share=2.0, upload_share=0.5
    )
    assert (links.download(0, 1), links.upload(0, 1)) == (4.5, 2.5)
    assert (links.download(1, 1), links.upload(1, 1)) == (0.0, 0.0)


def test_a_servers_seconds_are_the_files_unless_they_are_given(tmp_path):
    table = written(tmp_path, server={"receipt": 2.0, "evaluation": 7.0, "orders": 3})
    server = MeasuredServer(table=table, receipt=0.0, dispatch=1.0)
    assert server.work("evaluation", 0.0) == 7.0
    assert server.receive(9.0) == 9.0
    assert server.work("dispatch", 9.0) == 10.0
    assert MeasuredServer().receive(4.0) == 4.0


@pytest.mark.parametrize(
    ("counts", "clients", "message"),
    [
        ({"fast": 2}, 3, r"devices\.boards=.*must be num_clients=3 boards"),
        ({"rpi5": 3}, 3, r"devices\.boards=rpi5 must be of fast, slow"),
        ({"fast": 2.5}, 3, r"devices\.boards=.*2\.5.* must be kinds with numbers"),
        (3, 3, r"devices\.boards=3 must be kinds with numbers such as"),
    ],
)
def test_bad_boards_are_refused(tmp_path, counts, clients, message):
    with pytest.raises(ValueError, match=message):
        boards(written(tmp_path), counts, [1] * clients)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{}", "KeyError: 'kinds'"),
        ('{"kinds": {"a": {}}}', "kinds.a: seconds=() must be a number > 0"),
        (
            '{"kinds": {"a": {"seconds": 0}}}',
            "kinds.a: seconds=(0,) must be a number > 0, or one for each board",
        ),
        (
            '{"kinds": {"a": {"seconds": 1, "network": {"down": 5}}}}',
            "kinds.a: network.up=0.0 must be a finite number above 0",
        ),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, text, told):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^devices\.table=.*bad\.json is no device file") as error:
        read_table(str(path))
    assert told in str(error.value)


# -- configurations of devices --------------------------------------------------------------------

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


def test_random_k_has_times_of_its_own():
    random_k = "algorithm=fedavg_k algorithm/schedule=random_k algorithm.schedule.buffer_size=2"
    config = configuration(*random_k.split())
    validate_config(config)
    assert build_components(config).devices is None
    with pytest.raises(ValueError, match=r"leave it out with '~devices/availability'"):
        validate_config(configuration(*random_k.split(), "devices/availability=churn"))
