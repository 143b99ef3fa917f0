"""docs/reference.md says what conf/ holds, and a key that several options share stands once."""

import pytest

from fl_app.cli import CONF, groups
from fl_app.help import options
from lab.docs.reference import ALIKE, PAGE, REASON, own_rows, page


def test_the_page_is_what_make_reference_writes() -> None:
    assert PAGE.read_text() == page(), "conf/ has changed: run `make reference`"


@pytest.mark.parametrize("group", sorted(set(groups()) - {"experiment"}))
def test_every_option_has_its_keys_defaults_and_meanings(group: str) -> None:
    chapter = PAGE.read_text().split(f"\n## {group}=\n")[1].split("\n## ")[0]
    head, *sections = chapter.split("\n### ")
    named = {section.partition("\n")[0]: section for section in sections}
    assert list(named) == [f"{group}={option}" for option in options(group)]
    for option in options(group):
        section = named[f"{group}={option}"]
        for key, (value, told) in own_rows(CONF / group / f"{option}.yaml").items():
            full, told = f"`{key}={' '.join(value.split())}`", told.rstrip(".")
            listed = f"`{key}`" in section or key in ALIKE
            assert full in section or (listed and full in head)
            assert told in section or told in head or key in ALIKE  # a reason is a note of the head
            assert told not in head or told not in section or len(told) < 10 or REASON.match(told)
