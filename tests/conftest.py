"""Settings of all tests: no network, one thread, the same generated examples in every run."""

import gc
import logging
import os
import signal
import sys

import pytest
from absl import logging as absl_logging
from hypothesis import settings

# Set before any import of torch or Flower. Subprocesses inherit these variables.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"

# A shell makes its background processes ignore Ctrl-C, and subprocesses would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# dp-accounting imports absl. When Hydra configures logging anew, absl's handler closes the stream
# that was stderr when absl was imported. That may be pytest's stream, so give it the process's own.
absl_logging.get_absl_handler().python_handler.stream = sys.__stderr__

settings.register_profile("repeatable", derandomize=True, database=None, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_finish():
    """Exclude imported objects from the many garbage collections of Flower and this project."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown():
    """Wait for nodes in threads, which may outlive their run, before the next test starts."""
    if "fake_grid" in sys.modules:
        sys.modules["fake_grid"].finish()


@pytest.fixture
def logs(caplog):
    """`caplog` with the log of Flower, which does not propagate."""
    logging.getLogger("flwr").addHandler(caplog.handler)
    try:
        with caplog.at_level(logging.INFO, "flwr"):
            yield caplog
    finally:
        logging.getLogger("flwr").removeHandler(caplog.handler)


@pytest.fixture(autouse=True)
def _no_data(request):
    """Hide the real data sets of this machine from the tests of tasks."""
    if request.path.parent.name == "tasks":
        monkeypatch = request.getfixturevalue("monkeypatch")
        monkeypatch.delenv("FL_APP_DATA", raising=False)
        monkeypatch.setenv("FL_APP_CACHE", str(request.getfixturevalue("tmp_path") / "cache"))
