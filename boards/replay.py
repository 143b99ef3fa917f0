"""Carries out recorded orders on this machine: ``python replay.py ORDERS UPLOADS [OVERRIDE...]``.

It imports of this project what a device has, so that it can be copied to a device and run there.
Overrides are those of the run's configuration, such as ``runtime.device=cpu``. The last line of
the output is a JSON object: the machine, torch's version and the seconds.
"""

import json
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import DictConfig, OmegaConf
from safetensors.numpy import load_file, save_file

from fl_app.client.build import build_trainer, prepare_process
from fl_app.core.snapshot import Encoder, decode
from fl_app.core.types import Order, Upload

STRUCTURE = "structure"


def save(path: Path, value: Any) -> None:
    """Write what `fl_app.core.snapshot` can encode, such as orders and uploads."""
    encoder = Encoder()
    structure = json.dumps(encoder.encode(value)).encode()
    arrays = {str(place): np.asarray(a, order="C") for place, a in enumerate(encoder.arrays)}
    save_file({STRUCTURE: np.frombuffer(structure, np.uint8), **arrays}, path)


def load(path: Path) -> Any:
    """Read what `save` has written."""
    arrays = load_file(path)
    structure = json.loads(arrays.pop(STRUCTURE).tobytes())
    return decode(structure, [arrays[str(place)] for place in range(len(arrays))])


def replay(config: str, orders: Sequence[Order], overrides: Sequence[str] = ()) -> list[Upload]:
    """Carry out orders one after the other, as the node of a federation does.

    Args:
        config: of the run, as the server sends it (YAML).
        orders: with the client states that they began with.
        overrides: of the configuration, as ``key=value``.
    """
    settings = OmegaConf.merge(OmegaConf.create(config), OmegaConf.from_dotlist([*overrides]))
    assert isinstance(settings, DictConfig)
    prepare_process()
    trainer = build_trainer(settings)
    return [trainer.sender.train(order) for order in orders]


def main(orders: str, uploads: str, *overrides: str) -> None:
    """Replay the runs of one file, and write the uploads by the runs' names into another."""
    runs: Mapping[str, Mapping[str, Any]] = load(Path(orders))
    done, seconds = {}, {}
    for name, run in runs.items():
        print(f"{name}: {len(run['orders'])} orders", flush=True)
        began = time.monotonic()
        done[name] = replay(run["config"], run["orders"], overrides)
        seconds[name] = round(time.monotonic() - began, 1)
    save(Path(uploads), done)
    print(
        json.dumps({"machine": platform.machine(), "torch": version("torch"), "seconds": seconds})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
