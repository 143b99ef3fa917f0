"""``--help``: prints the comments of the files in ``conf/`` as help on groups and keys."""

import ast
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

from fl_app.cli import CONF, groups, nearest

USAGE = """\
Asynchronous federated learning on Flower: many unequal clients, several algorithms, one clock.

Usage: fl-app [-m] [KEY=VALUE ...]      (or: python -m fl_app ...)

  fl-app experiment=quickstart                            compare seven algorithms
  fl-app algorithm=fedasync num_versions=2000             one run
  fl-app algorithm=fedbuff algorithm.schedule.buffer_size=5 partition.alpha=0.1 seed=3
  fl-app -m algorithm=fedasync,fedbuff seed=0,1,2         a sweep: six runs
  fl-app ... hydra.run.dir=FOLDER                         write to this folder
  fl-app ... hydra.run.dir=FOLDER resume=auto             resume the run in this folder
  fl-app ... --cfg job                                    show every key, and run nothing

  fl-app --help GROUP             the options of a group, such as: fl-app --help devices
  fl-app --help GROUP=OPTION      the keys of an option, such as: fl-app --help algorithm=fedbuff
  fl-app --version                the version
  fl-app --shell-completion install=bash    completion, evaluated by the shell: eval "$(...)"
  fl-app --hydra-help             Hydra's own options
"""


def version() -> str:
    """Return the version of this package, or ``unknown`` if it is not installed."""
    try:
        return installed("fl-app")
    except PackageNotFoundError:
        return "unknown"


def help_on(words: Sequence[str]) -> str:
    """Return the text of ``--help``: the overview, or the help on each given group or option.

    Raises:
        ValueError: a group or option does not exist.
    """
    return "\n\n".join(_on(word) for word in words) if words else _overview()


def _overview() -> str:
    lines = []
    for group in sorted(groups()):
        text = f"{group}= {', '.join(options(group))}"
        lines += textwrap.wrap(text, _width(), subsequent_indent="    ", break_long_words=False)
    text = (CONF / "config.yaml").read_text()
    keys = text[text.index("\nseed:") : text.index("\nhydra:")].strip()
    return f"{USAGE}\nGroups\n\n{_indented(lines)}\n\nKeys\n\n{_indented(keys.splitlines())}"


def _on(word: str) -> str:
    group, _, option = word.partition("=")
    if group not in groups():
        raise ValueError(
            f"--help {word}: no group is called {group!r}{nearest(group, [*groups()])}"
        )
    known = options(group)
    if not option:
        purposes = {name: purpose(CONF / group / f"{name}.yaml") for name in known}
        return f"{group}=\n\n{_indented(_table(purposes))}"
    if option not in known:
        raise ValueError(f"--help {word}: {group} has no such option{nearest(option, known)}")
    return f"{word}\n\n{_indented((CONF / group / f'{option}.yaml').read_text().splitlines())}"


def options(group: str) -> list[str]:
    """Return the options of a group in alphabetical order."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def purpose(path: Path) -> str:
    """Return an option's purpose: the first sentence of an algorithm's module, or of the file."""
    text = path.read_text()
    if path.parent == CONF / "algorithm":
        target = re.search(r"_target_: fl_app\.(algorithms\.\w+)", text)
        if target:
            return _docstring(Path(__file__).parent / target[1].replace(".", "/"))
    comment = re.search(r"(?:^# (?!@package|python -m).+\n)+", text, re.MULTILINE)
    words = " ".join(comment[0].replace("\n# ", " ").split()).removeprefix("# ") if comment else ""
    return re.split(r"(?<!et al)\. ", words)[0].rstrip(".")


def _docstring(module: Path) -> str:
    path = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0].rstrip(".")


def _table(rows: Mapping[str, str]) -> list[str]:
    left = max(map(len, rows)) + 2
    lines = []
    for name, text in rows.items():
        cell = textwrap.wrap(text, max(_width() - left, 30), break_on_hyphens=False) or [""]
        lines += [f"{name:{left}}{cell[0]}", *(" " * left + line for line in cell[1:])]
    return lines


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 120) - 2


def _indented(lines: Sequence[str]) -> str:
    return textwrap.indent("\n".join(lines), "  ")
