"""Flower's front door on the server."""

import json
import logging
import tomllib
from pathlib import Path

import pytest
from fake_grid import FakeGrid
from flwr.app import Context, RecordDict
from omegaconf import OmegaConf

from fl_app import client_app, server_app

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DEFAULTS = PROJECT["tool"]["flwr"]["app"]["config"]


def context(**run_config):
    """As Flower makes it; it refuses keys that are not in pyproject.toml."""
    given = {key.replace("_", "-"): value for key, value in run_config.items()}
    assert given.keys() <= DEFAULTS.keys()
    return Context(1, 1, {}, RecordDict(), {**DEFAULTS, **given})


def test_a_plain_run_is_short_and_keys_or_overrides_end_that():
    def words(**given):
        return server_app.overrides_of(context(**given).run_config)

    short = ["num_versions=null", "max_updates=250"]
    assert words() == [*short, "runtime=flower"]
    assert words(algorithm="fedasync", seed=0) == [
        *("algorithm=fedasync", "seed=0", *short, "runtime=flower")
    ]
    assert words(num_versions=9) == ["num_versions=9", "runtime=flower"]
    assert words(overrides="num_versions=9", num_versions=8) == [
        *("num_versions=8", "num_versions=9", "runtime=flower")
    ]
    assert words(overrides="runtime=deployment 'metrics=[recall, clients]'") == [
        *("runtime=deployment", "metrics=[recall, clients]")
    ]


QUICK = "num_versions=2 algorithm.client.local_steps=1"


def test_keys_of_flower_mean_those_of_the_configuration(tmp_path, caplog):
    keys = {"algorithm": "fedasync", "task": "synthetic", "num_clients": 12, "seed": 3}
    run = context(**keys, num_versions=4, output=str(tmp_path), overrides=QUICK)
    logging.getLogger("flwr").addHandler(caplog.handler)  # which does not propagate
    try:
        with caplog.at_level(logging.INFO, "flwr"):
            server_app.main(FakeGrid(client_app.app, 2), run)
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)
    config = OmegaConf.load(tmp_path / "config.yaml")
    assert (config.algorithm.name, config.num_clients, config.seed) == ("fedasync", 12, 3)
    assert config.task._target_.endswith(".Synthetic")
    assert json.loads((tmp_path / "summary.json").read_text())["num_versions"] == 2
    assert str(tmp_path) in caplog.messages[-1]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"overrides": "num_clientz=3"}, r"unknown key 'num_clientz'.*num_clients"),
        ({"algorithm": "fedbuf"}, r"algorithm=fedbuf does not exist; did you mean fedbuff"),
        ({"num_clients": -3}, r"num_clients=-3 must be .* 1"),
        ({"seed": "three"}, r"seed=.*three"),
    ],
)
def test_bad_values_are_refused_as_by_the_command_line(tmp_path, keys, told):
    with pytest.raises(ValueError, match=told):
        server_app.main(FakeGrid(client_app.app, 1), context(**keys, output=str(tmp_path)))
