"""Carries out a search: trials of every cell, then their best settings on fresh seeds."""

import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import hydra

from fl_app.cli import CONF, compose
from fl_app.core.errors import Interrupted, require
from fl_app.core.files import (
    atomic_write,
    disk_errors_as_run_errors,
    open_log,
    require_writable,
)
from fl_app.record.progress import Board
from fl_app.runner import earlier, signals
from fl_app.runner.jobs import Job, carry_out
from fl_app.search import results
from fl_app.search.cell import SearchedCell, refuse_failure
from fl_app.search.cells import cells_to_search
from fl_app.search.judging import judge, remove_outdated
from fl_app.search.settings import Settings
from fl_app.search.sources import sources
from fl_app.search.study import open_journal

JOURNAL, SETTINGS, LOCK = "study.jsonl", "search.json", "search.lock"
# What may differ when a search goes on.
MAY_CHANGE = ("parallel", "folder", "trials", "test_seeds")
AGAIN = "the same command with resume=auto goes on"
PATIENCE = 30.0  # seconds from Ctrl-C until what is between two runs is given up


def search(settings: Settings, words: Sequence[str], folder: Path, resume: bool) -> None:
    """Search, and write ``trials.csv``, ``best.yaml`` and ``search.html`` into a folder.

    Args:
        settings: of the search.
        words: overrides that describe the experiment.
        folder: for all files.
        resume: whether to go on with the search that the folder holds, if it holds one.

    Raises:
        ValueError: a key is refused before anything runs; or a trial's values are, or
            `num_versions` ended a run early, or runs have no score, after other runs.
        RunError: a run on fresh seeds failed, or a trial did for another reason than its setting,
            such as a killed process; the same search goes on with ``resume=auto``.
        Interrupted: Ctrl-C; the same search goes on with ``resume=auto``.
    """
    config = compose(words)
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        cells = cells_to_search(settings, config, words, folder)
        with ExitStack() as stack:
            stack.enter_context(disk_errors_as_run_errors(folder, AGAIN))
            with require_writable(folder):
                folder.mkdir(parents=True, exist_ok=True)
                stack.enter_context(open_log(folder / LOCK, None))
                _enter(settings, words, cells, folder, resume)
            storage = open_journal(folder / JOURNAL)
            for cell in cells:
                cell.open(storage)
            most = max(cell.ended for cell in cells)
            require(
                most <= settings.trials,
                "search.trials",
                settings.trials,
                f"at least {most}, which a cell has had",
                "cells would be compared after different numbers of trials",
            )
            if note := _too_few(cells, settings):
                print(note)
            try:
                interrupted = _try_all(cells, settings)
            finally:  # also of a search that a refused value ends for good
                found = [cell.found() for cell in cells]
                results.write(found, settings, folder)
            remove_outdated(folder / "test", found)
            if interrupted:
                raise Interrupted(f"interrupted; what was tried so far lies in {folder}")
            results.tell(found, folder)
            if settings.test_seeds:
                judge(found, settings, words, folder)


def digests(cell: SearchedCell) -> dict[str, str]:
    """Of what is tried in a cell, by parts.

    The configuration may come from a file, which no word tells.
    """
    config = earlier.settings(cell.config), earlier.limits(cell.config)
    parts = {"space": cell.space, "budget": cell.budget, "configuration": config}
    parts |= {f"code ({module})": code for module, code in sources(cell.config).items()}
    return {part: hashlib.sha256(repr(told).encode()).hexdigest() for part, told in parts.items()}


def _enter(
    settings: Settings,
    words: Sequence[str],
    cells: Sequence[SearchedCell],
    folder: Path,
    resume: bool,
) -> None:
    """Write what the search was given; refuse to go on with a different search."""
    own = {key: value for key, value in asdict(settings).items() if key not in MAY_CHANGE}
    are = {cell.name: digests(cell) for cell in cells}
    now = {"search": own, "words": list(words)}
    path = folder / SETTINGS
    if path.exists():
        require(
            resume,
            "search.folder",
            folder,
            "a new folder, or one to go on with by resume=auto",
            "it holds a search",
        )
        before = json.loads(path.read_text())
        were = before.pop("cells", are)
        if before != now:
            differ = [f"search.{k}" for k in own if before["search"].get(k) != own[k]]
            differ += sorted({*before["words"]} ^ {*words}) or ["their order"] * (not differ)
            raise ValueError(
                f"resume=auto: {folder} holds a search with other words "
                f"({', '.join(differ)}): give another folder"
            )
        changed = [name for name in are.keys() | were.keys() if were.get(name) != are.get(name)]
        if changed:
            raise ValueError(
                f"resume=auto: {_difference(were, are, min(changed))} has changed since {folder} "
                "was begun, so its trials cannot be compared: give another folder"
            )
        return
    require(
        not any(folder.glob("events.jsonl")) and not any(folder.glob("*/events.jsonl")),
        "search.folder",
        folder,
        "a new folder",
        "it holds runs, and the search's files would lie among theirs",
    )
    with atomic_write(path) as file:
        file.write(json.dumps({**now, "cells": are}, indent=2).encode())


def _difference(were: Mapping[str, Any], are: Mapping[str, Any], name: str) -> str:
    """What differs of a cell, in words."""
    before, now = were.get(name), are.get(name)
    if isinstance(before, dict) and isinstance(now, dict):
        parts = [part for part in before | now if before.get(part) != now.get(part)]
        return f"{', '.join(parts)} of {name}"
    return f"cell {name}"


def _try_all(cells: Sequence[SearchedCell], settings: Settings) -> bool:
    """Carry out all trials; return whether Ctrl-C ended them."""
    jobs: deque[Job] = deque()
    by_name = {}
    board, interrupted, compared = Board(), False, False

    def stop() -> None:  # between two runs; a run has a handler of its own
        nonlocal interrupted
        interrupted = signals.noted = True  # a run that is being prepared ends at its beginning
        jobs.clear()

    try:
        with signals.interruptible(stop, PATIENCE):
            for cell in cells:
                for job in cell.todo():
                    by_name[job.name] = cell
                    jobs.append(job)
                if interrupted:
                    return True
            for job, ended in carry_out(jobs, settings.parallel, show=False):
                if ended.interrupted:
                    interrupted = True
                    refuse_failure(job, ended)
                    continue  # the others save a checkpoint
                cell = by_name.pop(job.name)
                for follower in cell.take(job, ended):
                    by_name[follower.name] = cell
                    jobs.append(follower)
                if interrupted:
                    jobs.clear()
                board.show("search", _share(cells), _status(cells))
                if not compared and all(cell.study.best for cell in cells):
                    compared = True
                    if note := results.unequal([cell.found() for cell in cells], settings):
                        board.end("search", note)
    finally:
        signals.noted = False
        board.close()
    return interrupted


def _too_few(cells: Sequence[SearchedCell], settings: Settings) -> str:
    """A note where not all values of the grid are tried; "" where they are."""
    most = max(cell.grid_size for cell in cells)
    if settings.trials >= most:
        return ""
    return (
        f"note: search.trials={settings.trials} tries the first of the grid's {most} values only: "
        f"give at least {most} trials, or search.grid={settings.trials}"
    )


def _share(cells: Sequence[SearchedCell]) -> float:
    return sum(cell.ended for cell in cells) / sum(cell.settings.trials for cell in cells)


def _status(cells: Sequence[SearchedCell]) -> str:
    ended, total = sum(c.ended for c in cells), sum(c.settings.trials for c in cells)
    return f"{ended}/{total} trials of {len(cells)} cells"
