"""What computes a model: torch, or NumPy on a machine without torch."""

from importlib.util import find_spec

from fl_app.core.errors import require

AUTO, TORCH, NUMPY = "auto", "torch", "numpy"
BACKENDS = (AUTO, TORCH, NUMPY)


def has_torch() -> bool:
    """Whether torch is installed; it is not imported."""
    return find_spec("torch") is not None


def backend_of(configured: str) -> str:
    """``"torch"`` or ``"numpy"``: what ``runtime.backend`` comes to on this machine.

    Args:
        configured: ``"auto"`` takes torch where it is installed, else NumPy.

    Raises:
        ValueError: the backend is unknown, or it is torch and torch is not installed.
    """
    require(
        configured in BACKENDS,
        "runtime.backend",
        configured,
        f"one of {', '.join(BACKENDS)}",
        "nothing else computes models",
    )
    if configured == AUTO:
        return TORCH if has_torch() else NUMPY
    require(
        configured == NUMPY or has_torch(),
        "runtime.backend",
        configured,
        "auto or numpy here",
        "torch is not installed",
    )
    return configured


def refuse_weights(weights: object) -> None:
    """Refuse first weights of a file for a model that NumPy computes.

    Args:
        weights: ``task.weights``; None = random ones.

    Raises:
        ValueError: there are some.
    """
    require(
        weights is None,
        "task.weights",
        weights,
        "null with runtime.backend=numpy",
        "torch reads these files",
    )
