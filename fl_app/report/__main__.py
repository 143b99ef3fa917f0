"""`python -m fl_app.report <run folder>`: write table, page and figures of a run."""

import argparse
import signal
from pathlib import Path

from fl_app.report import PAGE, Table, no_pictures, target_of, write_report
from fl_app.report.cells import read_run
from fl_app.report.table import make_table


def evaluations(text: str) -> int:
    """Parse a number of evaluations; "final" is 1."""
    return 1 if text == "final" else int(text)


def main(arguments: list[str] | None = None) -> None:
    """Read the command line, write the report, print the table."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # for example, of `| head`
    parser = argparse.ArgumentParser(prog="python -m fl_app.report", description=__doc__)
    parser.add_argument(
        "run_folder", type=Path, help="output folder of a run, or of one of its cells"
    )
    parser.add_argument(
        "--target-accuracy",
        type=float,
        help="accuracy to which times are measured, in (0, 1] (default: that of the run)",
    )
    parser.add_argument(
        "--last",
        type=evaluations,
        metavar="N",
        help="only print the table, with the mean score of the last N evaluations; final = 1",
    )
    parser.add_argument("--pdf", action="store_true", help="write every figure also as PDF")
    options = parser.parse_args(arguments)
    folder = options.run_folder
    if options.last is None and (missing := no_pictures()):
        parser.exit(2, f"error: {missing}\n")
    try:
        if options.last is not None:
            cells = read_run(folder)
            make_table(cells, target_of(cells, options.target_accuracy), options.last).print()
            return
        write_report(folder, options.target_accuracy, pdf=options.pdf, tell=Table.print)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        return
    print(f"page: {folder / PAGE}\nfigures: {folder / 'figures'}")


if __name__ == "__main__":
    main()
