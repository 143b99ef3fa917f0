"""What torch was built for, as its files tell."""

from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from fl_app.client import backend


@pytest.mark.parametrize(
    ("files", "build"),
    [
        (None, "none"),
        (["__init__.py", "lib/libtorch_cpu.so"], "cpu"),
        (["__init__.py", "lib/libtorch_cpu.so", "lib/libtorch_cuda.so"], "cuda"),
    ],
)
def test_what_the_installed_torch_was_built_for(
    files: list[str] | None, build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files or ():
        (tmp_path / "torch" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "torch" / name).touch()
    monkeypatch.setattr(
        backend, "find_spec", lambda name: PathFinder.find_spec(name, [str(tmp_path)])
    )
    assert backend.torch_build() == build
