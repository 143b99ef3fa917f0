"""One line of JSON for every log record, where ``LOG_FORMAT=json`` of the environment asks."""

import json
import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime

from fl_app.core.errors import require

VARIABLE, JSON, TEXT = "LOG_FORMAT", "json", "text"
LOGGER = "flwr"  # which Flower and this project use


class JsonFormatter(logging.Formatter):
    """Formats a record as a JSON object with `t`, `level`, `logger`, `pid` and `message`.

    `t` is the time in UTC, as in RFC 3339. An exception's traceback is `traceback`.
    """

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "t": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage().strip(),
        }
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told)


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether log records are to be JSON.

    Raises:
        ValueError: LOG_FORMAT has no meaning.
    """
    value = environment.get(VARIABLE) or TEXT
    require(value in (JSON, TEXT), VARIABLE, value, f"{JSON} or {TEXT}", "it says what logs are")
    return value == JSON


def install(environment: Mapping[str, str] = os.environ) -> None:
    """Let this process and those that it forks log as LOG_FORMAT says.

    Raises:
        ValueError: as `wanted`.
    """
    if not wanted(environment):
        return
    logger = logging.getLogger(LOGGER)
    # Flower's own handlers format in `format`, and use no formatter.
    for handler in list(logger.handlers):
        if isinstance(handler, logging.StreamHandler) and not isinstance(
            handler, logging.FileHandler
        ):
            logger.removeHandler(handler)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    handler.addFilter(lambda record: bool(record.getMessage().strip()))  # Flower logs empty lines
    logger.addHandler(handler)
