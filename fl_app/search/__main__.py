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

The same command with search.folder=FOLDER resume=auto goes on with the search in a folder. Other
words are those of python -m fl_app, --config-dir=FOLDER among them. docs/search.md tells more.
"""


def main(words: Sequence[str]) -> int:
    """Carry out a search; return the exit status, as of ``python -m fl_app``."""
    from hydra.errors import HydraException

    from fl_app.cli import explain, search_path
    from fl_app.core.errors import Interrupted, RunError
    from fl_app.core.extras import explaining_imports
    from fl_app.runner import signals

    folder = Path("outputs") / time.strftime("%Y-%m-%d/%H-%M-%S-search")
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd", action="append", default=[])
    own, others = parser.parse_known_args(words)
    try:
        with explaining_imports():
            from fl_app.search.search import search
            from fl_app.search.settings import Settings, split

        if not words or {"-h", "--help"} & {*words}:
            keys = (Settings.__doc__ or "").partition("Attributes:\n")[2].rstrip()
            defaults = ", ".join(f"{key}={value}" for key, value in vars(Settings()).items())
            print(f"{USAGE}\nKeys, after search.\n{keys}\n\nDefaults: {defaults}")
            return 0
        settings, others = split(others)
        resume = "resume=auto" in others
        others = [word for word in others if word != "resume=auto"]
        for word in others:
            if word.startswith(("-", "resume=", "hydra.")):
                raise ValueError(f"{word} has no meaning here: use search.folder=... resume=auto")
        if resume and not settings.folder:
            raise ValueError("resume=auto needs search.folder=...: a new folder holds no search")
        folder = Path(settings.folder or folder)
        if own.config_dir:
            others.insert(0, search_path(own.config_dir))
        search(settings, others, folder, resume)
    except (Interrupted, KeyboardInterrupt):
        kept = [word for word in words if not word.startswith(("search.folder=", "resume="))]
        again = shlex.join([*kept, f"search.folder={folder}", "resume=auto"])
        print(f"interrupted; to go on: python -m fl_app.search {again}", file=sys.stderr)
        return 128 + (signals.received or SIGINT)
    except RunError as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except (ValueError, HydraException) as error:
        told = explain(error, words) if isinstance(error, HydraException) else error
        print(f"error: {told}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
