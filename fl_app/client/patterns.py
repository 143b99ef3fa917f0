"""Patterns of the names of a model's parameters: what is frozen, and what is private."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from fl_app.core.layout import names_of


def matching(key: str, patterns: Sequence[str], names: Mapping[str, object]) -> set[str]:
    """The names that a pattern matches.

    Raises:
        ValueError: a pattern matches none; it names `key`.
    """
    found: set[str] = set()
    for pattern in patterns:
        these = {name for name in names if fnmatchcase(name, pattern)}
        if not these:
            raise ValueError(
                f"{key}={pattern!r} matches no name in the model, whose names are "
                f"{names_of(names)}: the pattern would have no effect"
            )
        found |= these
    return found


def check_parts(
    params: Collection[str],
    frozen: Collection[str],
    own: Collection[str],
    private: Sequence[str],
) -> None:
    """Refuse a model of which nothing would be shared, or a frozen part would be private.

    Args:
        params: names of the parameters.
        frozen: of those that are not trained.
        own: of what `private` matches.
        private: the patterns, for messages.

    Raises:
        ValueError: saying which.
    """
    if both := [name for name in frozen if name in own]:
        raise ValueError(
            f"algorithm.client.private={list(private)} matches frozen parameters "
            f"({names_of(both)}): what is not trained is equal on all clients; match trainable "
            "parameters only"
        )
    if params and len(frozen) == len(params):
        raise ValueError(
            "all parameters of the model are frozen (requires_grad=False), so nothing would be "
            "trained: name those to train in task.trainable=[...]"
        )
    if all(name in own or name in frozen for name in params):
        raise ValueError(
            f"algorithm.client.private={list(private)} matches all trainable parameters, so "
            "clients would share nothing: leave some of them out"
            if own
            else "the model has no parameters: nothing would be trained"
        )


def require_same(expected: Mapping[str, int], found: Mapping[str, int]) -> None:
    """Refuse a fixed part of other names or sizes than the model's.

    Args:
        expected: bytes by name.
        found: likewise.

    Raises:
        ValueError: naming what differs.
    """
    if found != expected:
        differing: Iterable[str] = [
            name for name in {**expected, **found} if found.get(name) != expected.get(name)
        ]
        raise ValueError(
            f"frozen or private parameters do not fit the model: {names_of(differing)}: server "
            "and client must build the same model"
        )
