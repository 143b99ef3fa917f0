"""Writes the signatures into docs/api/, where they are read without the site being built.

    python -m lab.docs.signatures

`make reference` does so; a test compares the pages with what is generated. Behind every `::: NAME`
a block of code has the least of what the site shows of NAME: its signature without the types of
defaults, its first sentence, and the names of what it adds to its protocol or base.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from textwrap import fill, indent

import griffe

from lab.docs.docs_site import SIGNATURES, Defaults

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
    return NAMED.sub(_with_block, SIGNATURES.sub(r"\1", text))


def _with_block(named: re.Match[str]) -> str:
    # Of an algorithm, the module has the equations, and the reference the keys.
    if named[1].startswith("fl_app.algorithms."):
        return named[0]
    stubs = "\n\n".join(map(_stub, shown(named[1])))
    return f"{named[0]}\n```python\n{stubs}\n```\n"


def _stub(each: griffe.Object) -> str:
    parts = [_head(each), *_first(each)]
    if isinstance(each, griffe.Class):
        told = set() if is_protocol(each) else hooks()
        for name, member in each.members.items():
            shows = name[0] != "_" and name not in told and member.docstring is not None
            if shows and isinstance(member, griffe.Object):
                parts.append(_member(member))
    return parts[0] + "".join(f"\n{indent(part, '    ')}" for part in parts[1:])


def is_protocol(each: griffe.Object) -> bool:
    """Whether it tells what its implementations do."""
    return isinstance(each, griffe.Class) and "Protocol" in map(str, each.bases)


@cache
def hooks() -> set[str]:
    """Names that a protocol or the base of strategies or trainers tells of, on these pages."""
    named = [name for page in PAGES for name in NAMED.findall(page.read_text())]
    found = [each for name in named for each in shown(name)]
    bases = ("fl_app.core.algorithm.Algorithm", "fl_app.client.trainer.LocalTrainer")
    told = [each for each in found if is_protocol(each) or each.path in bases]
    return {name for each in told for name, member in each.members.items() if member.docstring}


def _member(each: griffe.Object) -> str:
    """Its name, and those of its parameters."""
    if not isinstance(each, griffe.Function):
        return each.name
    names = [parameter.name for parameter in each.parameters if parameter.name != "self"]
    return f"def {each.name}({', '.join(names)}):"


def _first(each: griffe.Object) -> list[str]:
    """The first sentence of its docstring."""
    if each.docstring is None:
        return []
    text = each.docstring.value.split("\n\n")[0].replace("\n", " ")
    return [fill(f'"""{re.split(r"(?<=[.]) (?=[A-Z])", text)[0]}"""', WIDTH - 8)]


def _head(each: griffe.Object) -> str:
    assert isinstance(each, griffe.Class | griffe.Function)
    kind = "class" if isinstance(each, griffe.Class) else "def"
    if each.path.startswith("fl_app.devices."):  # the reference has their keys
        return f"{kind} {each.name}:"
    signature = f"{kind} {each.signature() or each.name}:"
    # A default tells the type, and the site has it.
    for parameter in getattr(each, "parameters", ()):
        if parameter.default is not None and parameter.annotation is not None:
            shown = f"{parameter.name}: {parameter.annotation} = {parameter.default}"
            signature = signature.replace(shown, f"{parameter.name}={parameter.default}")
    # A line ends behind a comma only.
    whole = signature.replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")
    lines = fill(whole, WIDTH - 4, subsequent_indent=" " * 8, break_long_words=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_signatures(page.read_text()))
