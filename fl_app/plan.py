"""Predicts a run's throughput, ages and loads by theory, without a run.

    python -m fl_app.plan algorithm=fedbuff devices=exponential num_clients=100 --aim age=20

It takes the same overrides as a run, and compares concurrencies and buffers. docs/devices.md has
the limits of the theory.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from fl_app.core.errors import explaining
from fl_app.core.extras import explaining_imports


def main(arguments: Sequence[str]) -> int:
    """Print a prediction; returns 0, or 2 if the overrides are refused."""
    parser = argparse.ArgumentParser(
        prog="python -m fl_app.plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    folder_help = "where your own options are"
    parser.add_argument("--config-dir", "-cd", action="append", default=[], help=folder_help)
    parser.add_argument("--aim", default="age=10", help="age=A, age<=A, updates, or energy")
    parser.add_argument("--picture", type=Path, metavar="FILE.png", help="draw the comparison")
    options = parser.parse_intermixed_args(arguments)
    if options.picture is not None and options.picture.suffix != ".png":
        parser.error(f"--picture={options.picture} must end in .png: no other picture is drawn")
    try:
        with explaining_imports():
            from fl_app.api.plan import plan
            from fl_app.cli import search_path

            path = [search_path(options.config_dir)] if options.config_dir else []
            prediction = plan(*path, *options.overrides, aim=options.aim)
            print(prediction)
            if options.picture is not None:
                with explaining(f"--picture={options.picture} cannot be written"):
                    options.picture.write_bytes(prediction.plot()._repr_png_())
                print(f"Picture: {options.picture}")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
