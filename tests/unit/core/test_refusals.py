"""Bounds of hyper-parameters, and messages to users."""

import json
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import numpy as np
import pytest

from fl_app.core.bugs import check_names, place_of, traceback_of
from fl_app.core.errors import Diverged, error_text
from fl_app.core.events import Aggregated, Arrived, Dispatched, Rejected, from_json, to_json
from fl_app.core.extras import EXTRAS, explaining_imports, lacking, require_installed
from fl_app.core.hyper import POSITIVE, at_least, count, one_of, or_none, within
from fl_app.core.layout import Layout


@pytest.mark.parametrize(
    ("bound", "good", "bad"),
    [
        (POSITIVE, [1, 1e-9, np.float32(2)], [0, -1, float("nan"), float("inf"), "x", None, True]),
        (at_least(2), [2, 2.5], [1.999, float("nan"), float("inf"), "2", None, True]),
        (count(), [1, np.int64(3)], [0, 1.0, 2.5, float("nan"), True, "1", None]),
        (count(0), [0], [-1]),
        (within("(0, 1]"), [1e-9, 1], [0, 1.001, float("nan"), "0.5"]),
        (within("[-1, 1)"), [-1, 0.999], [1, -1.001]),
        (one_of("a", "b", "c"), ["a", "c"], ["d", None, 1]),
        (or_none(POSITIVE), [None, 1], [0, "x"]),
    ],
)
def test_values_within_a_bound(bound, good, bad):
    assert [bound.holds(value) for value in good] == [True] * len(good)
    assert [bound.holds(value) for value in bad] == [False] * len(bad)


# -- bugs in users' code ---------------------------------------------------------------------------


def _raised(error):
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    "error", [Diverged("x"), FloatingPointError("x"), OverflowError("x"), OSError("made by hand")]
)
def test_divergence_is_no_bug(error):
    assert traceback_of(error if isinstance(error, OSError) else _raised(error)) == ""


def test_only_the_users_frames_are_shown_and_of_every_error_in_the_chain():
    def hook(vector):
        try:
            Layout.of_arrays({"w": np.zeros(2, np.float32)}).unflatten(vector)
        except Exception as error:
            raise KeyError("mine") from error

    with pytest.raises(KeyError) as caught:
        hook(None)
    trace = traceback_of(caught.value)
    assert trace.count('File "') == trace.count(f'File "{__file__}"') == 3
    assert "the direct cause" in trace
    assert traceback_of(caught.value, chain=False).count('File "') == 2
    assert len(place_of(trace)) == 3


def test_without_a_users_frame_all_are_shown():
    with pytest.raises(ValueError, match="shape") as caught:
        Layout.of_arrays({"w": np.zeros(2, np.float32)}).flatten([np.zeros(3, np.float32)])
    error = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    assert 'layout.py"' in traceback_of(error)


@pytest.mark.parametrize(
    ("code", "text"), [("WINDOWS-1252", b"\x80 5"), ("UTF-16", b"\xff\xfea\0")]
)
def test_the_error_of_a_text_that_is_not_utf_8_has_a_command_that_converts_it(code, text):
    with pytest.raises(UnicodeDecodeError) as error:
        text.decode()
    assert error_text(error.value).endswith(f"; iconv -f {code} -t UTF-8 FILE > NEW")


def test_an_uncalled_method_that_may_be_a_misspelt_hook_is_logged(caplog):
    class Base:
        def penalty(self): ...
        def begin(self): ...

    class Right(Base):
        def penalty(self):
            return self.penalties()

        def penalties(self): ...
        def begin(self):
            return [each.begins() for each in self]

        def begins(self): ...

    class Wrong(Base):
        def penallty(self): ...
        def on_begin(self): ...

    check_names(Right)
    check_names(Wrong)
    messages = sorted(record.getMessage() for record in caplog.records)
    assert messages == [
        "Wrong.on_begin is called by nothing: did you mean begin?",
        "Wrong.penallty is called by nothing: did you mean penalty?",
    ]


@pytest.mark.parametrize("name", ["penalty", "name", "state"])
def test_fields_that_would_hide_something_else_are_refused(name):
    class Base:
        name = property(str)

        def penalty(self): ...

    with pytest.raises(TypeError, match=rf"Own\.{name} hides {name} of Base"):
        check_names(type("Own", (Base,), {"__annotations__": {name: float}}))


# -- missing packages -----------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parents[3]


def test_each_extra_installs_the_packages_in_the_messages():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    by_flower = dict(dp_accounting="flwr[dp]", ray="flwr[simulation]", datasets="flwr-datasets")
    distributions = packages_distributions()
    for package, extra in EXTRAS.items():
        distribution = by_flower.get(package) or distributions[package][0].lower()
        names = [re.split("[<>=]", line)[0] for line in extras[extra]]
        assert distribution in names, package


def test_the_error_of_a_missing_package_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)  # as if it were not installed
    message = r"^scipy is not installed: pip install 'fl-app\[server\]'$"
    with pytest.raises(ValueError, match=message), explaining_imports():
        import scipy  # noqa: F401
    with pytest.raises(ValueError, match=message):
        require_installed("ray", "scipy")
    assert lacking("ray") is None


# -- events ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (
            Dispatched(0.5, 3, 7, version=2, parts=[1, 2, 1], beside=True),
            '{"kind": "dispatch", "t": 0.5, "client": 3, "order": 7, "version": 2, "bytes": 0, '
            '"parts": [1, 2, 1], "beside": true}',
        ),
        (
            Arrived(1.5, 3, 7, base_version=2, age=1, bytes=4),
            '{"kind": "arrival", "t": 1.5, "client": 3, "order": 7, "base_version": 2, "age": 1, '
            '"loss": null, "bytes": 4}',
        ),
        (
            Aggregated(2.0, 4, client=[3], order=[7], age=[1], report={"weight": [1.0]}),
            '{"kind": "aggregate", "t": 2.0, "version": 4, "client": [3], "order": [7], '
            '"age": [1], "weight": [1.0]}',
        ),
        (Rejected(3.0, reason="duplicate"), '{"kind": "reject", "t": 3.0, "reason": "duplicate"}'),
    ],
)
def test_an_event_becomes_one_flat_object_and_can_be_restored(event, line):
    assert json.dumps(to_json(event)) == line
    assert from_json(json.loads(line)) == event


def test_invalid_events_are_refused():
    with pytest.raises(KeyError, match="party"):
        from_json({"kind": "party", "t": 1.0})
    with pytest.raises(TypeError, match=r"missing .* 'version'"):
        from_json({"kind": "checkpoint", "t": 1.0})
