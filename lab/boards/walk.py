"""Follows a page: types the commands of its code blocks on machines."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from lab.boards.documents import Block, blocks, commands, fill
from lab.boards.row import Disappointed

SHELL = "sh"  # language of the blocks with commands


class Walk:
    """The commands of a page, typed as they are written.

    Args:
        page: Markdown file.
        typists: types a command on a machine and returns what it printed, by the machine's name.
        meanings: of the page's placeholders.
        transcript: file to which commands, seconds and outputs are appended.
    """

    def __init__(
        self,
        page: Path,
        typists: Mapping[str, Callable[[str], str]],
        meanings: Mapping[str, str],
        transcript: Path,
    ) -> None:
        self._page = page
        self._typists = typists
        self._meanings = meanings
        self._transcript = transcript

    def follow(self, section: str, number: int, machine: str) -> str:
        """Type the commands of a block; return what the last one printed.

        Args:
            section: heading right above the block.
            number: of the block among those with commands in this section, from 0.
            machine: on which they are typed.

        Raises:
            Disappointed: there is no such block, or a command failed.
        """
        said = ""
        for command in commands(block(self._page, section, number)):
            began = time.monotonic()
            where = f"{self._page.name}:{command.line}, on {machine}"
            try:
                said = self._typists[machine](fill(command.text, self._meanings))
            except Disappointed as error:
                self._note(f"{where}: {command.text}\n{error}")
                raise Disappointed(f"{where}: `{command.text}`: {error}") from None
            seconds = time.monotonic() - began
            self._note(f"{where}, {seconds:.1f} s: {command.text}\n{said}")
        return said

    def _note(self, text: str) -> None:
        with self._transcript.open("a") as file:
            file.write(f"{text}\n\n")


def block(page: Path, section: str, number: int) -> Block:
    """A block with commands, by its section's heading and its number in the section, from 0.

    Raises:
        Disappointed: the page has none there.
    """
    found = [
        each
        for each in blocks(page.read_text())
        if each.language == SHELL and each.headings[-1:] == (section,)
    ]
    if number >= len(found):
        raise Disappointed(
            f"{page.name} must have {number + 1} blocks of {SHELL} below {section!r}, "
            f"but has {len(found)}"
        )
    return found[number]
