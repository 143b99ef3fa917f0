"""``python -m fl_app.search experiment=NAME search.trials=N [overrides]``."""

import argparse
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from fl_app.runner import signals

USAGE = """\
Searches for the best setting of every cell of an experiment.

  python -m fl_app.search experiment=quickstart search.trials=10 search.updates=1000 \\
      'search.space=algorithm.client.local_lr=tag(log,interval(0.01,1))'

The same command with search.folder=FOLDER resume=auto goes on with the search in a folder. Other
words are those of python -m fl_app, --config-dir=FOLDER among them. docs/search.md tells more.

Keys, with their defaults:
"""


def main(words: Sequence[str]) -> int:
    """Carry out a search; return the exit status, as of ``python -m fl_app``."""
    signals.received = None
    # Also while modules are imported, and between two runs.
    with signals.ending_at_once(again=lambda: _again(words) if _folder.is_dir() else ""):
        from hydra.errors import HydraException

        from fl_app.cli import explain
        from fl_app.core.errors import Interrupted, RunError
        from fl_app.core.extras import told_if_missing

        try:
            with told_if_missing():
                return _search(words)
        except (Interrupted, KeyboardInterrupt):
            print(f"interrupted; to go on: {_again(words)}", file=sys.stderr)
            return signals.exit_status()
        except RunError as error:
            print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
            return 1
        except HydraException as error:
            print(f"error: {explain(error, words)}", file=sys.stderr)
            return 2
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2


_folder = Path("-")  # that of the search, once it is known


def _search(words: Sequence[str]) -> int:
    global _folder
    from fl_app.core.errors import require
    from fl_app.search.settings import Settings, split

    if not words or {"-h", "--help"} & {*words}:
        print(f"{USAGE}\n{_keys(Settings.__doc__ or '', asdict(Settings()))}")
        return 0
    options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    options.add_argument("--config-dir", "-cd")
    own, others = options.parse_known_args(words)
    settings, others = split(others)
    resume = "resume=auto" in others
    others = [word for word in others if word != "resume=auto"]
    for word in others:
        if word.startswith("-"):
            raise ValueError(f"{word} is no key: a search takes words such as search.trials=12")
        if word.startswith(("resume=", "overwrite=", "hydra.")):
            raise ValueError(f"{word} has no meaning here: use search.folder=... and resume=auto")
    if own.config_dir is not None:
        from fl_app.cli import search_path

        require(
            Path(own.config_dir).is_dir(),
            "--config-dir",
            own.config_dir,
            "a folder",
            "its options would not be found",
        )
        others.insert(0, search_path([own.config_dir]))
    if resume and not settings.folder:
        raise ValueError("resume=auto needs search.folder=...: a new folder holds no search")
    from fl_app.search.search import search

    default = Path("outputs") / time.strftime("%Y-%m-%d/%H-%M-%S-search")
    _folder = Path(settings.folder) if settings.folder else default
    search(settings, others, _folder, resume)
    return 0


def _keys(docstring: str, defaults: Mapping[str, object]) -> str:
    """The keys with their defaults and meanings."""
    told = docstring.partition("Attributes:\n")[2].rstrip()
    for key, default in defaults.items():
        shown = str(default).replace("None", "null")
        told = re.sub(rf"^ +{key}: ", f"  search.{key}={shown}: ", told, flags=re.MULTILINE)
    return re.sub(r"^ {12}", "      ", told, flags=re.MULTILINE)


def _again(words: Sequence[str]) -> str:
    kept = [word for word in words if not word.startswith(("search.folder=", "resume="))]
    again = [*kept, f"search.folder={_folder}", "resume=auto"]
    return shlex.join(["python", "-m", "fl_app.search", *again])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
