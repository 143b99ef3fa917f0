"""Writes docs/reference.md: every group, option, key and default, with descriptions.

    python -m lab.docs.reference

`make reference` does so; a test compares the page with what is generated. A key that several
options of a group share is described once, at the head of the group; an option lists which of these
keys it has, and what differs.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml

from fl_app.cli import CONF, groups, options
from fl_app.help import heading, package, purpose
from fl_app.targets import keys, parameter_docs, references

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
LINKS = {
    "algorithm": "All train with `algorithm/client=sgd`, unless they name another. All with "
    "`strategy.server_lr` have `strategy.clip_norm` and `strategy.lr_schedule`, too, but "
    "`overlap_fedavg` and `scaffold`. `strategy.lr_schedule` falls as "
    "[`algorithm/lr_schedule=linear`](#algorithmlr_schedule) says. "
    "Equations: the docstring of the module in `fl_app/algorithms/`. To add one: "
    "[algorithms.md](algorithms.md).",
    "devices": "More: [devices.md](devices.md).",
    "experiment": "All of them: `--help experiment`. Commands and hours: "
    "[experiments.md](experiments.md).",
    "partition": "More: [data.md](data.md#partitions).",
    "runtime": "Several machines: [cluster.md](cluster.md). Flower: [flower.md](flower.md). "
    "Real nodes: [edge.md](edge.md).",
    "task": "Where data come from: [data.md](data.md).",
}
# Choices of every algorithm; LINKS describes them.
DEFAULTS = {"algorithm/client=sgd", "algorithm/lr_schedule=linear"}
# Keys with the same meaning in every option; an option names them if its default differs.
SAME = {"strategy.clip_norm", "strategy.lr_schedule"}
SHORT = 3  # maximum words of a meaning that needs no line of its own, such as a symbol
REASON = re.compile(r"\[A\]|class default")  # comments on a value, not on the meaning of its key
INTRODUCTION = """\
# Reference

Written by `make reference` from the files in `conf/`, and the docstrings of the classes that they
name. Edit these, not this page.

- `python -m fl_app KEY=VALUE ...` sets a key. `GROUP=OPTION` chooses a file of a group.
- `--cfg job` prints the resulting configuration and runs nothing. There `_target_` is the class or
  function that is called with the keys beside it. `--help GROUP=OPTION` shows one option.
- Here a key stands with its default. Within a group it stands without the group's prefix.
- `${key}` is the value of another key. `null`, in docstrings None, means: not set.
- `[A]` marks a value that we assume, because no paper gives it.
"""

Rows = Mapping[str, tuple[str, str]]  # key -> default and meaning


def page() -> str:
    """The whole page."""
    return "\n".join([INTRODUCTION, _general(), *map(_group, sorted(groups()))])


def _general() -> str:
    text = (CONF / "config.yaml").read_text()
    by_default = ", ".join(f"`{choice}`" for choice in choices("", text))
    lines = ["## Keys of every run", "", f"Chosen by default: {by_default}.", ""]
    lines += [_line(key, *row) for key, row in rows(text).items()]
    return "\n".join([*lines, ""])


def _group(group: str) -> str:
    lines = [f"## {group}=", ""]
    if group in LINKS:
        lines += [LINKS[group], ""]
    if group == "experiment":  # its options have no keys of their own
        return "\n".join(lines)
    tables = {path: option_rows(path) for path in options(group).values()}
    shared = common(tables.values())
    notes = reasons(tables.values())
    lines += [f"Keys begin with `{package(group)}.`. Several options have:", ""] if shared else []
    lines += [*(_line(key, *row) for key, row in shared.items()), ""] if shared else []
    lines += [f"- ({number}): {_flat(reason)}" for reason, number in notes.items()]
    lines += [""] if notes else []
    for path, table in tables.items():
        lines += [_option(group, path, table, shared, notes), ""]
    return "\n".join(lines)


def choices(group: str, text: str) -> Iterator[str]:
    """The choices in the ``defaults`` of a file of options, as a user would write them."""
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

    The meaning is the comment after a key, or above it, or the description in the target's
    docstring.
    """
    table: dict[str, tuple[str, str]] = {}
    docs: dict[str, str] = {}
    for place, target in references((yaml.safe_load(text) or {}).get("defaults", [])):
        docs |= {f"{place}{key}": doc for key, doc in parameter_docs(target).items()}
        for key, value in keys(target).items():
            default = value if isinstance(value, str) else json.dumps(value)
            table[f"{place}{key}"] = (default, docs.get(f"{place}{key}", ""))
    node = yaml.compose(text)
    for key, default, comment in _file_rows(node, text) if node else ():
        table[key] = (default, comment or docs.get(key, ""))
    return table


def _file_rows(
    mapping: yaml.MappingNode, text: str, prefix: str = ""
) -> Iterator[tuple[str, str, str]]:
    for key, value in mapping.value:
        if not prefix and key.value in ("defaults", "hydra", "name"):
            continue
        name, comment = prefix + key.value, _comment(text, key.start_mark.line)
        if isinstance(value, yaml.MappingNode) and value.value:
            if comment:
                yield f"{name}.*", "", comment
            yield from _file_rows(value, text, f"{name}.")
        else:
            yield name, text[value.start_mark.index : value.end_mark.index], comment


def _comment(text: str, line: int) -> str:
    """The comment after a key or above it, but not the file's first, which is about all of it."""
    lines = text.splitlines()
    if behind := re.search(r"\s# (.*)$", lines[line]):
        return behind[1]
    above = line
    while above > 0 and lines[above - 1].lstrip().startswith("# "):
        above -= 1
    return " ".join(words.strip(" #") for words in lines[above:line]) if above > 0 else ""


def option_rows(path: Path) -> dict[str, tuple[str, str]]:
    """The keys of an option, without the classes."""
    table = rows(path.read_text())
    return {key: row for key, row in table.items() if not key.endswith("_target_")}


def common(tables: Iterable[Rows]) -> dict[str, tuple[str, str]]:
    """Keys that mean the same in two or more options of a group, with the commonest default."""
    rows_of: dict[str, list[tuple[str, str]]] = {}
    for table in tables:
        for key, row in table.items():
            rows_of.setdefault(key, []).append(row)
    shared = {}
    for key, pairs in rows_of.items():
        meanings = Counter(text for _, text in pairs if text and not REASON.match(text))
        of_client = key.startswith("client.")  # algorithm/client= describes these
        if meanings and not of_client and (meanings.most_common(1)[0][1] > 1 or key in SAME):
            value = Counter(value for value, _ in pairs).most_common(1)[0][0]
            shared[key] = (value, meanings.most_common(1)[0][0])
    return shared


def reasons(tables: Iterable[Rows]) -> dict[str, int]:
    """Reasons that several options give for a value, numbered."""
    counts = Counter(text for table in tables for _, text in table.values() if REASON.match(text))
    frequent = [reason for reason, times in counts.items() if times > 1 and reason != "[A]"]
    return {reason: number for number, reason in enumerate(frequent, start=1)}


def _option(group: str, path: Path, own: Rows, shared: Rows, notes: Mapping[str, int]) -> str:
    text = path.read_text()
    comment, is_for = heading(text), purpose(path)
    if "\n  " in comment:  # a table
        comment = f"Values of the paper: `--help {group}={path.stem}`."
    parts = [f"### {group}={path.stem}"]
    first = "" if is_for in _flat(comment) else f"{_flat(is_for)}. "
    parts += [(first + _flat(comment)).rstrip()]
    brief = [f"`{choice}`" for choice in choices(group, text) if choice not in DEFAULTS]
    short, keys = [], []
    for key, (value, doc) in own.items():
        default, shared_doc = shared.get(key, (None, ""))
        if key in SAME and value == default:
            continue
        if doc in ("", "[A]", shared_doc) or doc in notes or key in SAME:
            name = f"`{key}`" if value == default else f"`{key}={_flat(value)}`"
            note = f" ({notes[doc]})" if doc in notes else " [A]" if doc == "[A]" else ""
            brief.append(name + note)
        elif len(doc.split()) <= SHORT:
            short.append(f"`{key}={_flat(value)}` ({_flat(doc).rstrip('.')})")
        else:
            keys.append(_line(key, value, doc))
    parts += [f"With {', '.join(brief)}."] if brief else []
    parts += [f"{', '.join(short)}."] if short else []
    parts += ["\n".join(keys)] if keys else []
    return "\n\n".join(parts)


def _line(key: str, value: str, meaning: str) -> str:
    text = f"`{key}={_flat(value)}`" if value else f"`{key}`"
    return f"- {text}: {_flat(meaning)}" if meaning else f"- {text}"


def _flat(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    PAGE.write_text(page())
