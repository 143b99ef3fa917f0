"""``--help``: what the files in ``conf/`` and the targets that they name say of groups and keys."""

import ast
import json
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path

import yaml

from fl_app.cli import CONF, OWN, folders, groups, nearest, options
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


def version() -> str:
    """Return the version of this package, or ``unknown`` if it is not installed."""
    try:
        return installed("fl-app")
    except PackageNotFoundError:
        return "unknown"


def help_on(words: Sequence[str]) -> str:
    """Return the text of ``--help``: the overview, or the help on each given group or option.

    Args:
        words: of the command.

    Raises:
        ValueError: a group or option does not exist.
    """
    asked = [word for word in OWN.sub("", " ".join(words)).split() if not word.startswith("-")]
    return "\n\n".join(_on(word, words) for word in asked) if asked else _overview(words)


def _overview(words: Sequence[str]) -> str:
    lines = []
    for group in sorted(groups()):
        text = f"{group}= {', '.join(options(group, words))}"
        lines += textwrap.wrap(text, _width(), subsequent_indent="    ", break_long_words=False)
    keys = _listing(rows((CONF / "config.yaml").read_text()))
    return f"{USAGE}\nGroups\n\n{_indented(lines)}\n\nKeys\n\n{_indented(keys)}"


def _on(word: str, words: Sequence[str]) -> str:
    group, _, option = word.partition("=")
    if group not in groups():
        raise ValueError(
            f"--help {word}: no group is called {group!r}{nearest(group, [*groups()])}"
        )
    known = options(group, words)
    # Of two files of one name Hydra takes the first.
    files = {
        path.stem: path
        for each in reversed(folders(words))
        for path in (each / group).glob("*.yaml")
    }
    if not option:
        return f"{group}=\n\n{_indented(_table({name: purpose(files[name]) for name in known}))}"
    if option not in known:
        raise ValueError(f"--help {word}: {group} has no such option{nearest(option, known)}")
    text = files[option].read_text()
    if group == "experiment":  # its keys are those of every run
        return f"{word}\n\n{_indented(text.splitlines())}"
    lines = [heading(text), *(f"Builds on {each}" for each in chosen(group, text))]
    lines += ["", *_listing(rows(text), f"{package(group)}.")]
    return f"{word}\n\n{_indented(lines)}".rstrip()


def package(group: str) -> str:
    """Where a group's keys lie; algorithm/lr_schedule is one of the strategy's."""
    return group.replace("/", ".").replace("algorithm.lr_", "algorithm.strategy.lr_")


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


def chosen(group: str, text: str) -> Iterator[str]:
    """What the ``defaults`` of a file of options choose, as a user would write it."""
    prefix = f"{group}/" if group else ""
    for entry in (yaml.safe_load(text) or {}).get("defaults", []):
        if isinstance(entry, str):
            if entry != "_self_":
                yield f"{group}={entry}"
            continue
        ((word, option),) = entry.items()
        if option is not None and not word.startswith(("override ", "/target@", "/keys@")):
            yield f"{prefix}{word.partition('@')[0]}={option}"


def rows(text: str) -> dict[str, tuple[str, str]]:
    """Default and meaning of every key of a file of options, and of the targets that it names.

    The meaning is the comment behind a key, or above it, or what the target's docstring says.
    """
    found: dict[str, tuple[str, str]] = {}
    told: dict[str, str] = {}
    for place, target in named((yaml.safe_load(text) or {}).get("defaults", [])):
        told |= {f"{place}{key}": words for key, words in explained(target).items()}
        for key, value in keys(target).items():
            shown = value if isinstance(value, str) else json.dumps(value)
            found[f"{place}{key}"] = (shown, told.get(f"{place}{key}", ""))
    node = yaml.compose(text)
    for key, shown, comment in _own_rows(node, text) if node else ():
        found[key] = (shown, comment or told.get(key, ""))
    return found


def _listing(rows: Mapping[str, tuple[str, str]], prefix: str = "") -> list[str]:
    lines = []
    for key, (value, told) in rows.items():
        lines.append(f"{prefix}{key}={value}" if value else f"{prefix}{key}")
        lines += textwrap.wrap(
            told.replace("`", ""), _width() - 4, initial_indent="    ", subsequent_indent="    "
        )
    return lines


def _own_rows(
    mapping: yaml.MappingNode, text: str, prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    for key, value in mapping.value:
        if not prefix and key.value in ("defaults", "hydra", "name"):
            continue
        name, comment = prefix + key.value, _comment(text, key.start_mark.line)
        if isinstance(value, yaml.MappingNode) and value.value:
            if comment:
                yield f"{name}.*", "", comment
            yield from _own_rows(value, text, f"{name}.")
        else:
            yield name, text[value.start_mark.index : value.end_mark.index], comment


def _comment(text: str, line: int) -> str:
    """Behind a key, or above it, but for the one at the top of the file, which is about it all."""
    lines = text.splitlines()
    if behind := re.search(r"\s# (.*)$", lines[line]):
        return behind[1]
    above = line
    while above > 0 and lines[above - 1].lstrip().startswith("# "):
        above -= 1
    return " ".join(words.strip(" #") for words in lines[above:line]) if above > 0 else ""


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
