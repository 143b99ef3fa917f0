"""`python -m fl_app.report <run folder>`: write table, page and figures of a run."""

import argparse
from pathlib import Path

from fl_app.report import (
    PAGE,
    TARGET_ACCURACY,
    no_pictures,
    print_table,
    require_target,
    write_report,
)
from fl_app.report.comparison import FIELDS, between, last, print_comparison
from fl_app.report.reading import read_run


def main(arguments: list[str] | None = None) -> None:
    """Read the command line, write the report, print the table; or watch a run until it ends."""
    parser = argparse.ArgumentParser(prog="python -m fl_app.report", description=__doc__)
    parser.add_argument(
        "run_folder", type=Path, help="output folder of a run, or of one of its cells"
    )
    parser.add_argument(
        "--target-accuracy",
        type=float,
        default=TARGET_ACCURACY,
        help="accuracy to which times are measured, in (0, 1] (default: %(default)s)",
    )
    parser.add_argument(
        "--span",
        type=float,
        nargs=2,
        metavar=("FROM", "TO"),
        help="start and end of the page's timelines in seconds (default: as much as is drawn fast)",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="CELL",
        help="report only these cells (default: all)",
    )
    alone = parser.add_mutually_exclusive_group()
    alone.add_argument(
        "--last",
        type=lambda text: 1 if text == "final" else int(text),
        metavar="N",
        help="only print a comparison of the cells over their last N evaluations; final = 1",
    )
    alone.add_argument(
        "--mean",
        type=float,
        nargs=2,
        metavar=("FROM", "TO"),
        help="only print a comparison over the evaluations between two times",
    )
    parser.add_argument(
        "--over",
        choices=FIELDS,
        help="what FROM and TO of --mean count (default: t, seconds)",
    )
    alone.add_argument(
        "--grid",
        nargs=2,
        metavar=("KEY", "KEY"),
        help="draw only figures/grid.png, the accuracy of every cell over two keys; local_lr "
        "stands for algorithm.client.local_lr",
    )
    for suffix in ("pdf", "svg"):
        parser.add_argument(
            f"--{suffix}",
            dest="formats",
            action="append_const",
            const=suffix,
            default=[],
            help=f"write every figure also as {suffix.upper()}",
        )
    options = parser.parse_args(arguments)
    if options.over and not options.mean:
        parser.error(f"--over={options.over} needs --mean: nothing else has a FROM and a TO")
    folder, target = options.run_folder, options.target_accuracy
    span = tuple(options.span) if options.span else None
    page = folder / PAGE
    numbers_only = options.last is not None or options.mean is not None
    if not numbers_only and (told := no_pictures()):
        parser.exit(2, f"error: {told}\n")
    try:
        if options.grid is not None:
            from fl_app.report.grid import grid  # altair takes a second to import
            from fl_app.report.pictures import save

            path = folder / "figures" / "grid.png"
            cells = read_run(folder, options.only)
            save(grid(cells, (options.grid[0], options.grid[1])), path, options.formats)
            print(f"figure: {path}")
            return
        if numbers_only:
            require_target(target)
            mean = options.mean
            choice = last(options.last) if mean is None else between(options.over or "t", *mean)
            print_comparison(read_run(folder, options.only), choice, target)
            return
        write_report(
            folder, target, span=span, only=options.only, formats=options.formats, tell=print_table
        )
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return
    print(f"page: {page}\nfigures: {folder / 'figures'}")


if __name__ == "__main__":
    main()
