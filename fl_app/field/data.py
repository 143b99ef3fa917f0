"""Examines the data that a device has of its own."""

import getpass
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fl_app.field.findings import Finding, Verdict, good, unknown, wrong

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from fl_app.tasks.task import Task

HIDDEN = (Path("/tmp"), Path("/var/tmp"))  # by PrivateTmp of fl-supernode.service
MOUNT = "in a container, `docker compose --env-file node.env up -d` mounts it"


def of_data(path: str, run: "DictConfig | None") -> Iterator[Finding]:
    """Check a device's own data: that they can be read, and what a run finds in them.

    Args:
        path: of the data.
        run: configuration of the run that is to read them; None if it is unknown.
    """
    found = check_path(path)
    yield found
    if found.verdict is Verdict.WRONG:
        return
    if run is None:
        mend = "add the run's words: doctor FOLDER task=csv task.schema=FILE"
        yield unknown("examples", "the run that is to read the data is not given", mend)
        return
    yield from _of_task(path, run)


def of_server(run: "DictConfig") -> Iterator[Finding]:
    """Check the schema of a run whose devices have data of their own."""
    from fl_app.tasks.schema import read_schema

    if "schema" not in run.task or run.task.path is not None:
        return
    try:
        schema = read_schema(run.task.schema)
    except ValueError as error:
        yield wrong("data", str(error), "correct task.schema: the server has no data")
        return
    if schema is None:
        mend = "add task.schema=FILE (absolute path), or task.path"
        yield wrong("data", "the server has neither data nor a schema", mend)
        return
    shape = "x".join(map(str, schema.input_shape))
    text = f"the devices' own: {schema.kind}, inputs {shape}, {schema.num_outputs} outputs"
    yield good("data", text)


def check_path(path: str) -> Finding:
    """Check that a device's data are where its settings say, and may be read."""
    subject = "data"
    if not os.path.isabs(path) or "'" in path:
        text = f"DATA={path} is no absolute path, or has a quote in it"
        return wrong(subject, text, "correct DATA in node.env")
    if not os.access(path, os.R_OK):
        mend = f"correct DATA in node.env, or let user {getpass.getuser()}, who runs this, read it"
        return wrong(subject, f"{path} does not exist, or may not be read", f"{mend}; {MOUNT}")
    if any(Path(path).is_relative_to(folder) for folder in HIDDEN):
        moved = "move them, if systemd starts this SuperNode: its service has a /tmp of its own"
        return unknown(subject, path, moved)
    return good(subject, path)


def _of_task(path: str, run: "DictConfig") -> Iterator[Finding]:
    # Imported here, because torch takes seconds to import, and may not even be there.
    from fl_app.client.build import build_task
    from fl_app.client.node_data import too_few

    subject = "examples"
    try:
        task = cast("Task", build_task(run, path))
    except Exception as error:  # libraries that read data raise errors of any type
        mend = "correct the data, or the task and its schema: the node's orders would fail"
        yield wrong(subject, str(error), mend)
        return
    if problem := too_few(task):
        yield wrong(subject, f"too few: {problem}", "collect more, or leave this device out")
        return
    num_kept = task.validation[0].size if task.validation else 0
    text = f"{task.partition[0].size} to train on, {num_kept} kept for validation"
    yield good(subject, text)
