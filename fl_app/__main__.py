"""The command line: ``python -m fl_app [overrides]`` or ``fl-app [overrides]``; ``-m`` sweeps."""

import os
import signal
import sys

PIPE_CLOSED = 141  # a shell's exit status for a command that writes to a closed pipe


def main() -> int:
    """Run the command line and return its exit status.

    0: success. 1: a run failed. 2: the command was refused. 130 or 143: Ctrl-C or SIGTERM during a
    run. At other times the signal ends the process, and a shell reports the same status.
    """
    # Not KeyboardInterrupt, which imports and callbacks of libraries swallow or print. No file is
    # left half written, because files are replaced only when they are complete.
    previous = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from fl_app.command import command  # imports of seconds

        return command(sys.argv[1:])
    finally:
        signal.signal(signal.SIGINT, previous)


def console() -> None:
    """Run `main` and end the process."""
    # As with ``python -m``, so that ``task.model=my_models:make`` finds a file of this folder.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:  # for example, of `| head`
        os._exit(PIPE_CLOSED)
    if status > 128 and "torch" in sys.modules:
        # All files are written, and a normal exit would unload torch and Flower for seconds.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    console()
