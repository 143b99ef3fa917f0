"""``--help``: describes groups and keys by the files in ``conf/`` and the classes they name."""

import ast
import json
import re
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from fl_app.cli import CONF, OWN, groups, nearest, options
from fl_app.targets import keys, parameter_docs, references

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


def help_on(arguments: Sequence[str]) -> str:
    """Return the text of ``--help``: the overview, or the help on each given group or option.

    Args:
        arguments: of the command line.

    Raises:
        ValueError: a group or option does not exist.
    """
    plain = OWN.sub("", "\0".join(arguments)).split("\0")
    topics = [topic for topic in plain if topic and not topic.startswith("-")]
    return "\n\n".join(_topic(t, arguments) for t in topics) if topics else _overview(arguments)


def _overview(arguments: Sequence[str]) -> str:
    lines = []
    for group in sorted(groups()):
        text = f"{group}= {', '.join(options(group, arguments))}"
        lines += textwrap.wrap(text, _width(), subsequent_indent="    ", break_long_words=False)
    keys = _keys((CONF / "config.yaml").read_text())
    return f"{USAGE}\nGroups\n\n{_indent(lines)}\n\nKeys\n\n{_indent(keys)}"


def _topic(topic: str, arguments: Sequence[str]) -> str:
    group, _, option = topic.partition("=")
    if group not in groups():
        raise ValueError(f"--help {topic}: no group is called {group!r}{nearest(group, groups())}")
    files = options(group, arguments)
    if not option:
        lines = _table({name: purpose(path) for name, path in files.items()})
    elif option in files:
        lines = _keys(files[option].read_text(), f"{package(group)}.")
    else:
        raise ValueError(f"--help {topic}: {group} has no such option{nearest(option, files)}")
    title = topic if option else f"{group}="
    return f"{title}\n\n{_indent(lines)}"


def package(group: str) -> str:
    """The dotted path of a group's keys; those of algorithm/lr_schedule are the strategy's."""
    return group.replace("/", ".").replace("algorithm.lr_", "algorithm.strategy.lr_")


def _keys(text: str, prefix: str = "") -> list[str]:
    """The lines of a file of options, and the keys of the classes it names, with descriptions."""
    lines = text.partition("\nhydra:")[0].splitlines()
    for place, target in references((yaml.safe_load(text) or {}).get("defaults", [])):
        docs = parameter_docs(target)
        lines += ["", f"# Of {target.partition('/')[2]}, with its own defaults", ""]
        for key, value in keys(target).items():
            shown = value if isinstance(value, str) else json.dumps(value)
            description = textwrap.wrap(docs.get(key, "").replace("`", ""), _width() - 4)
            lines += [f"{prefix}{place}{key}={shown}", *(f"  {line}" for line in description)]
    return lines


def purpose(path: Path) -> str:
    """Return an option's purpose: the first sentence of an algorithm's module, or of the file."""
    text = path.read_text()
    if target := re.search(r"/target@strategy: fl_app\.(algorithms\.\w+)", text):
        return _docstring(Path(__file__).parent / target[1].replace(".", "/"))
    sentences = " ".join(heading(text).split())
    return re.split(r"(?<!et al)\. ", sentences)[0].rstrip(".")


def heading(text: str) -> str:
    """The comment at the top of a file of options."""
    comment = re.search(r"(?:^# (?!@package|python -m).+\n|^#\n)+", text, re.MULTILINE)
    return re.sub(r"^# ?", "", comment[0], flags=re.MULTILINE).rstrip() if comment else ""


def _docstring(module: Path) -> str:
    path = module / "__init__.py" if module.is_dir() else module.with_suffix(".py")
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0].rstrip(".")


def _table(rows: Mapping[str, str]) -> list[str]:
    width = max(map(len, rows)) + 2
    indent = " " * width
    return [
        textwrap.fill(f"{name:{width}}{text}", _width(), subsequent_indent=indent)
        for name, text in rows.items()
    ]


def _width() -> int:
    return min(shutil.get_terminal_size().columns, 120) - 2


def _indent(lines: Sequence[str]) -> str:
    return textwrap.indent("\n".join(lines), "  ")
