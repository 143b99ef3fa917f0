"""Prints the schema of a task on your own data.

    python -m fl_app.schema task=csv task.path=FILE task.target=COLUMN > schema.json

It takes the same overrides as a run. The schema holds what nodes need to encode their own data in
the same way, and a server to build the model without data: columns, categories, classes, means.
"""

import sys
from collections.abc import Sequence
from typing import Any

from fl_app.cli import compose, failure
from fl_app.client.build import COMMON_KEYS, instantiate
from fl_app.tasks.encoding import Schema


def main(overrides: Sequence[str]) -> int:
    """Print the schema; returns 0, or 2 if the overrides are refused."""
    if not overrides or {"-h", "--help"} & {*overrides}:
        print(__doc__)
        return 0
    try:
        task: Any = instantiate(compose(overrides).task, leave_out=COMMON_KEYS)()
        schema: Schema | None = getattr(task, "schema", None)
        if schema is None:
            raise ValueError(f"task={task.name} has no schema: give a task on your own data")
    except ValueError as error:
        return failure(error, overrides)
    print(schema.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
