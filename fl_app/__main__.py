"""The command line: ``python -m fl_app [overrides]`` or ``fl-app [overrides]``; ``-m`` sweeps."""

import os
import sys

from fl_app.runner import signals


def main() -> int:
    """Run the command line and return its exit status.

    0: success. 1: a run failed. 2: the command was refused. 130 or 143: Ctrl-C or SIGTERM.
    """
    # The other imports take seconds. They follow the handler, because Ctrl-C may come during them.
    signals.received = None
    with signals.ending_at_once():
        from fl_app.command import command

        return command(sys.argv[1:])


def console() -> None:
    """Run `main` and end the process."""
    # As with ``python -m``, so that ``task.model=my_models:make`` finds a file of this folder.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    status = main()
    if status > 128 and "torch" in sys.modules:
        # All files are written, and a normal exit would unload torch and Flower for seconds.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    console()
