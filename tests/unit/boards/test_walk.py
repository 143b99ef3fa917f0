"""A page is followed to the letter."""

from pathlib import Path

import pytest

from boards.row import Disappointed
from boards.walk import Walk

PAGE = """
# Page

## Install

```sh
git clone <address> /opt/app
cd /opt/app
```

```python
print()
```

```sh
ls
```
"""


@pytest.fixture
def typed() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def walk(tmp_path: Path, typed: list[tuple[str, str]]) -> Walk:
    def typist(machine: str):
        def type_(command: str) -> str:
            if command == "ls":
                raise Disappointed("ended with 2")
            typed.append((machine, command))
            return f"{command} on {machine}"

        return type_

    page = tmp_path / "page.md"
    page.write_text(PAGE)
    typists = {name: typist(name) for name in ("server", "device")}
    return Walk(page, typists, {"address": "/srv/app.git"}, tmp_path / "transcript")


def test_commands_are_typed_in_their_order(walk, typed, tmp_path) -> None:
    assert walk.follow("Install", 0, "device") == "cd /opt/app on device"
    assert typed == [("device", "git clone /srv/app.git /opt/app"), ("device", "cd /opt/app")]
    assert "page.md:8, on device, 0.0 s: cd /opt/app\ncd /opt/app on device" in (
        (tmp_path / "transcript").read_text()
    )


def test_a_command_that_fails_is_named_with_its_line(walk, tmp_path) -> None:
    with pytest.raises(Disappointed, match=r"page.md:16, on server: `ls`: ended with 2"):
        walk.follow("Install", 1, "server")
    assert "ended with 2" in (tmp_path / "transcript").read_text()


@pytest.mark.parametrize(("section", "number"), [("Install", 2), ("Run", 0)])
def test_a_block_that_the_page_lost_is_missed(walk, section, number) -> None:
    with pytest.raises(Disappointed, match=f"blocks of sh below '{section}'"):
        walk.follow(section, number, "device")
