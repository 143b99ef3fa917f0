"""Packages that only some commands need, and the extra of this project that installs each."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

# Top-level modules. What a device needs is always there.
_PACKAGES = {
    "server": ("dp_accounting", "scipy", "sklearn"),
    "report": ("altair", "jinja2", "markupsafe", "vl_convert"),
    "simulation": ("ray",),
    "datasets": ("datasets", "flwr_datasets"),
    "search": ("optuna",),
    "llm": ("peft", "transformers"),
}
EXTRAS = {package: extra for extra, packages in _PACKAGES.items() for package in packages}


@contextmanager
def explaining_imports() -> Iterator[None]:
    """A context in which a failed import raises an error that names the extra to install.

    Raises:
        ValueError: a package of `EXTRAS` is not installed.
    """
    try:
        yield
    except ImportError as error:
        if remedy := missing(error):
            raise ValueError(remedy) from error
        raise


@contextmanager
def explaining_app_imports() -> Iterator[None]:
    """A context for the imports of an app: Flower installs none of the packages that they need.

    Raises:
        ImportError: a package is not installed where Flower runs; the message says what to do.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error.name} is not installed in {sys.prefix}, where Flower runs this app: `make "
            "setup` or `pip install -e '.[server,simulation]'` installs it; then stop the "
            "SuperLink, since it keeps the environment in which it was started"
        ) from error


def missing(error: BaseException | None) -> str | None:
    """What to install after a failed import; None if no extra would help."""
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and error.name:
            package = error.name.partition(".")[0]
            if package in EXTRAS:
                return _remedy(package)
        error = error.__cause__
    return None


def lacking(*packages: str) -> str | None:
    """What to install before these packages of `EXTRAS` can be used; None if they are there."""
    absent = [package for package in packages if find_spec(package) is None]
    return _remedy(absent[0]) if absent else None


def require_installed(*packages: str) -> None:
    """Refuse to begin what would need a missing package later.

    Raises:
        ValueError: a package is not installed.
    """
    if remedy := lacking(*packages):
        raise ValueError(remedy)


def _remedy(package: str) -> str:
    return f"{package} is not installed: pip install 'fl-app[{EXTRAS[package]}]'"
