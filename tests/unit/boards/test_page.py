"""What the part ``systemd`` types is on the page, and it leaves out nothing of it unseen."""

from itertools import chain

import pytest

from boards.documents import blocks, commands, fill
from boards.systemd import BY_HAND, ELSEWHERE, MEANINGS, OTHER_WORDS, PAGE, STEPS
from boards.walk import SHELL, block

STOPS = [*chain(*STEPS.values()), *BY_HAND, *OTHER_WORDS]


@pytest.mark.parametrize(("section", "number", "machine"), STOPS)
def test_commands_are_understood(section: str, number: int, machine: str) -> None:
    typed = [fill(command.text, MEANINGS) for command in commands(block(PAGE, section, number))]
    assert typed
    assert not any("<" in command for command in typed)


def test_every_block_on_installing_and_running_is_typed() -> None:
    seen: dict[str, int] = {}
    found = set()
    for each in blocks(PAGE.read_text()):
        section = each.headings[-1]
        numbered = any(heading[:2] in ("1.", "2.", "3.") for heading in each.headings)
        if each.language == SHELL and numbered and section not in ELSEWHERE:
            found.add((section, seen.get(section, 0)))
            seen[section] = seen.get(section, 0) + 1
    assert found == {(section, number) for section, number, _ in STOPS}
