"""Install packages into a virtual environment, with a torch that fits the machine.

    python3 packages.py --venv .venv --constraints constraints.txt fl_app-0.1.0-py3-none-any.whl

``uv pip install --torch-backend`` does it where PyTorch's own index can be reached. Else this takes
what comes nearest, and says so. It runs before anything is installed, so it needs Python alone, and
nothing of this project.
"""

import argparse
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

TORCH = ("torch", "torchvision")
# For Linux on x86-64, the default index has builds for CUDA only. Of CUDA's libraries a processor
# never loads these: torch imports and trains without them. It is linked with all others.
NEVER_LOADED = (
    "cuda-bindings",
    "cuda-pathfinder",
    "nvidia-cuda-cccl",
    "nvidia-cusolver",
    "nvidia-nvjitlink",
    "nvidia-nvtx",
    "triton",
)
# On aarch64 it has builds for CUDA only from 2.11 on. 2.10.0 needs a newer processor than that of a
# Raspberry Pi 4.
AARCH64 = ("torch==2.9.1", "torchvision==0.24.1")
# What pip is told by its variables, uv is told by others.
VARIABLES = {
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_NO_INDEX": "UV_NO_INDEX",
    "PIP_CERT": "SSL_CERT_FILE",
}
OUT_OF_REACH = "PyTorch's index cannot be reached"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PROBE = "import torch; (torch.ones(8, 8) @ torch.ones(8, 8)).sum(); print(torch.__version__)"
# Fails as an import does; not if there is no torchvision, as on a device without torch.
VISION = (
    "import importlib, importlib.util\n"
    "importlib.util.find_spec('torchvision') and importlib.import_module('torchvision')"
)
# What torchvision says if its compiled operators were built for another build of torch.
NO_OPERATORS = "operator torchvision::nms does not exist"
# Python carries out this file at its start, after those that say where this package is. Then
# `import torchvision` succeeds without its operators.
TOLERATED = "zz_fl_app_torchvision.pth"
TOLERATE = "import fl_app.tasks.vision; fl_app.tasks.vision.tolerate()\n"


class InstallError(Exception):
    """Nothing usable was installed; the message says why."""


class Plan(NamedTuple):
    """Where torch comes from.

    Attributes:
        note: what is told; "" = nothing.
        words: for ``uv pip install``.
        pins: constraints in place of those of `TORCH`; None = those stay.
        excluded: packages that are not installed though others require them.
    """

    note: str = ""
    words: tuple[str, ...] = ()
    pins: tuple[str, ...] | None = None
    excluded: tuple[str, ...] = ()


class Environment:
    """A virtual environment with uv in it.

    Args:
        folder: of the environment.
        pins: constraints of versions, a line each.
    """

    def __init__(self, folder: Path, pins: Sequence[str]) -> None:
        self.folder = folder
        self.python, self.uv = folder / "bin" / "python", folder / "bin" / "uv"
        self.pins = pins
        self._variables = uv_variables(os.environ)

    def make(self, *, above: bool) -> None:
        """Make the environment, unless it is there, and put uv into it.

        Args:
            above: whether it sees what is installed beside the interpreter.

        Raises:
            InstallError: venv is missing, the folder cannot be written to, or uv cannot be had.
        """
        if self.runs("import pip"):
            words = ["--system-site-packages"] if above else []
            _run([sys.executable, "-m", "venv", "--clear", *words, str(self.folder)])
        words = ["--retries", "2", "install", "--constraint", self._file("pins", self.pins), "uv"]
        if not self.uv.exists():  # one beside the interpreter would be enough for pip
            words.append("--ignore-installed")
        pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        _run([*pip, *words])

    def runs(self, code: str) -> str:
        """The last line of what the environment's Python says against some code; "" = nothing."""
        try:
            done = subprocess.run([self.python, "-c", code], capture_output=True, text=True)
        except OSError as error:
            return str(error)
        told = done.stderr.strip() or f"exit status {done.returncode}"
        if done.returncode < 0:  # such as of instructions that this processor lacks
            told = signal.strsignal(-done.returncode) or told
        return told.splitlines()[-1] if done.returncode else ""

    def torch(self, *words: str, pinned: bool = True) -> str | None:
        """The version of torch that would be installed with these words; None = none.

        Args:
            words: for ``uv pip compile``.
            pinned: whether the constraints hold.
        """
        pins, wanted = self._file("pins", self.pins if pinned else ()), self._file("in", ["torch"])
        plain = ["--quiet", "--no-deps", "--no-header", "--no-annotate", "--constraints", pins]
        soon = {"UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "1"}
        done = subprocess.run(
            self._uv("compile", *plain, *words, wanted),
            env={**self._variables, **soon},
            capture_output=True,
            text=True,
        )
        versions = [line.split()[0] for line in done.stdout.splitlines() if "==" in line]
        return versions[0].partition("==")[2] if done.returncode == 0 and versions else None

    def install(self, requirements: Sequence[str], plan: Plan) -> None:
        """Install packages and compile them to bytecode.

        Raises:
            InstallError: a package cannot be had or built, or the disk is full.
        """
        pins = list(self.pins)
        if plan.pins is not None:
            pins = [pin for pin in pins if pin.split("==")[0] not in TORCH] + list(plan.pins)
        words = [] if sys.stderr.isatty() else ["--quiet"]
        words += ["--constraints", self._file("torch", pins)]
        words += ["--build-constraints", self._file("pins", self.pins)]
        words += ["--excludes", self._file("excluded", plan.excluded)]
        # A service may not write beside its modules, and would compile them at every start.
        words += ["--compile-bytecode", *plan.words, *requirements]
        _run(self._uv("install", *words), self._variables)

    def _uv(self, command: str, *words: str) -> list[str]:
        return [str(self.uv), "pip", command, "--python", str(self.python), *words]

    def _file(self, name: str, lines: Sequence[str]) -> str:
        path = self.folder / f"{name}.txt"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return str(path)


def uv_variables(given: Mapping[str, str]) -> dict[str, str]:
    """The environment for uv: `given`, with what it tells pip and not uv.

    Files of constraints are left out: they are arguments here.
    """
    told = {key: value for key, value in given.items() if key != "UV_CONSTRAINT"}
    if CERTIFICATES.exists():  # uv has its own otherwise, and pip uses the system's
        told.setdefault("UV_SYSTEM_CERTS", "true")
    for pips, uvs in VARIABLES.items():
        if pips in given and uvs not in given:
            comma = uvs == "UV_FIND_LINKS"  # uv separates addresses of indexes by spaces, as pip
            told[uvs] = given[pips].replace(" ", ",") if comma else given[pips]
    return told


def plan_for(torch: str, environment: Environment, *, gpu: bool) -> Plan:
    """Decide where torch comes from.

    Args:
        torch: ``"cpu"``, ``"cuda"``, ``"auto"`` (cpu, unless there is a GPU) or ``"none"``.
        environment: in which uv is.
        gpu: whether there is one of NVIDIA.
    """
    if torch == "none":
        return Plan("no torch is installed", excluded=TORCH)
    if torch == "cuda":
        return Plan()
    own = ("--torch-backend", "auto" if torch == "auto" and gpu else "cpu")
    if environment.torch(*own):
        return Plan(words=own)
    if own[1] == "auto":
        return Plan()
    found = environment.torch("--no-index", pinned=False)
    if found is not None and found.endswith("+cpu"):
        where = "of the folder given by PIP_FIND_LINKS or UV_FIND_LINKS"
        return Plan(f"{OUT_OF_REACH}: torch {found} {where} is taken", pins=(f"torch=={found}",))
    if platform.machine() == "aarch64":
        newest = "the newest of the default index without CUDA for this processor"
        return Plan(f"{OUT_OF_REACH}: {AARCH64[0]} is taken, {newest}", pins=AARCH64)
    return Plan(
        f"{OUT_OF_REACH}, and the default index has torch for CUDA only: CUDA's libraries are "
        "installed too, except those that a processor never loads, which costs 2.2 GB of downloads "
        "and 3.4 GB of disk",
        excluded=NEVER_LOADED,
    )


def check_torch(environment: Environment) -> str:
    """What is to be told of the torch and the torchvision that were installed; "" = nothing.

    A torchvision that was built for another build of torch is usable without its compiled
    operators, which few programs call: from then on every Python of the environment imports it so.

    Raises:
        InstallError: torch does not compute, or torchvision cannot be imported for another reason.
    """
    if problem := environment.runs(PROBE):
        raise InstallError(f"torch was installed and does not compute: {problem}")
    problem = environment.runs(VISION)
    if NO_OPERATORS in problem:
        for packages in environment.folder.glob("lib/python*/site-packages"):
            (packages / TOLERATED).write_text(TOLERATE)
        return (
            "torchvision was built for another build of torch: it is imported without its compiled "
            "operators, such as nms; its data sets, transforms and classification models need none"
        )
    if problem:
        raise InstallError(
            f"torchvision was installed and cannot be imported: {problem}; every run with CIFAR, "
            "CelebA or a model of torchvision would fail: install the torchvision of this torch"
        )
    return ""


def _run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
    status = subprocess.run(command, env=variables).returncode
    if status != 0:
        shown = " ".join(command[:4])
        raise InstallError(f"`{shown} ...` failed with exit status {status}; see above")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Further words are for `uv pip install`.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--venv", type=Path, required=True, metavar="DIR", help="the environment")
    text = "build of torch (auto: cpu unless there is an NVIDIA driver)"
    add("--torch", choices=("auto", "cpu", "cuda", "none"), default="auto", help=text)
    known = os.environ.get("PIP_CONSTRAINT") or os.environ.get("UV_CONSTRAINT") or None
    text = "versions of packages (PIP_CONSTRAINT)"
    add("--constraints", type=Path, metavar="FILE", default=known, help=text)
    text = "see what is installed beside the interpreter, such as torch (with --torch none)"
    add("--system-site-packages", action="store_true", help=text)
    return parser


def main() -> int:
    """Run the command line; return 0, or 1 if nothing usable was installed."""
    arguments, requirements = _parser().parse_known_args()
    try:
        pins = arguments.constraints.read_text("utf-8") if arguments.constraints else ""
        environment = Environment(arguments.venv.absolute(), pins.splitlines())
        environment.make(above=arguments.system_site_packages)
        gpu = Path("/proc/driver/nvidia/version").exists() or bool(shutil.which("nvidia-smi"))
        plan = plan_for(arguments.torch, environment, gpu=gpu)
        if plan.note:
            print(plan.note, flush=True)
        environment.install(requirements, plan)
        if arguments.torch != "none" and (told := check_torch(environment)):
            print(told, flush=True)
    except (InstallError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
