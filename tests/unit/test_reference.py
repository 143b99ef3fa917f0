"""docs/reference.md says what conf/ holds."""

import pytest

from fl_app.cli import CONF, groups
from fl_app.help import options, rows
from lab.docs.reference import PAGE, page


def test_the_page_is_what_make_reference_writes() -> None:
    assert PAGE.read_text() == page(), "conf/ has changed: run `make reference`"


@pytest.mark.parametrize("group", sorted(set(groups()) - {"experiment"}))
def test_every_option_and_key_is_on_the_page(group: str) -> None:
    text = PAGE.read_text()
    for option in options(group):
        assert f"\n### {group}={option}\n" in text
        section = text.split(f"\n### {group}={option}\n")[1].split("\n## ")[0].split("\n### ")[0]
        for key in rows((CONF / group / f"{option}.yaml").read_text()):
            assert f".{key}`" in section
