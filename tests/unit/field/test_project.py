"""The project's files, of a clone and of an installed package."""

import shutil
import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

import pytest
from flwr.cli.build import build_fab_from_disk

from fl_app.field.project import (
    app_folder,
    build_wheel,
    own_modules,
)

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning")  # Flower's


def test_an_app_carries_the_modules_that_a_run_names(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    (there / "losses").mkdir(parents=True)
    here.mkdir()
    for file in (here / "my_model.py", there / "losses" / "focal.py", there / "losses" / "x.bin"):
        file.write_text("")
    words = ["task=csv", "task.model=my_model:make", "+task.loss='losses.focal:loss'"]
    words += ["task.schema=a:b", "task.model=torch.nn:Linear", "task.loss=fl_app.tasks:x"]
    modules = own_modules(words, [here, there, ROOT])
    assert modules == [here / "my_model.py", there / "losses"]
    with app_folder(modules) as folder:
        names = zipfile.ZipFile(BytesIO(build_fab_from_disk(folder))).namelist()
    assert {"my_model.py", "losses/focal.py", "fl_app/server_app.py"} <= {*names}
    with pytest.raises(ValueError, match=f"absent.py must lie in {here} or {there}"):
        own_modules(["task.model=absent:make"], [here, there])


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_wheel_makes_the_same_wheel_and_the_same_flower_app(tmp_path):
    """Once installed: an installed package can make a kit and submit runs as a clone does."""
    wheel = build_wheel(tmp_path)
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
        names = set(file.namelist())
    code = (
        "import sys; from pathlib import Path; from fl_app.field import project\n"
        "print(project.build_wheel(Path(sys.argv[1])))\n"
        "from flwr.cli.build import build_fab_from_disk\n"
        "with project.app_folder() as folder:\n"
        "    Path(sys.argv[1], 'fab').write_bytes(build_fab_from_disk(folder))\n"
    )
    again = tmp_path / "again"
    again.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", code, again], env={"PYTHONPATH": str(site)}, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(again.glob("*.whl"))) as file:
        assert set(file.namelist()) == names
    shutil.rmtree(site)
    assert (again / "fab").read_bytes() == build_fab_from_disk(ROOT)
