"""Which versions of this project, Flower and torch the nodes of a server may have.

A server tells its nodes. A node of another version says so before it joins, and so before its first
order; `doctor` on the device, the server's log and the table of `field status` say it, too.
"""

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from fl_app.core.errors import require

VARIABLE = "NODE_VERSIONS"  # of the server's settings
PROJECT = "fl-app"
# Packages that a range may name, and what nodes call their versions (`fl_app.field.gate.TOLD`).
TOLD = {PROJECT: "project", "flwr": "flower", "torch": "torch"}


def ranges(setting: str = "") -> list[Requirement]:
    """The ranges of versions that nodes may have.

    Args:
        setting: value of ``NODE_VERSIONS``: requirements without blanks in them, such as
            ``fl-app>=0.1,<0.3 flwr>=1.41,<2``; "" = versions of this project that differ in their
            last part only, and every Flower that this project allows.

    Raises:
        ValueError: the setting is no list of such requirements.
    """
    found = []
    for word in setting.split() or _default():
        try:
            requirement = Requirement(word)
        except InvalidRequirement:
            requirement = None
        require(
            requirement is not None and requirement.name in TOLD,
            VARIABLE,
            setting,
            f"ranges such as fl-app>=0.1,<0.3, separated by blanks, of {', '.join(TOLD)}",
            "no node would know whether it may take orders",
        )
        assert requirement is not None
        found.append(requirement)
    return found


def written(allowed: list[Requirement]) -> str:
    """Ranges in the form of the setting."""
    return " ".join(map(str, allowed))


def outside(allowed: str, told: Mapping[str, str]) -> str:
    """What of a node is not within a server's ranges, in words; "" = nothing.

    A package that a node has not, or whose version is unknown, is within every range.

    Args:
        allowed: ranges as `written`; what cannot be read of them, by an older node, allows all.
        told: versions as a node tells them of itself.
    """
    try:
        known = ranges(allowed) if allowed else []
    except ValueError:
        return ""
    found = []
    for requirement in known:
        mine = told.get(TOLD[requirement.name], "")
        try:
            fits = not mine or requirement.specifier.contains(Version(mine), prereleases=True)
        except InvalidVersion:
            fits = True
        if not fits:
            found.append(f"{requirement.name} {mine} is not {requirement.specifier}")
    return ", ".join(found)


def versions_here() -> dict[str, str]:
    """The versions of this machine, as a node tells them; "" = the package is not installed."""
    return {name: _version(package) for package, name in TOLD.items()}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _default() -> list[str]:
    try:
        own = Version(version(PROJECT))
        wanted = [Requirement(line) for line in requires(PROJECT) or ()]
    except PackageNotFoundError:  # only copied
        return []
    flower = next(requirement for requirement in wanted if requirement.name == "flwr")
    return [f"{PROJECT}~={own.major}.{own.minor}.0", f"flwr{flower.specifier}"]
