"""The command line: ``python -m fl_app [overrides]`` or ``fl-app [overrides]``; ``-m`` sweeps."""

import os
import sys

from fl_app.run import signals


def main() -> int:
    """Run the command line; 0 if all went well, 2 if it was refused, 1 if a run failed.

    130 or 143 if Ctrl-C or SIGTERM ended it.
    """
    # Nothing else is imported before: all of it takes seconds, in which Ctrl-C may be pressed.
    signals.received = None
    with signals.ending_at_once():
        from fl_app.command import command

        return command(sys.argv[1:])


def console() -> None:
    """`main`, and the end of the process."""
    status = main()
    if status > 128 and "torch" in sys.modules:
        # All is written, and taking apart what torch and Flower loaded would take seconds. The main
        # process of a parallel sweep loads neither, and ends the processes of its jobs at its exit.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    console()
