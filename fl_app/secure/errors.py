"""What the helper refuses."""

from collections.abc import Mapping


class Refused(Exception):
    """The helper does not tell the sum of masks that was asked for.

    Args:
        reason: why.
        members: place in the request -> why, of the uploads that are at fault; empty if the request
            as a whole is.
    """

    def __init__(self, reason: str, members: Mapping[int, str] | None = None) -> None:
        super().__init__(reason)
        self.members = dict(members or {})
