"""A task on a user's data."""

from dataclasses import dataclass

from fl_app.tasks.schema import Schema
from fl_app.tasks.task import Task


@dataclass(frozen=True, eq=False, repr=False, slots=True, kw_only=True)
class OwnTask(Task):
    """A task on a user's data.

    Attributes:
        schema: what must be known to encode other data alike.
        by_owner: whether its clients are the owners that the data name.
    """

    schema: Schema
    by_owner: bool = False
