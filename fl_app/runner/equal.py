"""Equal concurrency, buffer and local work for all algorithms: ``compare=equal``."""

from collections.abc import Collection, Mapping

from omegaconf import DictConfig, OmegaConf

from fl_app.core.errors import require_count

ROUNDS = "synchronous"
ALL = "all clients are at work"
ONE = "every arrival makes a version"
# Of schedules, by the last part of their target: why they cannot do as the others.
WHY: dict[str, dict[str, str]] = {
    "ClusteredQuorum": {
        "concurrency": ALL,
        "buffer_size": "a share of every cluster is waited for",
    },
    "RoundBlocking": {"concurrency": ALL},
    "RandomK": {"concurrency": ALL},
    "fully_async": {"buffer_size": ONE},
    "Periodic": {
        "concurrency": "clients start one period after the other, so fewer may be at work",
        "buffer_size": ONE,
    },
    ROUNDS: {"buffer_size": "a round aggregates all clients that are at work"},
}
TOGETHER = "all clients take part in every exchange"
TRANSFER = "clients train as long as the transfer takes"
GRADIENT = "algorithm.client.upload=gradient is of one mini-batch"
SLOTS = "its clients pause between local epochs"


def equalise(cell: DictConfig, given: Collection[str] = (), *, own_schedule: bool = False) -> None:
    """Give a run the values of ``compare=equal``; note in ``compare.kept`` what it keeps, and why.

    Args:
        cell: of the run; changed.
        given: keys that the user gave; they stay.
        own_schedule: whether an object takes the place of the configured schedule.

    Raises:
        ValueError: a value is no number of clients, updates, epochs or steps.
    """
    compare = cell.compare
    if compare.name != "equal":
        return
    for key in ("concurrency", "buffer_size", "local_epochs", "local_steps"):
        if compare[key] is not None or key in ("buffer_size", "local_epochs"):
            require_count(f"compare.{key}", compare[key], "all algorithms would have it")
    client, kind = cell.algorithm.client, cell.algorithm.schedule._target_.rpartition(".")[2]
    overlaps = "max_local_epochs" in cell.algorithm.strategy
    why = dict(WHY.get(kind, {}))
    places = {key: key for key in ("concurrency", "buffer_size")}
    work = {key: key for key in ("local_epochs", "local_steps")}
    if own_schedule:
        why, places = dict.fromkeys(places, "the schedule is an object"), {}
    elif overlaps:
        why, places = dict.fromkeys(places, TOGETHER), {}
    elif kind == ROUNDS:
        places = {"buffer_size": "concurrency"}
    if compare.concurrency == cell.num_clients and why.get("concurrency") in (ALL, TOGETHER):
        del why["concurrency"]  # it is equal
    if overlaps:
        why["local work"], work = TRANSFER, {}
    elif client.upload == "gradient":
        why["local work"] = GRADIENT
    elif "slot" in client and compare.local_steps is not None:
        why["local work"], work = SLOTS, {"local_epochs": "local_epochs"}
    for group, keys in (("schedule", places), ("client", work)):
        for key, source in keys.items():
            full = f"algorithm.{group}.{key}"
            if full not in given and key in cell.algorithm[group]:
                OmegaConf.update(cell, full, f"${{compare.{source}}}")
    OmegaConf.update(cell, "compare.kept", why, force_add=True)  # no key of the user's


def told_of_kept(cells: Mapping[str, DictConfig]) -> list[str]:
    """Lines on what cells keep, those of equal reasons together; "" = a run without experiment."""
    names: dict[tuple[str, str], list[str]] = {}
    for name, cell in cells.items():
        for key, reason in cell.compare.get("kept", {}).items():
            names.setdefault((str(key), reason), []).append(name or cell.algorithm.name)
    return [
        f"compare=equal: own {key} of {', '.join(those)}: {reason}"
        for (key, reason), those in names.items()
    ]
