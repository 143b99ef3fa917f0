"""Writes the schema of a task on your own data.

    python -m fl_app.schema task=csv task.path=FILE task.target=COLUMN -o schema.json

It takes the same overrides as a run. The schema says what nodes must know to encode their own data
alike, and a server to build the model without data: columns, categories, classes, means. Without -o
it is printed.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fl_app.cli import compose
from fl_app.client.build import COMMON_KEYS, instantiate
from fl_app.tasks.encoding import Schema


def main(arguments: Sequence[str]) -> int:
    """Write the schema; returns 0, or 2 if the overrides are refused."""
    parser = argparse.ArgumentParser(
        prog="python -m fl_app.schema",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="+", metavar="KEY=VALUE")
    parser.add_argument("-o", dest="output", type=Path, metavar="FILE", help="the file to write")
    options = parser.parse_intermixed_args(arguments)
    try:
        task: Any = instantiate(compose(options.overrides).task, leave_out=COMMON_KEYS)()
        schema: Schema | None = getattr(task, "schema", None)
        if schema is None:
            raise ValueError(f"task={task.name} has no schema: give a task on your own data")
        if options.output is None:
            print(schema.to_json())
            return 0
        with options.output.open("x", encoding="utf-8") as file:
            print(schema.to_json(), file=file)
    except (ValueError, OSError) as error:
        told = (
            error
            if isinstance(error, ValueError)
            else f"-o {options.output}: {error.strerror}; give another"
        )
        print(f"error: {told}", file=sys.stderr)
        return 2
    shape = "x".join(map(str, schema.input_shape))
    print(f"{options.output}: {schema.kind}, inputs {shape}, outputs {', '.join(schema.outputs)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
