"""Log records as lines of JSON."""

import json
import logging
from collections.abc import Iterator

import pytest

from fl_app.core.json_log import LOGGER, install, wanted


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    """Flower's logger, whose handlers come back."""
    found = logging.getLogger(LOGGER)
    before, level = list(found.handlers), found.level
    found.setLevel(logging.INFO)
    yield found
    found.handlers[:] = before
    found.setLevel(level)


def test_every_record_is_one_line(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    install({"LOG_FORMAT": "json"})
    logger.info("run %d\nbegins", 7)
    logger.info("")  # as Flower does between messages
    try:
        raise ValueError("a 'quoted' reason")
    except ValueError:
        logger.exception("it failed")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert first["message"] == "run 7\nbegins"
    assert (first["level"], first["logger"]) == ("info", LOGGER)
    assert first["t"].endswith("+00:00")
    assert first["pid"] > 0
    assert second["traceback"].endswith("ValueError: a 'quoted' reason")


def test_a_format_without_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match="LOG_FORMAT=xml must be json or text: it says what"):
        wanted({"LOG_FORMAT": "xml"})
