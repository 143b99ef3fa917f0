"""What ``/target@KEY: package.module.Class`` in a file of options stands for."""

from pathlib import Path

import pytest

from fl_app.cli import CONF, compose, search_path
from fl_app.help import rows
from fl_app.targets import explained, keys

MINE = '''
class Base:
    """A base.

    Args:
        rate: of the steps,
            above 0.
    """


class Mine(Base):
    """Its own.

    Attributes:
        names: what it is
            called.

    Raises:
        nothing: ever.
    """

    def __init__(self, needed, *, rate=0.5, names=("a",), seed=0):
        pass
'''
OPTION = """
defaults:
  - /target@strategy: mine_of_test.Mine
  - client: sgd
  - _self_
  - schedule: buffered

name: mine

strategy:
  rate: 0.25
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine_of_test.py").write_text(MINE)
    (tmp_path / "algorithm").mkdir()
    (tmp_path / "algorithm/mine.yaml").write_text(OPTION)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_defaults_are_the_keys_of_a_users_own_class(own: Path) -> None:
    assert keys("target/mine_of_test.Mine") == {
        "_target_": "mine_of_test.Mine",
        "rate": 0.5,
        "names": ("a",),
    }
    assert explained("target/mine_of_test.Mine") == {
        "rate": "of the steps, above 0.",
        "names": "what it is called.",
    }
    assert keys("keys/mine_of_test.Mine") == {"rate": 0.5, "names": ("a",), "seed": 0}
    strategy = compose([search_path([str(own)]), "algorithm=mine"]).algorithm.strategy
    assert strategy == {"_target_": "mine_of_test.Mine", "rate": 0.25, "names": ["a"]}
    with pytest.raises(ValueError, match=r"'algorithm.strategy.ratio'; did you mean .*rate"):
        compose([search_path([str(own)]), "algorithm=mine", "algorithm.strategy.ratio=1"])


def test_a_class_that_does_not_exist_is_told() -> None:
    with pytest.raises(ValueError, match=r"_target_=fl_app\.none\.None cannot be imported"):
        keys("target/fl_app.none.None")


def test_every_key_of_a_class_is_explained() -> None:
    silent = [
        (path.stem, key)
        for path in CONF.rglob("*.yaml")
        if "/target@" in path.read_text() or "/keys@" in path.read_text()
        for key, (_, told) in rows(path.read_text()).items()
        if not told and not key.endswith("_target_") and not key.startswith("client.")
    ]
    assert silent == []
