"""Writes the signatures into docs/api/, for readers without the built site.

    python -m lab.docs.signatures

`make reference` does so; a test compares the pages with what is generated. After every `::: NAME`,
a block of code has the essentials of what the site shows of NAME: its signature without the types
of defaults, its first sentence, and the names of the members that its protocol or base lacks.
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
DIRECTIVE = re.compile(r"^::: (\S+)\n(?:    .*\n)*", re.MULTILINE)
WIDTH = 100


@cache
def package() -> griffe.Module:
    """The package, parsed and not imported."""
    extensions = griffe.load_extensions(Defaults)
    module = griffe.load(
        "fl_app", search_paths=[ROOT], docstring_parser="google", extensions=extensions
    )
    assert isinstance(module, griffe.Module)
    return module


def resolve(name: str) -> griffe.Object:
    """The object with a dotted name in the package."""
    member = package()[name.removeprefix("fl_app.")] if name != "fl_app" else package()
    return member.final_target if isinstance(member, griffe.Alias) else member


def public(module: griffe.Object) -> Iterator[griffe.Object]:
    """Public classes and functions of a module; of a package, also those that it exports."""
    for name, member in module.members.items():
        if isinstance(member, griffe.Alias):
            if not module.is_init_module or not member.target_path.startswith("fl_app."):
                continue
            member = member.final_target
        if isinstance(member, griffe.Class | griffe.Function) and not name.startswith("_"):
            yield member


def documented(name: str) -> Iterator[griffe.Object]:
    """Classes and functions that a page shows for a name."""
    target = resolve(name)
    if not target.is_module:
        yield target
        return
    for member in public(target):  # those that it defines or lists in `__all__`
        if member.parent is target or member.name in (target.exports or ()):
            yield member


def with_signatures(text: str) -> str:
    """A page with the blocks of all its names."""
    return DIRECTIVE.sub(_with_block, SIGNATURES.sub(r"\1", text))


def _with_block(match: re.Match[str]) -> str:
    # An algorithm's module has its equations, and the reference its keys.
    if match[1].startswith("fl_app.algorithms."):
        return match[0]
    stubs = "\n\n".join(map(_stub, documented(match[1])))
    return f"{match[0]}\n```python\n{stubs}\n```\n"


def _stub(target: griffe.Object) -> str:
    parts = [_head(target), *_first(target)]
    if isinstance(target, griffe.Class):
        inherited = set() if is_protocol(target) else hooks()
        for name, member in target.members.items():
            shows = name[0] != "_" and name not in inherited and member.docstring is not None
            if shows and isinstance(member, griffe.Object):
                parts.append(_member(member))
    return parts[0] + "".join(f"\n{indent(part, '    ')}" for part in parts[1:])


def is_protocol(target: griffe.Object) -> bool:
    """Whether it is a protocol."""
    return isinstance(target, griffe.Class) and "Protocol" in map(str, target.bases)


@cache
def hooks() -> set[str]:
    """Names that these pages describe for a protocol or the base of strategies or trainers."""
    names = [name for page in PAGES for name in DIRECTIVE.findall(page.read_text())]
    targets = [target for name in names for target in documented(name)]
    bases = ("fl_app.core.algorithm.Algorithm", "fl_app.client.trainer.LocalTrainer")
    roots = [target for target in targets if is_protocol(target) or target.path in bases]
    return {name for root in roots for name, member in root.members.items() if member.docstring}


def _member(member: griffe.Object) -> str:
    """A member's name, with the names of its parameters."""
    if not isinstance(member, griffe.Function):
        return member.name
    names = [parameter.name for parameter in member.parameters if parameter.name != "self"]
    return f"def {member.name}({', '.join(names)}):"


def _first(target: griffe.Object) -> list[str]:
    """The first sentence of the docstring."""
    if target.docstring is None:
        return []
    text = target.docstring.value.split("\n\n")[0].replace("\n", " ")
    return [fill(f'"""{re.split(r"(?<=[.]) (?=[A-Z])", text)[0]}"""', WIDTH - 8)]


def _head(target: griffe.Object) -> str:
    assert isinstance(target, griffe.Class | griffe.Function)
    kind = "class" if isinstance(target, griffe.Class) else "def"
    if target.path.startswith("fl_app.devices."):  # the reference has their keys
        return f"{kind} {target.name}:"
    signature = f"{kind} {target.signature() or target.name}:"
    # A default shows its type, and the site has the annotation.
    for parameter in getattr(target, "parameters", ()):
        if parameter.default is not None and parameter.annotation is not None:
            annotated = f"{parameter.name}: {parameter.annotation} = {parameter.default}"
            signature = signature.replace(annotated, f"{parameter.name}={parameter.default}")
    # Lines break only after commas.
    text = signature.replace(" ", "\N{NO-BREAK SPACE}").replace(",\N{NO-BREAK SPACE}", ", ")
    lines = fill(text, WIDTH - 4, subsequent_indent=" " * 8, break_long_words=False)
    return lines.replace("\N{NO-BREAK SPACE}", " ")


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(with_signatures(page.read_text()))
