"""What all tests share: no network, one thread, the same generated examples."""

import gc
import logging
import os
import signal
import sys

import pytest
from absl import logging as absl_logging
from hypothesis import settings

# Before anything imports torch or Flower; subprocesses inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

# A shell ignores Ctrl-C for what it starts in the background, and subprocesses would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# dp-accounting imports absl. When Hydra configures logging anew, absl's handler closes the stream
# that was stderr at its import, which may be pytest's, unless it is the process's own.
absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_finish():
    """Spare the many explicit collections of garbage, Flower's and ours, all that was imported."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown():
    """Nodes in threads may outlive their run. None works beside the next test."""
    if "fake_grid" in sys.modules:
        sys.modules["fake_grid"].finish()


@pytest.fixture
def logged(caplog):
    """What is logged, also by Flower, whose log does not propagate."""
    logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, "flwr"):
            yield caplog
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)


@pytest.fixture(autouse=True)
def _no_data(request):
    """Tests of tasks see no data of this machine, unless they ask for the real ones."""
    if request.path.parent.name == "tasks":
        monkeypatch = request.getfixturevalue("monkeypatch")
        monkeypatch.delenv("FL_APP_DATA", raising=False)
        monkeypatch.setenv("FL_APP_CACHE", str(request.getfixturevalue("tmp_path") / "cache"))
