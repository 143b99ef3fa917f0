"""The pages of the API name everything public, and everything that they name is explained."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs/api").glob("*.md"))
NAMED = [name for page in PAGES for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)]

# Whose public names are for users of the package; other packages are for its authors.
FOR_USERS = [
    "fl_app",
    "fl_app.asynchronous",
    "fl_app.client",
    "fl_app.core.events",
    "fl_app.core.types",
    "fl_app.devices",
    "fl_app.engine",
    "fl_app.schedule",
    "fl_app.strategy",
    "fl_app.tasks.partition",
    *(f"fl_app.algorithms.{path.stem}" for path in (ROOT / "fl_app/algorithms").glob("[!_]*")),
]


@cache
def package() -> griffe.Module:
    loaded = griffe.load("fl_app", search_paths=[ROOT], docstring_parser="google")
    assert isinstance(loaded, griffe.Module)
    return loaded


def resolved(name: str) -> griffe.Object:
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


def shown() -> Iterator[griffe.Object]:
    """Classes and functions on the pages."""
    for named in map(resolved, NAMED):
        if named.is_module:  # with what it holds, and what its `__all__` names
            yield from (
                each
                for each in public(named)
                if each.parent is named or each.name in (named.exports or ())
            )
        else:
            yield named


@pytest.mark.parametrize("name", sorted(FOR_USERS))
def test_public_names_are_on_a_page(name: str) -> None:
    missing = {each.path for each in public(resolved(name))} - {each.path for each in shown()}
    assert not missing


def described(owner: griffe.Object) -> set[str]:
    """What the docstring of a class or module says of names: in its sections, or in its text."""
    if owner.docstring is None:
        return set()
    sections = owner.docstring.parse("google", warnings=False)
    lists = [each.value for each in sections if each.kind.value in ("attributes", "parameters")]
    named = {item.name.lstrip("*") for items in lists for item in items}
    return named | set(re.findall(r"(?<!`)`(\w+)`(?!`)", owner.docstring.value))


def undocumented(cls: griffe.Class, protocols: list[griffe.Class]) -> Iterator[str]:
    """Public members without an explanation there, in a base class or in a protocol."""
    ancestors = [*cls.mro(), *protocols]
    explained = set[str]().union(*map(described, [cls.module, cls, *cls.mro()]))
    for name, member in cls.members.items():
        if name.startswith("_") or isinstance(member, griffe.Alias | griffe.Class):
            continue
        same = [each.members[name] for each in ancestors if name in each.members]
        told = any(each.docstring for each in [member, *same])
        if not told and not (member.is_attribute and name in explained):
            yield member.path


def test_what_is_on_the_pages_is_explained() -> None:
    found = list(shown())
    protocols = [
        each
        for each in found
        if isinstance(each, griffe.Class) and "Protocol" in map(str, each.bases)
    ]
    missing = [each.path for each in found if not each.docstring]
    for each in found:
        if isinstance(each, griffe.Class):
            missing += undocumented(each, protocols)
    missing += [each.path for each in map(resolved, NAMED) if not each.docstring]
    assert not missing


def test_no_name_is_on_two_pages() -> None:
    paths = [each.path for each in shown()]
    assert sorted(paths) == sorted(set(paths))
