"""``python -m fl_app.search experiment=NAME search.trials=N [overrides]``."""

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGINT

USAGE = """\
Searches for the best setting of every cell of an experiment.

  python -m fl_app.search experiment=quickstart search.trials=10 search.updates=1000 \\
      'search.space=algorithm.client.local_lr=tag(log,interval(0.01,1))'

The same command with search.folder=FOLDER resume=auto resumes the search in a folder. Other
arguments are those of python -m fl_app, such as --config-dir=FOLDER. docs/search.md has more.
"""


def main(arguments: Sequence[str]) -> int:
    """Carry out a search; return the exit status, as of ``python -m fl_app``."""
    from hydra.errors import HydraException

    from fl_app.cli import failure, search_path
    from fl_app.core.errors import Interrupted, RunError
    from fl_app.core.extras import explaining_imports
    from fl_app.runner import signals

    folder = Path("outputs") / time.strftime("%Y-%m-%d/%H-%M-%S-search")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd", action="append", default=[])
    options, overrides = parser.parse_known_args(arguments)
    try:
        with explaining_imports():
            from fl_app.search.search import search
            from fl_app.search.settings import Settings, split

        if not arguments or {"-h", "--help"} & {*arguments}:
            keys = (Settings.__doc__ or "").partition("Attributes:\n")[2].rstrip()
            defaults = ", ".join(f"{key}={value}" for key, value in vars(Settings()).items())
            print(f"{USAGE}\nKeys, after search.\n{keys}\n\nDefaults: {defaults}")
            return 0
        settings, overrides = split(overrides)
        resume = "resume=auto" in overrides
        overrides = [word for word in overrides if word != "resume=auto"]
        for word in overrides:
            if word.startswith(("-", "resume=", "hydra.")):
                raise ValueError(f"{word} has no meaning here: use search.folder=... resume=auto")
        if resume and not settings.folder:
            raise ValueError("resume=auto needs search.folder=...: a new folder holds no search")
        folder = Path(settings.folder or folder)
        if options.config_dir:
            overrides.insert(0, search_path(options.config_dir))
        search(settings, overrides, folder, resume)
    except (Interrupted, KeyboardInterrupt):
        parts = [word for word in arguments if not word.startswith(("search.folder=", "resume="))]
        command = shlex.join([*parts, f"search.folder={folder}", "resume=auto"])
        print(f"interrupted; to go on: python -m fl_app.search {command}", file=sys.stderr)
        return 128 + (signals.received or SIGINT)
    except (RunError, ValueError, HydraException) as error:
        return failure(error, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
