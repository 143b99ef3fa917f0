"""The commands of a Markdown page, from its code blocks."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from markdown_it import MarkdownIt

# As in <address of this repository>. Shells take it for two redirections.
PLACEHOLDER = re.compile(r"<([A-Za-z](?:[\w .'-]*[\w.'])?)>")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced code block.

    Attributes:
        headings: of the sections that it is in, the outermost first.
        language: after the fence, such as "sh".
        line: of the page, of its first line; counted from 1.
        text: without the fences.
    """

    headings: tuple[str, ...]
    language: str
    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command of a block, perhaps of several lines.

    Attributes:
        line: of the page, of its first line; counted from 1.
        text: without the comment.
        comment: behind the command, without "#".
    """

    line: int
    text: str
    comment: str


def blocks(page: str) -> Iterator[Block]:
    """The fenced code blocks of a page, also those in lists."""
    tokens = MarkdownIt().parse(page)
    headings: list[tuple[int, str]] = []
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            level = int(token.tag[1:])
            headings = [known for known in headings if known[0] < level]
            headings.append((level, tokens[i + 1].content))
        elif token.type == "fence":
            assert token.map is not None  # of a block always known
            names = tuple(name for _, name in headings)
            yield Block(names, token.info.strip(), token.map[0] + 2, token.content)


def commands(block: Block) -> Iterator[Command]:
    """The commands of a block of shell.

    A command goes on in the next line after a backslash, or while a quotation mark is open. A line
    with nothing but a comment is no command.

    Raises:
        ValueError: a quotation mark is never closed, or there is a here-document: where it ends is
            not known here.
    """
    text, began = "", 0
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        began = began if text else number
        text = f"{text}\n{line}" if text else line
        command, comment, complete = _split(text)
        if not complete:
            continue
        if "<<" in command:
            raise ValueError(f"line {began}: here-documents are not understood: {command}")
        if command:
            yield Command(began, command, comment)
        text = ""
    if text:
        raise ValueError(f"line {began}: this command does not end: {text}")


def fill(command: str, meanings: Mapping[str, str]) -> str:
    """Replace the placeholders of a command.

    Args:
        command: with placeholders such as ``<index>``.
        meanings: what each stands for, by its name without brackets.

    Raises:
        ValueError: a placeholder has no meaning.
    """

    def meaning(match: re.Match[str]) -> str:
        if match[1] not in meanings:
            known = ", ".join(f"<{name}>" for name in sorted(meanings))
            raise ValueError(f"<{match[1]}> in `{command}` must be one of {known}")
        return meanings[match[1]]

    return PLACEHOLDER.sub(meaning, command)


def _split(text: str) -> tuple[str, str, bool]:
    """Return command, comment, and whether the command is complete."""
    quote, escaped = "", False
    for i, character in enumerate(text):
        if escaped:
            escaped = False
        elif character == "\\" and quote != "'":
            escaped = True
        elif quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character == "#" and (i == 0 or text[i - 1].isspace()):
            return text[:i].strip(), text[i + 1 :].strip(), True
    return text.strip(), "", not quote and not escaped
