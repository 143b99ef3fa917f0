"""Writes docs/reference.md: every group, option, key and default, and what it is.

    python -m lab.docs.reference

`make reference` does so; a test compares the page with what is generated.
"""

import re
from pathlib import Path

from fl_app.cli import CONF, groups
from fl_app.help import chosen, heading, options, package, purpose, rows

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

Written by `make reference` from the files in `conf/`, and the docstrings of the classes that they
name. Edit these, not this page.

- `python -m fl_app KEY=VALUE ...` sets a key. `GROUP=OPTION` chooses a file of a group.
- `--cfg job` prints the resulting configuration and runs nothing.
- `${key}` is the value of another key. `null`, in docstrings None, means: not set.
- `_target_` is the class or function that is called with the keys beside it.
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
    by_default = ", ".join(f"`{each}`" for each in chosen("", text))
    lines = ["## Keys of every run", "", f"Chosen by default: {by_default}.", ""]
    return "\n".join([*lines, *_table(text, ""), ""])


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
    lines = [f"### {group}={path.stem}", ""]
    if comment := heading(text):
        # Tables in comments stay as they are; sentences flow.
        lines += ["```text", comment, "```", ""] if "\n  " in comment else [_cell(comment), ""]
    if others := [f"`{each}`" for each in chosen(group, text)]:
        lines += [f"Builds on {', '.join(others)}.", ""]
    return [*lines, *_table(text, package(group) + ".")]


def _table(text: str, prefix: str) -> list[str]:
    lines = [
        f"| `{prefix}{key}` | {f'`{_cell(value)}`' if value else ''} | {_cell(told)} |"
        for key, (value, told) in rows(text).items()
    ]
    return ["| key | default | is |", "|---|---|---|", *lines] if lines else ["No keys of its own."]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _anchor(group: str) -> str:
    return re.sub(r"[^\w\- ]", "", group)


if __name__ == "__main__":
    PAGE.write_text(page())
