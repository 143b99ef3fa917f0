"""Which column of a table is what."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from fl_app.core.errors import require
from fl_app.tasks.schema import Schema

# What pandas calls columns without a name: numbers of rows, from which classes could be told.
NAMELESS = re.compile(r"Unnamed: \d+|__index_level_\d+__")


@dataclass(frozen=True)
class Roles:
    """What a user says of a table's columns.

    Attributes:
        target: columns to predict; () = those of the schema.
        inputs: columns to predict from; None = all that have no other role, or those of the schema.
        ignore: columns that are no inputs.
        categories: input columns whose numbers are names.
        client: column that says whose a row is; None = nobody's.
        partition_by: column by which a partition distributes the rows, whatever its other role.
    """

    target: tuple[str, ...]
    inputs: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    client: str | None = None
    partition_by: str | None = None

    def texts(self, schema: Schema | None) -> set[str]:
        """Columns whose values are read as texts, so that 01 and 1 remain two names."""
        own = {*self.target, *self.categories} | ({self.client} if self.client else set())
        if schema is None:
            return own
        return own.union(schema.targets, (c.name for c in schema.columns if c.categories))

    def renamed(self, names: Mapping[str, tuple[str, ...]]) -> "Roles":
        """The same roles of a table where columns have other names.

        Args:
            names: of a column, the columns in its place.
        """

        def new(old: Sequence[str]) -> tuple[str, ...]:
            return tuple(chain.from_iterable(names.get(name, (name,)) for name in old))

        return replace(
            self,
            target=new(self.target),
            inputs=None if self.inputs is None else new(self.inputs),
            categories=new(self.categories),
        )

    def resolve(
        self, present: Sequence[str], schema: Schema | None, where: str
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the input columns and of the target columns.

        Args:
            present: the table's columns.
            schema: of the data, which decides where it is given.
            where: the table, for messages.

        Raises:
            ValueError: a column does not exist or has two roles, there is no target or no input, or
                the schema has another target.
        """
        targets = self.target or (schema.targets if schema else ())
        there = f"a column of {where}, which has {', '.join(present)}"
        require(len(targets) > 0, "task.target", "null", there, "nobody could say what to predict")
        require(
            schema is None or targets == schema.targets,
            "task.target",
            _listed(targets),
            f"{_listed(schema.targets if schema else ())} as in task.schema, or null",
            "the model of the schema predicts that",
        )
        if schema is not None:
            inputs = tuple(column.name for column in schema.columns)
        elif self.inputs is not None:
            inputs = self.inputs
        else:
            others = {*targets, *self.ignore, self.client}
            inputs = tuple(
                name for name in present if name not in others and not NAMELESS.match(name)
            )
        for key, names in (
            ("task.target", targets),
            ("task.client", (self.client,) if self.client is not None else ()),
            ("partition.partition_by", (self.partition_by,) if self.partition_by else ()),
            ("task.inputs" if schema is None else "a column of task.schema", inputs),
            ("task.ignore", self.ignore if schema is None else ()),
            ("task.categories", self.categories if schema is None else ()),
        ):
            for name in names:
                require(name in present, key, name, there, "it cannot be read")
        require(len(inputs) > 0, "task.inputs", "[]", there, "there is nothing to predict from")
        both = sorted({*inputs} & {*targets})
        require(
            not both, "task.inputs", _listed(inputs), f"without {_listed(both)}", "it is the target"
        )
        return inputs, targets


def roles_of(
    target: str | Sequence[str] | None,
    inputs: str | Sequence[str] | None,
    client: str | None,
    ignore: str | Sequence[str] = (),
    categories: str | Sequence[str] = (),
    partition_by: str | None = None,
) -> Roles:
    """Roles from values of the configuration, where one name need not be a list."""
    return Roles(
        target=_names(target),
        inputs=None if inputs is None else _names(inputs),
        ignore=_names(ignore),
        categories=_names(categories),
        client=client,
        partition_by=partition_by,
    )


def _names(value: str | Sequence[str] | None) -> tuple[str, ...]:
    # Hydra reads a name such as 2020 as a number.
    if isinstance(value, str | int | float):
        return (str(value),)
    return tuple(str(name) for name in value or ())


def _listed(names: Sequence[str]) -> str:
    return f"[{', '.join(names)}]" if len(names) != 1 else names[0]
