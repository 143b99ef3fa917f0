"""How a server's learning rate changes over a run."""

import pytest

from fl_app.core.rates import LinearDecay


def test_linear_decay_by_hand() -> None:
    """From 1 to 0.2 over 4 versions: 0.2 less each, and no less after the last."""
    decay = LinearDecay(to=0.2, versions=4)
    assert [decay.factor(v) for v in range(6)] == pytest.approx([1, 0.8, 0.6, 0.4, 0.2, 0.2])


@pytest.mark.parametrize(
    ("to", "versions", "text"),
    [
        (1.5, 10, r"to=1.5 must be in \[0, 1\]"),
        (-0.1, 10, "to=-0.1 must be"),
        (0.5, 0, "versions=0 must be an integer >= 1"),
    ],
)
def test_refused(to: float, versions: int, text: str) -> None:
    with pytest.raises(ValueError, match=rf"^algorithm\.strategy\.lr_schedule\.{text}"):
        LinearDecay(to, versions)
