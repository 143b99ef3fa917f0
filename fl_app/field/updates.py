"""Takes an update from the server: ``python -m fl_app.field.updates FOLDER``.

The device fetches the release's list with its key, and verifies the authority's signature. Then it
copies the environment that runs this command, installs into the copy those wheels of the release
that it needs and has not, and lets `doctor` look at the copy. If nothing is wrong, the copy is used
from the next start on (`fl_app.field.versions`). Nothing comes from anywhere but the release.

The exit status is 0 if there is nothing to do, `READY` if the next start uses another environment,
and else 1.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import distributions
from pathlib import Path

import httpx
from packaging.tags import Tag, sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

from fl_app.field.gate import RELEASE
from fl_app.field.health import PATIENCE, trusting
from fl_app.field.identity import signed
from fl_app.field.kit import Kit
from fl_app.field.packages import TORCH, Environment, InstallError, Plan
from fl_app.field.release import (
    LIST,
    LOCK,
    LONGEST,
    PROJECT,
    File,
    Refused,
    Release,
    check_file,
    check_newer,
    package_of,
    read_release,
)
from fl_app.field.versions import Versions, clone

READY = 10  # exit status
PARTS = 1 << 20  # bytes
NICE = 19  # the device may be training


class Source:
    """The server's release, as a device with a registered key may fetch it.

    Args:
        kit: the device's folder.
    """

    def __init__(self, kit: Kit) -> None:
        context = trusting(kit)
        assert context is not None  # a kit without certificates has no key either
        self._kit, self._context = kit, context

    def fetch(self, name: str, path: Path, most: int) -> bool:
        """Write one of the release's files to a path.

        Args:
            name: of the file.
            path: to which it is written.
            most: bytes after which the server is not listened to any more.

        Returns:
            Whether the release has the file.

        Raises:
            httpx.HTTPError: the server does not answer, or refuses.
            Refused: the file has more than `most` bytes.
            OSError: it cannot be written.
        """
        with httpx.stream(
            "GET",
            f"https://{self._kit.address}{RELEASE}{name}",
            headers=signed(self._kit.folder / "node.key"),
            verify=self._context,
            timeout=PATIENCE,
            trust_env=False,  # devices connect directly, as SuperNodes do
        ) as response:
            if response.status_code == httpx.codes.NOT_FOUND:
                return False
            response.raise_for_status()
            size = 0
            with path.open("wb") as file:
                for part in response.iter_bytes(PARTS):
                    size += len(part)
                    if size > most:
                        raise Refused(f"{name} has more than the {most} bytes that it may have")
                    file.write(part)
        return True


def take(kit: Kit, source: Source) -> bool:
    """Install the server's release beside the environment that runs this, and switch to it.

    Args:
        kit: the device's folder.
        source: of the release.

    Returns:
        Whether the next start uses another environment.

    Raises:
        Refused: the release is not the authority's, or an old one.
        InstallError: it cannot be installed, or `doctor` finds something wrong in it.
        httpx.HTTPError: the server does not answer, or refuses.
        OSError: the disk is full.
    """
    versions = Versions(kit.folder)
    versions.folder.mkdir(exist_ok=True)
    downloads = versions.folder / "downloads"
    downloads.mkdir(exist_ok=True)
    if not source.fetch(LIST, downloads / LIST, LONGEST):
        return False
    release = read_release((downloads / LIST).read_bytes(), kit.folder / "ca.crt")
    record = versions.record
    check_newer(release, record.newest)
    if release.number in (versions.current, record.failed):
        return False
    if not versions.complete(release.number):
        _install(release, source, downloads, versions)
    _examine(release, versions, kit)
    versions.switch(release.number)
    for file in downloads.iterdir():
        file.unlink()
    print(f"release {release.number} ({PROJECT} {release.project}) is installed", flush=True)
    return True


def wanted(
    release: Release, installed: Mapping[str, str], tags: Iterable[Tag] | None = None
) -> list[str]:
    """The wheels of a release that a machine needs and has not.

    Args:
        release: of which some.
        installed: version of each package, by its normalised name.
        tags: of the wheels that the machine can run, the best ones first; None = of this one.

    Returns:
        Names of wheels: of this project always, for versions are not renewed with every change; of
        torch only where there is one.
    """
    ranks = {tag: rank for rank, tag in enumerate(tags or sys_tags())}
    best: dict[str, tuple[int, str]] = {}
    for wheel in release.wheels:
        name, version = package_of(wheel)
        fits = [ranks[tag] for tag in parse_wheel_filename(wheel)[3] if tag in ranks]
        absent = name in TORCH and name not in installed
        if not fits or absent or (installed.get(name) == version and name != PROJECT):
            continue
        best[name] = min((min(fits), wheel), best.get(name, (len(ranks), "")))
    return sorted(wheel for _, wheel in best.values())


def _install(release: Release, source: Source, downloads: Path, versions: Versions) -> None:
    """Install a release into a copy of this environment."""
    if sys.prefix == sys.base_prefix:
        raise InstallError("this Python runs in no virtual environment, which could be copied")
    installed: dict[str, str] = {
        canonicalize_name(found.metadata["Name"]): found.version for found in distributions()
    }
    wheels = wanted(release, installed)
    for name in (LOCK, *wheels):
        _download(name, release.files[name], source, downloads)
    before = Environment(Path(sys.prefix), [], None).problems()
    path = versions.new(release.number)
    clone(Path(sys.prefix), path)
    pins = (downloads / LOCK).read_text(encoding="utf-8").splitlines()
    environment = Environment(path, pins, path / ".cache")
    words = ("--offline", "--no-index", "--no-deps", "--reinstall-package", PROJECT)
    try:
        environment.install([str(downloads / wheel) for wheel in wheels], Plan(words=words))
        if problems := sorted(environment.problems() - before):
            raise InstallError(
                f"release {release.number} is not complete: {problems[0]}; make one with that "
                "wheel: `python -m fl_app.field update --wheels DIR`"
            )
    except InstallError as error:  # it would be the same the next time
        versions.refuse(release.number, str(error))
        raise
    finally:
        shutil.rmtree(path / ".cache", ignore_errors=True)
    versions.finish(release.number)


def _download(name: str, file: File, source: Source, downloads: Path) -> None:
    """Fetch a file, unless an earlier attempt has got it."""
    path = downloads / name
    try:
        check_file(path, file)
    except (FileNotFoundError, Refused):
        if not source.fetch(name, path, file.size):
            raise Refused(f"the server has not got {name}, which its release names") from None
        check_file(path, file)


def _examine(release: Release, versions: Versions, kit: Kit) -> None:
    """Let the doctor of a new environment look at this device."""
    python = versions.environment(release.number) / "bin" / "python"
    done = subprocess.run(
        [python, "-m", "fl_app.field", "doctor", kit.folder],
        env={**os.environ, "COLUMNS": "500"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        output = (done.stdout.strip() or done.stderr.strip()).splitlines()
        found = [line.strip() for line in output if "WRONG" in line] or output[-1:]
        raise InstallError(
            f"release {release.number} is not used: its doctor says {'; '.join(found)}"
        )


def main() -> int:
    """The command line."""
    os.nice(NICE)
    kit = Kit.read(Path(sys.argv[1]))
    try:
        return READY if take(kit, Source(kit)) else 0
    except (Refused, InstallError, OSError, httpx.HTTPError) as error:
        print(f"no update: {error}", flush=True)
        return 1


if __name__ == "__main__":
    sys.exit(main())
