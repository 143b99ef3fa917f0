"""When a SuperNode looks for updates, and what it makes of its first order."""

from pathlib import Path

import pytest

from fl_app.field.renewal import EVERY, KIT, TRIAL, Renewal, renewal_of
from fl_app.field.versions import Versions
from fl_app.flower.private import RUN_HAS_ENDED


class Node:
    """A SuperNode of which nothing runs.

    Args:
        kit: its folder.
        found: whether an update is installed at each look.
    """

    def __init__(self, kit: Path, found: tuple[bool, ...] = ()) -> None:
        self.found, self.ends, self.greetings, self.waits = list(found), 0, 0, 0
        self.versions = Versions(kit)
        self.renewal = Renewal(
            kit, 60.0, greet=self.greet, look=lambda kit: self.found.pop(0), end=self.end,
            pause=self.pause,
        )  # fmt: skip

    def greet(self) -> None:
        self.greetings += 1

    def end(self) -> None:
        self.ends += 1

    def pause(self, seconds: float) -> None:
        assert 0.0 <= seconds <= 60.0
        self.waits += 1

    def idle(self) -> None:
        """Wait for the next order, until the looks are over."""
        self.renewal.beside(False)
        assert self.renewal._thread is not None
        self.renewal._thread.join()
        self.renewal.beside(False)


def on_trial(kit: Path) -> Versions:
    versions = Versions(kit)
    versions.new(5).mkdir()
    versions.finish(5)
    versions.switch(5)
    versions.start()
    return versions


def test_it_ends_between_two_orders_when_an_update_is_there(tmp_path: Path) -> None:
    node = Node(tmp_path, (False, False, True))
    node.idle()
    assert (node.ends, node.greetings, node.waits) == (1, 3, 3)


def test_a_look_that_fails_is_not_the_last(tmp_path: Path) -> None:
    node = Node(tmp_path)
    looks = iter([OSError("no memory"), False, True])

    def look(kit: Path) -> bool:
        found = next(looks)
        if isinstance(found, OSError):
            raise found
        return found

    node.renewal._look = look
    node.idle()
    assert node.ends == 1


def test_another_version_of_the_server_is_looked_for_at_once(tmp_path: Path) -> None:
    assert Node(tmp_path, (True,)).renewal.begin(differs=True)
    assert not Node(tmp_path, (False,)).renewal.begin(differs=True)
    assert not Node(tmp_path).renewal.begin(differs=False)


@pytest.mark.parametrize("kind", ["train", "evaluate", "train.other"])
def test_an_order_confirms_a_release(tmp_path: Path, kind: str) -> None:
    versions = on_trial(tmp_path)
    node = Node(tmp_path)
    node.renewal.replied("query", "")
    node.renewal.replied(kind, RUN_HAS_ENDED)
    assert versions.record.trial == 5
    node.renewal.replied(kind, "")
    assert (versions.record.trial, versions.current) == (0, 5)
    node.renewal.replied(kind, "later failures are the order's")
    assert versions.current == 5


@pytest.mark.parametrize("kind", ["query", "train"])
def test_a_failed_order_brings_back_the_release_before(tmp_path: Path, kind: str) -> None:
    versions = on_trial(tmp_path)
    node = Node(tmp_path)
    node.renewal.replied(kind, "ImportError: torch")
    assert (versions.current, versions.record.failed) == (0, 5)
    assert versions.record.reason == "ImportError: torch"
    node.renewal.beside(True)
    assert node.ends == 0
    node.renewal.beside(False)
    assert node.ends == 1


def test_an_order_without_end_brings_back_the_release_before(tmp_path: Path) -> None:
    """No ClientApp is ever started, so no reply comes."""
    versions = on_trial(tmp_path)
    node = Node(tmp_path, (False, True))
    seconds = [0.0]
    node.renewal._now = lambda: seconds[0]
    for seconds[0] in (0.0, 3000.0):
        node.renewal.beside(True)
    node.renewal._busy = None  # as by an idle moment
    for seconds[0] in (4000.0, 7000.0, 7600.0):
        node.renewal.beside(True)
    assert (node.ends, versions.current) == (0, 5)
    seconds[0] = 7601.0
    node.renewal.beside(True)
    assert (node.ends, versions.current, versions.record.failed) == (1, 0, 5)
    assert versions.record.reason == "no reply to an order within 3600 s"
    seconds[0] = 99999.0
    node.renewal.beside(True)  # what is no trial may take its time
    assert node.ends == 1


def test_a_flower_whose_replies_are_not_seen_confirms_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = on_trial(tmp_path)
    monkeypatch.setattr("fl_app.field.renewal.difference", lambda part: "differs")
    Node(tmp_path, (False,)).renewal.begin(differs=False)
    assert versions.record.trial == 0


def test_only_the_settings_turn_it_on() -> None:
    assert renewal_of({}) is None
    assert renewal_of({KIT: "/kit"}) is None
    assert renewal_of({KIT: "/kit", EVERY: "0"}) is None
    assert renewal_of({KIT: "/kit", EVERY: ""}) is None
    assert renewal_of({EVERY: "600"}) is None
    assert renewal_of({KIT: "/kit", EVERY: "600"}) is not None
    for wrong in ("often", "-1", "1.5"):
        with pytest.raises(ValueError, match=f"UPDATE_EVERY={wrong} must be a whole number"):
            renewal_of({KIT: "/kit", EVERY: wrong})
    with pytest.raises(ValueError, match="UPDATE_TRIAL=0 must be a whole number of seconds above"):
        renewal_of({KIT: "/kit", EVERY: "600", TRIAL: "0"})
