"""Commands are read from pages as a person reads them."""

import pytest

from boards.documents import Block, blocks, commands, fill

PAGE = """
# Devices

## Install

```sh
sudo apt install git    # needs root
cd /opt
```

- In a list:

   ```sh
   ls out/
   ```

### Jetson

```nginx
listen 8101;
```

## Run

~~~sh
true
~~~
"""


def test_blocks_know_their_section_language_and_line() -> None:
    found = list(blocks(PAGE))
    assert [(block.headings, block.language, block.line) for block in found] == [
        (("Devices", "Install"), "sh", 7),
        (("Devices", "Install"), "sh", 14),
        (("Devices", "Install", "Jetson"), "nginx", 20),
        (("Devices", "Run"), "sh", 26),
    ]
    assert found[1].text == "ls out/\n"
    lines = PAGE.splitlines()
    assert all(block.text.splitlines()[0] in lines[block.line - 1] for block in found)


def parsed(text: str, line: int = 1) -> list[tuple[int, str, str]]:
    block = Block(("A page",), "sh", line, text)
    return [(command.line, command.text, command.comment) for command in commands(block)]


def test_comments_are_no_commands() -> None:
    text = "# first\nls  # list\n\necho '# no' \"a # b\" c#d\n"
    assert parsed(text, 10) == [
        (11, "ls", "list"),
        (13, "echo '# no' \"a # b\" c#d", ""),
    ]


def test_commands_go_on_after_a_backslash_and_in_a_quotation() -> None:
    text = "run --a \\\n    --b\npython -c 'import x\nprint(1)'\n'it\\' ; ls\n"
    assert parsed(text) == [
        (1, "run --a \\\n    --b", ""),
        (3, "python -c 'import x\nprint(1)'", ""),
        (5, "'it\\' ; ls", ""),
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("ls\necho 'a\nb", "line 4: this command does not end"),
        ("ls \\", "line 3: this command does not end"),
        ("cat <<END\nEND", "line 3: here-documents are not understood"),
    ],
)
def test_what_cannot_be_followed_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parsed(text, 3)


def test_placeholders_are_filled_and_redirections_left() -> None:
    meanings = {"address of this repository": "/srv/a.git", "index": "here"}
    command = "git clone <address of this repository> <index> <in >out 2>&1"
    assert fill(command, meanings) == "git clone /srv/a.git here <in >out 2>&1"


def test_a_placeholder_without_a_meaning_is_named() -> None:
    with pytest.raises(ValueError, match=r"<image> in `build <image>` must be one of <index>"):
        fill("build <image>", {"index": "here"})
