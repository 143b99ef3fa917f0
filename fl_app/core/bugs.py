"""Programming errors in a user's code: what they are, where they are, and misspelt methods."""

import logging
import sysconfig
from dataclasses import InitVar
from difflib import get_close_matches
from pathlib import Path
from traceback import StackSummary, TracebackException
from types import CodeType, FunctionType

from fl_app.core.errors import Diverged

HEADER = "Traceback (most recent call last):\n"
# Training that diverged, or numbers that left their range on the way.
NO_BUGS = (FloatingPointError, OverflowError, Diverged)
PACKAGE = f"{Path(__file__).parents[1]}/"
STANDARD_LIBRARY = f"{sysconfig.get_path('stdlib')}/"
ATTRIBUTES = ("state", "report", "shares", "model", "extra", "client_id")  # set in each instance
MIN_SIMILARITY = 0.75  # of two names, <= 1, from which one may be a misspelling of the other

log = logging.getLogger(__name__)


def traceback_of(error: Exception, *, chain: bool = True) -> str:
    """The traceback of a programming error: of the user's own frames alone, if there are any.

    Args:
        error: raised by a client's code.
        chain: whether the errors that it was raised from are included.

    Returns:
        Lines as Python prints them; "" if the error is no bug: training diverged.
    """
    if isinstance(error, NO_BUGS) or error.__traceback__ is None:
        return ""
    report = TracebackException.from_exception(error)
    link: TracebackException | None = report
    while link is not None:
        user_frames = [frame for frame in link.stack if is_users(frame.filename)]
        link.stack = StackSummary.from_list(user_frames or link.stack)
        link = link.__cause__ or link.__context__
    return "".join(report.format(chain=chain)).rstrip()


def place_of(traceback: str) -> tuple[str, ...]:
    """The lines of the code in a traceback, without the message: equal for one and the same bug."""
    return tuple(line for line in traceback.splitlines() if line.startswith('  File "'))


def check_names(cls: type) -> None:
    """Refuse fields with the name of something else; warn of methods with nearly such a name.

    Raises:
        TypeError: a field hides a method or property of a base, or an attribute that is no field.
    """
    annotations = vars(cls).get("__annotations__", {})
    for name in (name for name, kind in annotations.items() if not isinstance(kind, InitVar)):
        for base in cls.__mro__[1:]:
            if name in ATTRIBUTES or isinstance(vars(base).get(name), FunctionType | property):
                text = f"{cls.__name__}.{name} hides {name} of {base.__name__}"
                raise TypeError(f"{text}, which something else uses: give it another name")
    own, *inherited = (_methods(each) for each in cls.__mro__)
    called = {name for method in own.values() for name in _names_in(method.__code__)}
    inherited_names = {name for methods in inherited for name in methods if name[0] != "_"}
    for name in {name for name in own if name[0] != "_"} - called - inherited_names:
        for other in get_close_matches(name, inherited_names, 1, MIN_SIMILARITY):
            log.warning("%s.%s is called by nothing: did you mean %s?", cls.__name__, name, other)


def _names_in(code: CodeType) -> set[str]:
    """What code calls or reads by name, also within its comprehensions and functions."""
    inner = [_names_in(each) for each in code.co_consts if isinstance(each, CodeType)]
    return set(code.co_names).union(*inner)


def _methods(cls: type) -> dict[str, FunctionType]:
    return {name: each for name, each in vars(cls).items() if isinstance(each, FunctionType)}


def is_users(path: str) -> bool:
    """Whether a file is the user's own: neither installed nor of this package or Python's."""
    installed = {"site-packages", "dist-packages"} & {*Path(path).parts}
    return not installed and not path.startswith((PACKAGE, STANDARD_LIBRARY, "<frozen"))
