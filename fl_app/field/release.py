"""A release: the packages of an update, as a list that the kit's authority has signed.

A release is a folder with wheels, the lock file ``constraints.txt``, and ``release.json``, which
has the name, length and SHA-256 of each of the others, and the authority's signature. A device
installs nothing that the list does not have.

Releases are numbered by the second in which they are made. A device takes no release with a smaller
number than one that it has had: a server, or whoever has taken it over, can hand out an old release
with its genuine signature.
"""

import hashlib
import json
import shutil
import tempfile
import time
from base64 import b64decode, b64encode
from binascii import Error as NoBase64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from fl_app.core.errors import require
from fl_app.field.certificates import load_certificate
from fl_app.field.gate import FILE

FOLDER = "release"  # in the server's folder
LIST, LOCK = "release.json", "constraints.txt"
PROJECT = "fl-app"
# What is signed begins with these bytes, so that no other signature of the authority fits.
PURPOSE = b"fl-app release 1\n"
LONGEST = 1 << 20  # bytes of a list
ECDSA = ec.ECDSA(hashes.SHA384())


class Refused(ValueError):
    """A release is not what the authority has signed, or not what this device may install."""


@dataclass(frozen=True, slots=True)
class File:
    """A file of a release.

    Args:
        sha256: in hexadecimal digits.
        size: bytes.
    """

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Release:
    """A list whose signature was verified.

    Args:
        number: larger than that of every earlier release.
        project: version of this project.
        files: by name; the lock file and the wheels.
    """

    number: int
    project: str
    files: Mapping[str, File]

    @property
    def wheels(self) -> list[str]:
        """Names of the wheels."""
        return sorted(name for name in self.files if name.endswith(".whl"))


def write_release(out: Path, authority: Path, lock: Path, wheels: Sequence[Path]) -> int:
    """Write a release, which replaces the one in the same folder.

    Args:
        out: folder of the release.
        authority: folder with ``ca.key``.
        lock: file with the versions of packages, a line each.
        wheels: of this project, and of what else devices are to install.

    Returns:
        Its number.

    Raises:
        ValueError: a wheel has no proper name or another version than the lock file, or there is
            not one wheel of this project.
    """
    key = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    project = _check_wheels(wheels, lock.read_text(encoding="utf-8"))
    number = max(int(time.time()), _number(out) + 1)
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        shutil.copy(lock, draft / LOCK)
        for wheel in wheels:
            shutil.copy(wheel, draft)
        files = {
            path.name: {"sha256": sha256(path), "size": path.stat().st_size}
            for path in sorted(draft.iterdir())
        }
        told = json.dumps({"number": number, "project": project, "files": files})
        signature = key.sign(PURPOSE + told.encode(), ECDSA)
        signed = {"release": told, "signature": b64encode(signature).decode()}
        (draft / LIST).write_text(json.dumps(signed))
        draft.chmod(0o755)
        shutil.rmtree(out, ignore_errors=True)
        draft.rename(out)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return number


def read_release(content: bytes, root: Path) -> Release:
    """The release of a signed list.

    Args:
        content: of ``release.json``.
        root: the authority's certificate.

    Raises:
        Refused: the signature is not the authority's, or the list is not in order.
        OSError: the certificate cannot be read.
    """
    authority = load_certificate(root).public_key()
    try:
        signed = json.loads(content)
        told = str(signed["release"]).encode()
        signature = b64decode(signed["signature"], validate=True)
    except (ValueError, TypeError, KeyError, NoBase64):
        raise Refused("the server's release has no list that can be read") from None
    if not isinstance(authority, ec.EllipticCurvePublicKey):
        raise Refused(f"{root} has no key on a NIST curve, with which releases are signed")
    try:
        authority.verify(signature, PURPOSE + told, ECDSA)
    except InvalidSignature:
        raise Refused(f"the release is not signed by the authority in {root}") from None
    listed = json.loads(told)  # the authority wrote it
    files = {name: File(entry["sha256"], entry["size"]) for name, entry in listed["files"].items()}
    if wrong := [name for name in files if not FILE.fullmatch(name)]:
        raise Refused(f"the release names {wrong[0]!r}, which is no name of a file")
    return Release(listed["number"], listed["project"], files)


def check_newer(release: Release, newest: int) -> None:
    """Refuse a release that is older than one that this device has had.

    Args:
        release: that the server offers.
        newest: largest number that this device has had; 0 = none.

    Raises:
        Refused: it is older.
    """
    if release.number < newest:
        raise Refused(
            f"release {release.number} is older than release {newest}, which this device has had: "
            "somebody may hand out an old release to bring back its faults"
        )


def check_file(path: Path, wanted: File) -> None:
    """Refuse a file that is not the one that was signed.

    Raises:
        Refused: its length or its SHA-256 differs.
    """
    size = path.stat().st_size
    if size != wanted.size or sha256(path) != wanted.sha256:
        raise Refused(
            f"{path.name} is not the file that was signed: it has {size} bytes of {wanted.size}, "
            "and another SHA-256"
        )


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def package_of(wheel: str) -> tuple[str, str]:
    """Normalised name and version of a wheel's package.

    Raises:
        ValueError: it is no name of a wheel.
    """
    try:
        name, version, _, _ = parse_wheel_filename(wheel)
    except InvalidWheelFilename as error:
        raise ValueError(f"{wheel} must have the name of a wheel: {error}") from None
    return name, str(version)


def _check_wheels(wheels: Sequence[Path], lock: str) -> str:
    """The version of this project in wheels that agree with a lock file."""
    pins = _pins(lock)
    projects = []
    for path in wheels:
        name, version = package_of(path.name)
        if name == PROJECT:
            projects.append(version)
        pinned = pins.get(name, [])  # several for several systems
        require(
            not pinned or any(pin.specifier.contains(version, True) for pin in pinned),
            "wheel",
            path.name,
            f"of the version in {LOCK} ({', '.join(map(str, pinned))})",
            "no device would install it",
        )
    require(
        len(projects) == 1,
        "wheels",
        ", ".join(path.name for path in wheels),
        f"exactly one of {PROJECT}, and others",
        "devices could not tell what to install",
    )
    return projects[0]


def _pins(lock: str) -> dict[str, list[Requirement]]:
    """The requirements of a lock file by the normalised name of their package."""
    found: dict[str, list[Requirement]] = {}
    for line in lock.splitlines():
        try:
            requirement = Requirement(line.partition("#")[0].strip())
        except InvalidRequirement:
            continue
        found.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return found


def _number(out: Path) -> int:
    """The number of the release in a folder; 0 if there is none."""
    try:
        signed = json.loads((out / LIST).read_text())
        return int(json.loads(signed["release"])["number"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0
