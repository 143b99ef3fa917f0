"""Checks of configuration values and the errors of a run."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from numbers import Real


def require(condition: bool, key: str, value: object, bound: str, consequence: str) -> None:
    """Refuse a configuration value in one sentence: key, value, bound, consequence.

    Raises:
        ValueError: `condition` is false.
    """
    if not condition:
        is_text = isinstance(value, str) and value.isdigit()  # else "2 must be an integer"
        text = repr(value) if is_text else value
        raise ValueError(f"{key}={text} must be {bound}: {consequence}")


def is_number(value: object) -> bool:
    """Whether `value` is a finite number, of Python or NumPy, and no boolean."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


@contextmanager
def explaining(problem: str, remedy: str = "") -> Iterator[None]:
    """Turn an error of any type, from libraries or users' code, into one that says more.

    Args:
        problem: what messages begin with.
        remedy: what they end with, after the error.

    Raises:
        ValueError: anything went wrong.
    """
    try:
        yield
    except Exception as error:
        raise ValueError(f"{problem}: {error_text(error)}{remedy}") from error


def error_text(error: BaseException) -> str:
    """An error's message in one line, with its type unless it is a `ValueError`."""
    text = " ".join(str(error).split())
    if isinstance(error, UnicodeDecodeError):
        code = "UTF-16" if error.object[:2] in (b"\xff\xfe", b"\xfe\xff") else "WINDOWS-1252"
        text += f"; iconv -f {code} -t UTF-8 FILE > NEW"
    return text if type(error) is ValueError and text else f"{type(error).__name__}: {text}"


class RunError(RuntimeError):
    """A run cannot go on; its results so far are written."""


class Diverged(RunError):
    """The aggregation produced a model that is not finite; the last finite one is kept."""


class Stalled(RunError):
    """Nothing is under way and nothing may start, or clients do nothing but fail."""


class ClientError(RunError):
    """A client's code raised an error that is neither divergence nor a fault of its device."""


class ServerError(RunError):
    """The code of a strategy, a schedule or an evaluation raised an error: its `__cause__`."""


class Interrupted(RunError):
    """Ctrl-C: the results so far are written."""
