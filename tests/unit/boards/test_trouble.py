"""What is taken for a refusal of install.sh."""

from typing import Any

import pytest

from boards.row import Disappointed
from boards.trouble import refusal


class Typist:
    """Answers every command with the same words, after a failure or not."""

    def __init__(self, said: str, *, fails: bool) -> None:
        self._said, self._fails = said, fails

    def leave(self) -> None: ...

    def type(self, command: str, seconds: float) -> str:
        if self._fails:
            raise Disappointed(f"podman exec ended with 1 after 0 s: {self._said}")
        return self._said


def test_the_reasons_are_picked_from_what_it_said() -> None:
    said = (
        "error: this is a 32-bit system\nnote: no matter\nerror: nothing was changed\n---- now in /"
    )
    machine: Any = Typist(said, fails=True)
    assert refusal(machine) == "error: this is a 32-bit system | error: nothing was changed"


def test_an_installation_that_succeeds_is_none() -> None:
    machine: Any = Typist("fl-supernode is started", fails=False)
    with pytest.raises(Disappointed, match="ended with 0"):
        refusal(machine)
