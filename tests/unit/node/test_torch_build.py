"""What torch was built for, as its files tell."""

from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from fl_app.node import room


@pytest.mark.parametrize(
    ("files", "build"),
    [
        (["__init__.py", "lib/libtorch_cpu.so"], "cpu"),
        (["__init__.py", "lib/libtorch_cpu.so", "lib/libtorch_cuda.so"], "cuda"),
    ],
)
def test_what_the_installed_torch_was_built_for(
    files: list[str], build: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in files:
        (tmp_path / "torch" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "torch" / name).touch()
    monkeypatch.setattr(room, "find_spec", lambda name: PathFinder.find_spec(name, [str(tmp_path)]))
    assert room.torch_build() == build
