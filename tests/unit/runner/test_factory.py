"""From configuration to objects: settings that are objects themselves, runs that are refused."""

import csv

import pytest
from configs import composed

from fl_app.client.build import build_trainer
from fl_app.runner.cell import run_cell
from fl_app.runner.components import Sizes, build_components, build_sizes
from fl_app.runner.validate import build_strategy, validate_config


def test_an_algorithm_may_refuse_the_length_of_a_run():
    settings = ["algorithm=fedhist", "algorithm.strategy.norm_decay=0.01"]
    validate_config(composed(*settings, "num_versions=99"))
    validate_config(composed(*settings, "num_versions=100", "algorithm.strategy.norm_floor=0.2"))
    with pytest.raises(ValueError, match=r"norm_decay=0.01 must be below 1 / num_versions=0.01"):
        validate_config(composed(*settings, "num_versions=100"))


@pytest.mark.parametrize(("settings", "upload"), [([], 8), (["upload_dtype=float16"], 4)])
def test_the_bytes_of_vectors_beside_the_model_are_known_before_the_run(settings, upload):
    """And decide how long transfers take, of which an hour is nearly all of an order."""
    link = ["devices/network=link", "devices.network.down=1", "devices.network.up=1"]
    more = [*link, *(f"algorithm.client.{entry}" for entry in settings)]

    def build(algorithm):
        config = composed(f"algorithm={algorithm}", "num_clients=10", *more)
        components = build_components(config)
        sizes = build_sizes(components.strategy, components.trainer)
        return sizes, components.devices.parts(3, 0, 0.0).seconds

    sizes, seconds = build("scaffold")
    d = sizes.model // 4
    assert sizes == Sizes(model=4 * d, order=8 * d, upload=upload * d)
    plain, shorter = build("fedbuff")
    assert plain == Sizes(model=4 * d, order=4 * d, upload=upload // 2 * d)
    assert seconds == pytest.approx(2 * shorter, rel=0.01)


def test_the_bytes_of_vectors_beside_the_model_are_counted_in_every_file(tmp_path):
    config = composed(
        *("algorithm=scaffold", "num_clients=4", "num_versions=3", "eval_every=1"),
        *("algorithm.schedule.buffer_size=2", "algorithm.client.upload_dtype=float16"),
        *("algorithm.client.local_steps=1", "runtime.workers=0"),
    )
    _, summary = run_cell(config, tmp_path, label="scaffold")
    d = build_sizes(build_strategy(config), build_trainer(config)).model // 4
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    assert summary["client_updates"] == 6
    assert summary["bytes_up"] == float(rows[-1]["bytes_up"]) == 6 * 2 * 2 * d
    assert summary["bytes_down"] == float(rows[-1]["bytes_down"]) == 6 * 2 * 4 * d
