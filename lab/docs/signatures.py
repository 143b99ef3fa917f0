"""Writes the signatures into docs/api/, where they are read without the site being built.

    python -m lab.docs.signatures

`make reference` does so; a test compares the pages with what is generated. Behind every `::: NAME`
a block of code has what the site shows of NAME in its place: signatures, and first sentences.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import fill, indent

import griffe

from lab.docs.docs_defaults import Defaults
from lab.docs.docs_site import SIGNATURES

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs/api").glob("*.md"))
NAMED = re.compile(r"^::: (\S+)\n(?:    .*\n)*", re.MULTILINE)
WIDTH = 100


@cache
def package() -> griffe.Module:
    """The package, read and not imported."""
    extensions = griffe.load_extensions(Defaults)
    loaded = griffe.load(
        "fl_app", search_paths=[ROOT], docstring_parser="google", extensions=extensions
    )
    assert isinstance(loaded, griffe.Module)
    return loaded


def resolved(name: str) -> griffe.Object:
    """What a dotted name of the package means."""
    found = package()[name.removeprefix("fl_app.")] if name != "fl_app" else package()
    return found.final_target if isinstance(found, griffe.Alias) else found


def public(module: griffe.Object) -> Iterator[griffe.Object]:
    """Classes and functions that it holds; of a package, also those that it exports."""
    for name, member in module.members.items():
        if isinstance(member, griffe.Alias):
            if not module.is_init_module or not member.target_path.startswith("fl_app."):
                continue
            member = member.final_target
        if isinstance(member, griffe.Class | griffe.Function) and not name.startswith("_"):
            yield member


def shown(name: str) -> Iterator[griffe.Object]:
    """Classes and functions that a page shows for a name."""
    named = resolved(name)
    if not named.is_module:
        yield named
        return
    for each in public(named):  # those that it defines, and those that its `__all__` names
        if each.parent is named or each.name in (named.exports or ()):
            yield each


def with_signatures(text: str) -> str:
    """A page with the blocks of all its names."""
    bare = SIGNATURES.sub(r"\1", text)
    return NAMED.sub(lambda match: f"{match[0]}\n```python\n{_block(match[1])}\n```\n", bare)


def _block(name: str) -> str:
    return "\n\n".join(map(_stub, shown(name)))


def _stub(each: griffe.Object) -> str:
    lines = [_head(each)]
    if each.docstring is not None:
        first = each.docstring.value.split("\n\n")[0].replace("\n", " ")
        lines.append(fill(f'"""{first}"""', WIDTH - 8))
    if isinstance(each, griffe.Class):
        members = [m for n, m in each.members.items() if n[0] != "_" and m.docstring is not None]
        lines += [_stub(m) for m in members if isinstance(m, griffe.Object)]
    return lines[0] + "".join(f"\n{indent(line, '    ')}" for line in lines[1:])


def _head(each: griffe.Object) -> str:
    if isinstance(each, griffe.Attribute):
        return f"{each.name}: {each.annotation}"
    assert isinstance(each, griffe.Class | griffe.Function)
    kind = "class" if isinstance(each, griffe.Class) else "def"
    signature = f"{kind} {each.signature() or each.name}:"
    # A line ends behind a comma only.
    whole = signature.replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")
    lines = fill(whole, WIDTH - 4, subsequent_indent=" " * 8, break_long_words=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


def write() -> None:
    """Write all pages."""
    for page in PAGES:
        page.write_text(with_signatures(page.read_text()))


if __name__ == "__main__":
    write()
