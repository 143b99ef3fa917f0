"""``--help``: what the files in ``conf/`` and the targets that they name say of groups and keys."""

import ast
import json
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from fl_app.cli import CONF, OWN, groups, nearest, options
from fl_app.targets import explained, keys, named

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


def help_on(words: Sequence[str]) -> str:
    """Return the text of ``--help``: the overview, or the help on each given group or option.

    Args:
        words: of the command.

    Raises:
        ValueError: a group or option does not exist.
    """
    plain = OWN.sub("", "\0".join(words)).split("\0")
    asked = [word for word in plain if word and not word.startswith("-")]
    return "\n\n".join(_on(word, words) for word in asked) if asked else _overview(words)


def _overview(words: Sequence[str]) -> str:
    lines = []
    for group in sorted(groups()):
        text = f"{group}= {', '.join(options(group, words))}"
        lines += textwrap.wrap(text, _width(), subsequent_indent="    ", break_long_words=False)
    keys = _keys((CONF / "config.yaml").read_text())
    return f"{USAGE}\nGroups\n\n{_indented(lines)}\n\nKeys\n\n{_indented(keys)}"


def _on(word: str, words: Sequence[str]) -> str:
    group, _, option = word.partition("=")
    if group not in groups():
        raise ValueError(f"--help {word}: no group is called {group!r}{nearest(group, groups())}")
    files = options(group, words)
    if not option:
        lines = _table({name: purpose(path) for name, path in files.items()})
    elif option in files:
        lines = _keys(files[option].read_text(), f"{package(group)}.")
    else:
        raise ValueError(f"--help {word}: {group} has no such option{nearest(option, files)}")
    title = word if option else f"{group}="
    return f"{title}\n\n{_indented(lines)}"


def package(group: str) -> str:
    """Where a group's keys lie; algorithm/lr_schedule is one of the strategy's."""
    return group.replace("/", ".").replace("algorithm.lr_", "algorithm.strategy.lr_")


def _keys(text: str, prefix: str = "") -> list[str]:
    """A file of options, and what the classes that it names say of their keys."""
    lines = text.partition("\nhydra:")[0].splitlines()
    for place, target in named((yaml.safe_load(text) or {}).get("defaults", [])):
        told = explained(target)
        lines += ["", f"# Of {target.partition('/')[2]}, with its own defaults", ""]
        for key, value in keys(target).items():
            shown = value if isinstance(value, str) else json.dumps(value)
            words = textwrap.wrap(told.get(key, "").replace("`", ""), _width() - 4)
            lines += [f"{prefix}{place}{key}={shown}", *(f"  {line}" for line in words)]
    return lines


def purpose(path: Path) -> str:
    """Return an option's purpose: the first sentence of an algorithm's module, or of the file."""
    text = path.read_text()
    if target := re.search(r"/target@strategy: fl_app\.(algorithms\.\w+)", text):
        return _docstring(Path(__file__).parent / target[1].replace(".", "/"))
    words = " ".join(heading(text).split())
    return re.split(r"(?<!et al)\. ", words)[0].rstrip(".")


def heading(text: str) -> str:
    """The comment at the top of a file of options."""
    comment = re.search(r"(?:^# (?!@package|python -m).+\n|^#\n)+", text, re.MULTILINE)
    return re.sub(r"^# ?", "", comment[0], flags=re.MULTILINE).rstrip() if comment else ""


def _docstring(module: Path) -> str:
    path = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0].rstrip(".")


def _table(rows: Mapping[str, str]) -> list[str]:
    left = max(map(len, rows)) + 2
    rest = " " * left
    return [
        textwrap.fill(f"{name:{left}}{text}", _width(), subsequent_indent=rest)
        for name, text in rows.items()
    ]


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 120) - 2


def _indented(lines: Sequence[str]) -> str:
    return textwrap.indent("\n".join(lines), "  ")
