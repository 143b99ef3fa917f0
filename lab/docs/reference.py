"""Writes docs/reference.md: every group, option, key and default, explained by conf/'s comments.

    python -m lab.docs.reference

`make reference` does so; a test compares the page with what is generated.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from fl_app.cli import CONF, groups
from fl_app.help import options, purpose

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"
LINKS = {
    "algorithm": "Each is explained by the docstring of its module in `fl_app/algorithms/`; "
    "how to add one: [algorithms.md](algorithms.md).",
    "devices": "More: [devices.md](devices.md).",
    "experiment": "Tables of the papers: [experiments.md](experiments.md). "
    "What came out: [comparisons.md](comparisons.md).",
    "partition": "More: [data.md](data.md#partitions).",
    "runtime": "Several machines: [cluster.md](cluster.md). Flower: [flower.md](flower.md). "
    "Real nodes: [edge.md](edge.md).",
    "task": "Where data come from: [data.md](data.md).",
}
INTRODUCTION = """\
# Reference

Written by `make reference` from the files in `conf/`. Edit the comments there, not this page.

- `python -m fl_app KEY=VALUE ...` sets a key. `GROUP=OPTION` chooses a file of a group.
- `--cfg job` prints the resulting configuration and runs nothing.
- `${key}` is the value of another key. `null` means: not set.
- `_target_` is the class or function that is called with the keys beside it. Its docstring explains
  the keys that say nothing here.
- `[A]` marks a value that we assume, because no paper gives it.

Groups:

"""


def page() -> str:
    """The whole page."""
    ordered = sorted(groups())
    contents = "".join(f"- [`{group}=`](#{_anchor(group)})\n" for group in ordered)
    parts = [INTRODUCTION + contents, _general(), *(_group(group) for group in ordered)]
    return "\n".join(parts)


def _general() -> str:
    text = (CONF / "config.yaml").read_text()
    chosen = [*_chosen("", yaml.safe_load(text))]
    lines = ["## Keys of every run", "", f"Chosen by default: {', '.join(chosen)}.", ""]
    return "\n".join([*lines, *_table(text, "", leave_out={"defaults", "hydra"}), ""])


def _group(group: str) -> str:
    lines = [f"## {group}=", ""]
    if group in LINKS:
        lines += [LINKS[group], ""]
    paths = [CONF / group / f"{option}.yaml" for option in options(group)]
    lines += ["| option | is |", "|---|---|"]
    lines += [f"| `{path.stem}` | {_cell(purpose(path))} |" for path in paths]
    if group != "experiment":  # these have no keys of their own
        for path in paths:
            lines += ["", *_option(group, path)]
    return "\n".join([*lines, ""])


def _option(group: str, path: Path) -> list[str]:
    text = path.read_text()
    values = yaml.safe_load(text) or {}
    lines = [f"### {group}={path.stem}", ""]
    head = re.match(r"(?:#.*\n)+", text)
    if head:
        comment = re.sub(r"^# ?", "", head[0], flags=re.MULTILINE).rstrip()
        # Tables in comments stay as they are; sentences flow.
        lines += ["```text", comment, "```", ""] if "\n  " in comment else [_cell(comment), ""]
    if chosen := [*_chosen(group, values)]:
        lines += [f"Builds on {', '.join(chosen)}.", ""]
    return [*lines, *_table(text, _package(group) + ".", leave_out={"defaults", "name"})]


def _chosen(group: str, values: dict[str, Any]) -> Iterator[str]:
    """What a file's `defaults` choose, as a user would write it."""
    prefix = f"{group}/" if group else ""
    for entry in values.get("defaults", []):
        if isinstance(entry, str):
            if entry != "_self_":
                yield f"`{group}={entry}`"
            continue
        ((chosen, option),) = entry.items()
        if option is not None and not chosen.startswith("override "):
            yield f"`{prefix}{chosen.partition('@')[0]}={option}`"


def _package(group: str) -> str:
    """Where a group's keys lie; algorithm/lr_schedule is one of the strategy's."""
    return group.replace("/", ".").replace("algorithm.lr_", "algorithm.strategy.lr_")


def _table(text: str, prefix: str, leave_out: set[str]) -> list[str]:
    """A row for every key, with the comment behind it, or else the one above it."""
    node = yaml.compose(text)
    rows = [] if node is None else [*_rows(node, text, prefix, leave_out)]
    return ["| key | default | is |", "|---|---|---|", *rows] if rows else ["No keys of its own."]


def _rows(mapping: yaml.MappingNode, text: str, prefix: str, leave_out: set[str]) -> Iterator[str]:
    for key, value in mapping.value:
        if key.value in leave_out:
            continue
        name, comment = prefix + key.value, _cell(_comment(text, key.start_mark.line))
        if isinstance(value, yaml.MappingNode) and value.value:
            if comment:
                yield f"| `{name}.*` | | {comment} |"
            yield from _rows(value, text, f"{name}.", set())
        else:
            shown = text[value.start_mark.index : value.end_mark.index]
            yield f"| `{name}` | `{_cell(shown)}` | {comment} |"


def _comment(text: str, line: int) -> str:
    """Behind a key, or above it, but for the one at the top of the file, which is about it all."""
    lines = text.splitlines()
    if behind := re.search(r"\s# (.*)$", lines[line]):
        return behind[1]
    above = line
    while above > 0 and lines[above - 1].lstrip().startswith("# "):
        above -= 1
    return " ".join(words.strip(" #") for words in lines[above:line]) if above > 0 else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _anchor(group: str) -> str:
    return re.sub(r"[^\w\- ]", "", group)


if __name__ == "__main__":
    PAGE.write_text(page())
