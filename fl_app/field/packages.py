"""Install packages into a virtual environment, with a torch that fits the machine.

    python3 packages.py --venv .venv --constraints constraints.txt fl_app-0.1.0-py3-none-any.whl

``uv pip install --torch-backend`` does this if PyTorch's own index can be reached. Else this module
takes the nearest build, and prints a note. It runs before anything is installed, so it imports only
the standard library, and nothing of this project.
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
# Variables of pip, and those of uv with the same meaning.
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
# Fails if the import fails, but not if torchvision is missing, as on a device without torch.
VISION = (
    "import importlib, importlib.util\n"
    "importlib.util.find_spec('torchvision') and importlib.import_module('torchvision')"
)
# The error of torchvision if its compiled operators were built for another build of torch.
NO_OPERATORS = "operator torchvision::nms does not exist"
# Python runs this file at its start, after the files that locate this package. Then `import
# torchvision` succeeds without its operators. It leaves no module behind: an app brings its own.
TOLERATED = "zz_fl_app_torchvision.pth"
TOLERATE = (
    "import sys, fl_app.tasks.vision; fl_app.tasks.vision.tolerate(); "
    "[sys.modules.pop(n) for n in [*sys.modules] if n.partition('.')[0] == 'fl_app']\n"
)


class InstallError(Exception):
    """Nothing usable was installed; the message says why."""


class Plan(NamedTuple):
    """Where torch comes from.

    Attributes:
        note: for the user; "" = none.
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
            above: whether it sees the packages of the interpreter's own environment.

        Raises:
            InstallError: venv is missing, the folder cannot be written to, or uv cannot be had.
        """
        if self.runs("import pip"):
            options = ["--system-site-packages"] if above else []
            _run([sys.executable, "-m", "venv", "--clear", *options, str(self.folder)])
        options = ["--retries", "2", "install", "--constraint", self._file("pins", self.pins), "uv"]
        if not self.uv.exists():  # else one of the interpreter's own environment satisfies pip
            options.append("--ignore-installed")
        _run([str(self.python), "-m", "pip", "--disable-pip-version-check", "--quiet", *options])

    def runs(self, code: str) -> str:
        """The last line of the error that some code raises in the environment; "" = none."""
        try:
            process = subprocess.run([self.python, "-c", code], capture_output=True, text=True)
        except OSError as error:
            return str(error)
        text = process.stderr.strip() or f"exit status {process.returncode}"
        if process.returncode < 0:  # such as of instructions that this processor lacks
            text = signal.strsignal(-process.returncode) or text
        return text.splitlines()[-1] if process.returncode else ""

    def torch(self, *words: str, pinned: bool = True) -> str | None:
        """The version of torch that would be installed with these words; None = none.

        Args:
            words: for ``uv pip compile``.
            pinned: whether the constraints hold.
        """
        pins, needs = self._file("pins", self.pins if pinned else ()), self._file("in", ["torch"])
        plain = ["--quiet", "--no-deps", "--no-header", "--no-annotate", "--constraints", pins]
        timeouts = {"UV_HTTP_TIMEOUT": "20", "UV_HTTP_RETRIES": "1"}
        process = subprocess.run(
            self._uv("compile", *plain, *words, needs),
            env={**self._variables, **timeouts},
            capture_output=True,
            text=True,
        )
        versions = [line.split()[0] for line in process.stdout.splitlines() if "==" in line]
        return versions[0].partition("==")[2] if process.returncode == 0 and versions else None

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


def uv_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """The environment for uv: `variables`, with those of pip translated for uv.

    Files of constraints are left out, since this program passes them as arguments.
    """
    result = {key: value for key, value in variables.items() if key != "UV_CONSTRAINT"}
    if CERTIFICATES.exists():  # uv has its own otherwise, and pip uses the system's
        result.setdefault("UV_SYSTEM_CERTS", "true")
    for pips, uvs in VARIABLES.items():
        if pips in variables and uvs not in variables:
            comma = uvs == "UV_FIND_LINKS"  # uv separates addresses of indexes by spaces, as pip
            result[uvs] = variables[pips].replace(" ", ",") if comma else variables[pips]
    return result


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
    backend = ("--torch-backend", "auto" if torch == "auto" and gpu else "cpu")
    if environment.torch(*backend):
        return Plan(words=backend)
    if backend[1] == "auto":
        return Plan()
    local = environment.torch("--no-index", pinned=False)
    if local is not None and local.endswith("+cpu"):
        place = "of the folder given by PIP_FIND_LINKS or UV_FIND_LINKS"
        return Plan(f"{OUT_OF_REACH}: torch {local} {place} is taken", pins=(f"torch=={local}",))
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
    """Check the installed torch and torchvision; return a note, "" = none.

    A torchvision that was built for another build of torch is usable without its compiled
    operators, which few programs call: afterwards, every Python of the environment imports it so.

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
    if status := subprocess.run(command, env=variables).returncode:
        start = " ".join(command[:4])
        raise InstallError(f"`{start} ...` failed with exit status {status}; see above")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog="Further words are for `uv pip install`.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--venv", type=Path, required=True, metavar="DIR", help="the environment")
    text = "build of torch (auto: cpu unless there is an NVIDIA driver)"
    add("--torch", choices=("auto", "cpu", "cuda", "none"), default="auto", help=text)
    default = os.environ.get("PIP_CONSTRAINT") or os.environ.get("UV_CONSTRAINT") or None
    text = "versions of packages (PIP_CONSTRAINT)"
    add("--constraints", type=Path, metavar="FILE", default=default, help=text)
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
        if arguments.torch != "none" and (note := check_torch(environment)):
            print(note, flush=True)
    except (InstallError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
