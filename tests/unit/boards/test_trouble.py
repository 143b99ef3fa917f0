"""What is taken for a refusal of install.sh."""

from typing import Any

import pytest

from boards.row import Disappointed
from boards.trouble import UNFITS, Trouble, Unfit, refusal


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


class Refusing(Typist):
    """Its install.sh refuses, and leaves something in /opt or not."""

    def __init__(self, said: str, left: str = "") -> None:
        super().__init__(said, fails=True)
        self._left = left
        self.done: list[str] = []

    def root(self, *command: str) -> str:
        self.done.append(command[-1])
        return self._left if "getent" in command[-1] else ""


def tried(unfit: Unfit, machine: Refusing) -> str:
    trouble: Any = object.__new__(Trouble)
    trouble._device = machine
    return trouble.unfit(unfit)


@pytest.mark.parametrize("unfit", UNFITS, ids=lambda unfit: unfit.name)
def test_a_refusal_gives_the_reason_and_leaves_nothing(unfit: Unfit) -> None:
    last = "error: nothing was changed: 1 found"
    machine = Refusing(f"error: {unfit.said}\n{last}")
    assert unfit.said in tried(unfit, machine)
    assert machine.done[0] == unfit.spoil
    assert unfit.mend in machine.done
    for wrong in (Refusing(last), Refusing(f"error: {unfit.said}\n{last}", "fl-app")):
        with pytest.raises(Disappointed, match="it left:"):
            tried(unfit, wrong)
        assert unfit.mend in wrong.done


def test_an_installation_that_succeeds_is_none() -> None:
    machine: Any = Typist("fl-supernode is started", fails=False)
    with pytest.raises(Disappointed, match="ended with 0"):
        refusal(machine)
