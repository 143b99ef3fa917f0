"""The pages of the API and of the keys name all that there is, and explain it."""

import re
from pathlib import Path

import griffe
import pytest

from lab.docs import signatures
from lab.docs.reference import PAGE, page
from lab.docs.signatures import public, resolved

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


def shown():
    """Classes and functions on the pages."""
    return [each for name in NAMED for each in signatures.shown(name)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_the_signatures_of_its_names(page):
    """They are read without the site being built."""
    text = page.read_text()
    assert text == signatures.with_signatures(text), "run `make reference`"
    for name in re.findall(r"^::: (?!fl_app\.algorithms)\S+\.(\w+)", text, re.M):
        if name[0].isupper():
            assert re.search(rf"^class {name}\b", text, re.M)


@pytest.mark.parametrize("name", sorted(FOR_USERS))
def test_public_names_are_on_a_page(name):
    missing = {each.path for each in public(resolved(name))} - {each.path for each in shown()}
    assert not missing


def described(owner):
    """What the docstring of a class or module says of names: in its sections, or in its text."""
    if owner.docstring is None:
        return set()
    sections = owner.docstring.parse("google", warnings=False)
    lists = [each.value for each in sections if each.kind.value in ("attributes", "parameters")]
    named = {item.name.lstrip("*") for items in lists for item in items}
    return named | set(re.findall(r"(?<!`)`(\w+)`(?!`)", owner.docstring.value))


def undocumented(cls, protocols):
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


def test_what_is_on_the_pages_is_explained():
    found = shown()
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


# -- docs/reference.md ----------------------------------------------------------------------------


def test_the_page_is_what_make_reference_writes():
    assert PAGE.read_text() == page(), "conf/ has changed: run `make reference`"
