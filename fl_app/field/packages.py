"""Install packages into a virtual environment, with a torch that fits the machine.

    python3 packages.py --venv .venv --constraints constraints.txt fl_app-0.1.0-py3-none-any.whl

It runs before anything is installed, so it needs Python alone, and nothing of this project. Where
PyTorch's own index cannot be reached, it takes what comes nearest from elsewhere and says so.
"""

from __future__ import annotations  # an old Python must be able to read this file, to be refused

import argparse
import os
import platform
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

LEAST = (3, 11)
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
# Tests of these packages themselves, and a compiler that none of them calls: 300 MB.
TESTED = ("matplotlib", "mpmath", "networkx", "numpy", "pandas", "scipy", "sklearn", "sympy")
NEVER_RUN = (
    *("torch/test", "torch/bin/test_*", "torch/bin/protoc*"),
    *(f"{package}/**/tests" for package in TESTED),
)
# What pip is told by its variables, uv is told by others.
VARIABLES = {
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_NO_INDEX": "UV_NO_INDEX",
    "PIP_CERT": "SSL_CERT_FILE",
}
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
ILLEGAL = (-4, 132)  # exit statuses after SIGILL, here and in a shell


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
        cache: folder for downloads; None = uv's own.
    """

    def __init__(self, folder: Path, pins: Sequence[str], cache: Path | None) -> None:
        self.folder = folder
        self.python, self.uv = folder / "bin" / "python", folder / "bin" / "uv"
        self.pins = pins
        self._cache = cache
        self._variables = uv_variables(os.environ)

    def make(self, *, above: bool) -> None:
        """Make the environment, unless it is there, and put uv into it.

        Args:
            above: whether it sees what is installed beside the interpreter.

        Raises:
            InstallError: venv is missing, the folder cannot be written to, or uv cannot be had.
        """
        if not self.runs("import pip"):
            words = ["--system-site-packages"] if above else []
            _run([sys.executable, "-m", "venv", "--clear", *words, str(self.folder)])
        with tempfile.TemporaryDirectory() as scratch:
            pins = _write(scratch, "pins", self.pins)
            pip = [str(self.python), "-m", "pip", "--disable-pip-version-check", "--quiet"]
            words = ["--retries", "2", "install", "--constraint", pins, "uv"]
            if not self.uv.exists():  # one beside the interpreter would be enough for pip
                words.append("--ignore-installed")
            done = subprocess.run([*pip, *words], capture_output=True, text=True)
        if done.returncode != 0:
            raise InstallError(_explained(done.stderr))

    def runs(self, code: str) -> bool:
        """Whether the environment's Python carries out these lines."""
        try:
            return subprocess.run([self.python, "-c", code], capture_output=True).returncode == 0
        except OSError:
            return False

    def torch(self, *words: str, pinned: bool = True) -> str | None:
        """The version of torch that would be installed with these words; None = none.

        Args:
            words: for ``uv pip compile``.
            pinned: whether the constraints hold.
        """
        with tempfile.TemporaryDirectory() as scratch:
            pins = _write(scratch, "pins", self.pins if pinned else ())
            wanted = _write(scratch, "wanted", ["torch"])
            plain = ["--quiet", "--no-deps", "--no-header", "--no-annotate"]
            soon = {"UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "1"}
            done = subprocess.run(
                self._uv("compile", *plain, "--constraints", pins, *words, wanted),
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
        with tempfile.TemporaryDirectory() as scratch:
            words = [] if sys.stderr.isatty() else ["--quiet"]
            words += ["--constraints", _write(scratch, "pins", pins)]
            words += ["--build-constraints", _write(scratch, "build", self.pins)]
            words += ["--excludes", _write(scratch, "excluded", plan.excluded)]
            # A service may not write beside its modules, and would compile them at every start.
            words += ["--compile-bytecode", *plan.words, *requirements]
            _run(self._uv("install", *words), self._variables)
        for pattern in NEVER_RUN:
            for path in list(self.folder.glob(f"lib/python*/site-packages/{pattern}")):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)  # of a folder that is gone

    def problems(self) -> set[str]:
        """What installed packages lack, a line each.

        Raises:
            InstallError: uv cannot be started.
        """
        try:
            done = subprocess.run(self._uv("check"), capture_output=True, text=True)
        except OSError as error:
            raise InstallError(f"{self.uv} cannot be started: {error}") from error
        return {line for line in done.stderr.splitlines() if " requires " in line}

    def _uv(self, command: str, *words: str) -> list[str]:
        cache = [] if self._cache is None else ["--cache-dir", str(self._cache)]
        return [str(self.uv), *cache, "pip", command, "--python", str(self.python), *words]


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


def plan_for(
    torch: str, environment: Environment, *, above: tuple[str, ...] = (), gpu: bool = False
) -> Plan:
    """Decide where torch comes from.

    Args:
        torch: ``"cpu"``, ``"cuda"``, ``"auto"`` (cpu, unless there is a GPU) or ``"none"``.
        environment: in which uv is.
        above: packages that are installed beside the interpreter, and are used.
        gpu: whether there is one of NVIDIA.
    """
    if torch == "none":
        return Plan("without torch", excluded=TORCH)
    if "torch" in above:
        return Plan(f"installed already, and used: {', '.join(above)}", excluded=above)
    if sys.platform != "linux" or torch == "cuda":
        return Plan()
    if torch == "auto" and gpu:
        own = ("--torch-backend", "auto")
        return Plan(words=own) if environment.torch(*own) else Plan()
    own = ("--torch-backend", "cpu")
    if environment.torch(*own):
        return Plan(words=own)
    found = environment.torch("--no-index", pinned=False)
    if found is not None and found.endswith("+cpu"):
        return Plan(
            f"PyTorch's index cannot be reached: torch {found} of the folder given by "
            "PIP_FIND_LINKS or UV_FIND_LINKS is taken",
            pins=(f"torch=={found}",),
        )
    if platform.machine() == "aarch64":
        return Plan(
            f"PyTorch's index cannot be reached: {AARCH64[0]} is taken, the newest of the default "
            "index without CUDA for this processor",
            pins=AARCH64,
        )
    return Plan(
        "PyTorch's index cannot be reached, and the default index has torch for CUDA only: CUDA's "
        "libraries are installed too, except those that a processor never loads, which costs 2.2 "
        "GB of downloads and 3.4 GB of disk",
        excluded=NEVER_LOADED,
    )


def beside_interpreter() -> tuple[str, ...]:
    """What can be imported of torch, torchvision and NumPy outside of every environment.

    A torchvision without its operators counts: another one would not fit that torch better.
    """
    python = getattr(sys, "_base_executable", sys.executable)
    found = []
    for package in (*TORCH, "numpy"):
        command = [python, "-I", "-c", f"import {package}"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0 or NO_OPERATORS in done.stderr:
            found.append(package)
    return tuple(found)


def has_nvidia() -> bool:
    """Whether this machine has a driver for an NVIDIA GPU."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def check_torch(environment: Environment) -> str:
    """The version of the torch that was installed, after a computation.

    Raises:
        InstallError: it does not compute.
    """
    done = subprocess.run([environment.python, "-c", PROBE], capture_output=True, text=True)
    if done.returncode in ILLEGAL:
        raise InstallError(
            "torch ends with `Illegal instruction`: it was built for newer processors than this "
            f"{platform.machine()}; constrain torch to another version, such as {AARCH64[0]}"
        )
    if done.returncode != 0:
        reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
        raise InstallError(f"torch was installed and does not compute: {reason}")
    return done.stdout.strip()


def check_torchvision(environment: Environment) -> str:
    """What is to be told of the torchvision that was installed; "" = nothing.

    One that was built for another build of torch is usable without its compiled operators, which
    few programs call: from then on every Python of the environment imports it so.

    Raises:
        InstallError: it cannot be imported for another reason.
    """
    done = subprocess.run([environment.python, "-c", VISION], capture_output=True, text=True)
    if done.returncode == 0:
        return ""
    reason = (done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1]
    if NO_OPERATORS in reason:
        for packages in environment.folder.glob("lib/python*/site-packages"):
            (packages / TOLERATED).write_text(TOLERATE)
        return (
            "torchvision was built for another build of torch: it is imported without its compiled "
            "operators, such as nms; its data sets, transforms and classification models need none"
        )
    raise InstallError(
        f"torchvision was installed and cannot be imported: {reason}; every run with CIFAR, CelebA "
        "or a model of torchvision would fail: install the torchvision of this torch, or, where "
        "the base image brings torch, take a base with both"
    )


def _checked(environment: Environment, requirements: Sequence[str], plan: Plan) -> str:
    """The version of torch; installs the libraries that were left out if it needs them."""
    if "torch" in plan.excluded and not environment.runs("import torch"):
        return "none"
    try:
        return check_torch(environment)
    except InstallError as error:
        if plan.excluded != NEVER_LOADED:
            raise
        print(f"{error}; all of CUDA's libraries are installed now", flush=True)
    environment.install(requirements, Plan())
    return check_torch(environment)


def megabytes(folder: Path) -> float:
    """Megabytes (10**6 bytes) of all files below a folder, each counted once."""
    sizes = {}
    for base, _, names in os.walk(folder):
        for name in names:
            stat = os.lstat(os.path.join(base, name))
            sizes[stat.st_dev, stat.st_ino] = stat.st_size
    return sum(sizes.values()) / 1e6


def _run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> None:
    try:
        status = subprocess.run(command, env=variables).returncode
    except OSError as error:
        raise InstallError(f"{command[0]} cannot be started: {error}") from error
    if status != 0:
        shown = " ".join(command[:4])
        raise InstallError(f"`{shown} ...` failed with exit status {status}; see above")


def _explained(output: str) -> str:
    """Why pip failed, without its attempts and what it concludes from having no network."""
    if "after connection broken by" in output:
        return (
            "no package index can be reached: connect this machine to a network, or name a folder "
            "of wheels as PIP_FIND_LINKS"
        )
    return f"pip cannot install uv:\n{output.strip()}"


def _write(folder: str, name: str, lines: Sequence[str]) -> str:
    path = Path(folder) / f"{name}.txt"
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return str(path)


def refusal(version: tuple[int, ...], bits: int) -> str | None:
    """Why nothing can be installed for a Python; None if something can.

    Args:
        version: of Python, ``(major, minor, ...)``.
        bits: of its addresses.
    """
    if version[:2] < LEAST:
        shown, least = (".".join(map(str, v[:2])) for v in (version, LEAST))
        return f"Python {shown} must be at least {least}: Flower does not run on an older one"
    if bits < 64:
        return f"Python is of {bits} bits and must be of 64: torch has no packages for others"
    return None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, required=True, metavar="DIR", help="the environment")
    parser.add_argument(
        "--torch",
        choices=("auto", "cpu", "cuda", "none"),
        default="auto",
        help="build of torch (auto: cpu unless there is an NVIDIA driver)",
    )
    parser.add_argument(
        "--constraints",
        type=Path,
        metavar="FILE",
        default=os.environ.get("PIP_CONSTRAINT") or os.environ.get("UV_CONSTRAINT") or None,
        help="versions of packages (PIP_CONSTRAINT)",
    )
    parser.add_argument(
        "--system-site-packages",
        action="store_true",
        help="use the torch that is installed beside the interpreter, if there is one",
    )
    parser.add_argument(
        "--keep-cache", action="store_true", help="keep downloads in uv's cache, for another time"
    )
    parser.add_argument(
        "--editable", action="append", default=[], metavar="PATH", help="install a clone in place"
    )
    parser.add_argument("requirements", nargs="*", metavar="REQUIREMENT")
    return parser


def main() -> int:
    """Run the command line; return 0, or 1 if nothing usable was installed, or 2 if refused."""
    if told := refusal(sys.version_info[:3], 8 * struct.calcsize("P")):
        print(f"error: {told}", file=sys.stderr)
        return 2
    arguments = _parser().parse_args()
    folder = arguments.venv.absolute()
    # Beside the environment, because packages are linked from there, and /tmp may be in memory.
    cache = None if arguments.keep_cache else folder / ".cache"
    requirements = list(arguments.requirements)
    for path in arguments.editable:
        requirements += ["--editable", path]
    try:
        pins: list[str] = []
        if arguments.constraints is not None:
            pins = Path(arguments.constraints).read_text(encoding="utf-8").splitlines()
        environment = Environment(folder, pins, cache)
        environment.make(above=arguments.system_site_packages)
        above = beside_interpreter() if arguments.system_site_packages else ()
        plan = plan_for(arguments.torch, environment, above=above, gpu=has_nvidia())
        if plan.note:
            print(plan.note, flush=True)
        environment.install(requirements, plan)
        torch = _checked(environment, requirements, plan)
        if told := check_torchvision(environment):
            print(told, flush=True)
    except (InstallError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if cache is not None:
            shutil.rmtree(cache, ignore_errors=True)
    print(f"{folder}: {megabytes(folder):,.0f} MB, torch {torch}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
