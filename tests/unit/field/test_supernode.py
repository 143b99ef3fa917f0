"""A SuperNode that has given up, in a process of its own."""

import logging
import subprocess
import sys

import pytest

from fl_app.node.warm import tells

THREAD = "threading.Thread(target=threading.Event().wait).start()"  # that nobody would end


@pytest.mark.parametrize(("ending", "said"), [
    ("pass", "The SuperNode has given up\n"),
    ("raise OSError('no such key')", "OSError: no such key\nThe SuperNode has given up\n"),
])  # fmt: skip
def test_its_process_ends_though_a_thread_goes_on(ending: str, said: str) -> None:
    script = (
        "import threading\n"
        "from fl_app.node.warm import main\n"
        "def node():\n"
        f"    {THREAD}\n"
        f"    {ending}\n"
        "main(node)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30.0
    )
    assert result.returncode == 1
    assert result.stderr.endswith(said)


def test_flowers_lines_about_every_message_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("flwr")
    caplog.set_level("INFO", "flwr")
    log.addFilter(tells)
    try:
        for text in ("", "[RUN %s]", "Sending: train message (ID: %s)", "client %s: train order"):
            log.info(text, *["7"] * text.count("%s"))
        log.error("Sending: %s", "it failed")
    finally:
        log.removeFilter(tells)
    assert caplog.messages == ["client 7: train order", "Sending: it failed"]
