"""What all tests share: no network, one thread, the same generated examples, a budget of time."""

import gc
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

# TensorBoard imports absl. When Hydra configures logging anew, absl's handler closes the stream
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


# -- a budget of time -----------------------------------------------------------------------------

TAKEN = pytest.StashKey[float]()
CORES = 2


def pytest_addoption(parser):
    parser.addoption(
        "--budget",
        type=float,
        metavar="SECONDS",
        help=f"fail if the tests take more seconds on {CORES} quiet cores, which is counted in "
        "processor time: other load on the machine does not fail them",
    )


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_sessionfinish(session):
    yield  # ends the processes of pytest-xdist, whose time counts from then on
    if session.config.option.budget is None or hasattr(session.config, "workerinput"):
        return
    times = os.times()
    used = times.user + times.system + times.children_user + times.children_system
    session.config.stash[TAKEN] = taken = used / CORES
    if taken > session.config.option.budget and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)  # after the slowest tests
def pytest_terminal_summary(terminalreporter, config):
    taken, budget = config.stash.get(TAKEN, None), config.option.budget
    if taken is None:
        return
    told = f"{taken:.0f} s on {CORES} quiet cores, of {budget:.0f} s (TEST_BUDGET in the Makefile)"
    if taken <= budget:
        terminalreporter.write_line(f"Within the budget: {told}")
    else:
        terminalreporter.section("over budget", red=True)
        terminalreporter.write_line(
            f"The tests take {told}: make the slowest ones above faster, or mark them slow",
            red=True,
        )
