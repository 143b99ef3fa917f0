"""Which errors are bugs of a client's code, and which of their frames a user is shown."""

from typing import Any

import numpy as np
import pytest

from fl_app.core.bugs import place_of, traceback_of
from fl_app.core.errors import Diverged
from fl_app.core.layout import Layout


def _raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    "error", [Diverged("x"), FloatingPointError("x"), OverflowError("x"), OSError("made by hand")]
)
def test_divergence_is_no_bug(error: Exception) -> None:
    assert traceback_of(error if isinstance(error, OSError) else _raised(error)) == ""


def test_only_the_users_frames_are_shown_and_of_every_error_in_the_chain() -> None:
    def hook(vector: Any) -> None:
        try:
            Layout.of_arrays({"w": np.zeros(2, np.float32)}).unflatten(vector)
        except Exception as error:
            raise KeyError("mine") from error

    with pytest.raises(KeyError) as caught:
        hook(None)
    told = traceback_of(caught.value)
    assert told.count('File "') == told.count(f'File "{__file__}"') == 3
    assert "the direct cause" in told
    assert traceback_of(caught.value, chain=False).count('File "') == 2
    assert len(place_of(told)) == 3


def test_without_a_users_frame_all_are_shown() -> None:
    with pytest.raises(ValueError, match="shape") as caught:
        Layout.of_arrays({"w": np.zeros(2, np.float32)}).flatten([np.zeros(3, np.float32)])
    error = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    assert 'layout.py"' in traceback_of(error)
