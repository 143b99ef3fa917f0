"""Tasks on data of the user's own: their common keys, and how examples are encoded."""

import json
import logging
import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fl_app.core.errors import require
from fl_app.core.hyper import BELOW_1, COUNT, Bound, bounded, one_of
from fl_app.core.types import Array, Flags, Indices
from fl_app.tasks.cache import Arrays, cached, digest, file_facts
from fl_app.tasks.encoding import KINDS, MISSING, Schema, read_schema
from fl_app.tasks.files import existing
from fl_app.tasks.kind import TaskKind

if TYPE_CHECKING:
    import pandas as pd

    from fl_app.tasks.scaling import Scaling
    from fl_app.tasks.task import Task

Names = str | Sequence[str]
READER = 17  # format of users' data in the cache; a new number makes old entries invalid
# Pandas's names of columns without a name: row numbers, which could give the classes away.
NAMELESS = r"Unnamed: \d+|__index_level_\d+__"
STREAM = 0x7465_7374_2073_6574  # keeps the test set's random numbers apart from all others
KIND = one_of("auto", *KINDS)

log = logging.getLogger(__name__)
_log_once = cache(log.log)  # a run may build its task twice


@dataclass(frozen=True, eq=False)
class Part:
    """Examples for training or for testing, as a reader finds them.

    Attributes:
        where: the data, for messages.
        inputs: columns of a table, n rows; or an array of shape ``(n, ...)``, whose bytes in four
            dimensions are images.
        targets: target columns, n rows.
        owners: owner of each example, n values; None = unknown.
        categories: columns of `inputs` whose numbers are names.
        notes: sentences for the user on changes of the data.
    """

    where: str
    inputs: "pd.DataFrame | Array"
    targets: "pd.DataFrame"
    owners: "pd.Series | None" = None
    categories: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(kw_only=True)
class OwnData(TaskKind):
    """A task on a user's data.

    Args:
        path: where the data are; None = no data, only a schema.
        test_share: share of the examples for the test set if the data have none, in [0, 1); 0 = no
            test set.
        model: a name, a classification model of torchvision, or package.module:callable; None (own
            data) = cnn for images, else mlp.
        schema: file of `python -m fl_app.schema`, or its contents; None = it follows from
            the training examples.

    Attributes:
        known: the schema, once it is read.
    """

    path: str | None = None
    test_share: float = bounded(0.2, BELOW_1, "it is a share of the examples")
    schema: str | None = None

    name: ClassVar[str]  # first part of the task's name
    what: ClassVar[str] = "file"  # or folder
    tabular: ClassVar[bool | None] = None  # whether its schema names columns; None = either

    def __post_init__(self) -> None:
        super().__post_init__()
        bound = "the place of the data; null needs task.schema"
        consequence = "the model's inputs and outputs would be unknown"
        fits = self.path is not None or self.schema is not None
        require(fits, "task.path", "null", bound, consequence)
        self.known = None if self.schema is None else read_schema(self.schema)
        fits = self.known is None or self.tabular in (None, bool(self.known.columns))
        bound = f"a schema of task={self.name}"
        require(fits, "task.schema", "...", bound, "it is of data of another form")
        for key in ("kind", "missing"):
            value, known = getattr(self, key, None), getattr(self.known, key, None)
            fits = known is None or value in (None, "auto", known)
            bound = f"{known} as in task.schema, or left out"
            require(fits, f"task.{key}", value, bound, "nodes and server would differ")

    @property
    def rule(self) -> str:
        """How rows that lack a value are treated, one of `MISSING`."""
        return self.known.missing if self.known else getattr(self, "missing", None) or "refuse"

    def files(self) -> Sequence[Path]:
        """The path and all files below it: if one changes, the data are read again.

        Raises:
            ValueError: a place does not exist.
        """
        place = existing(self.path or "", "task.path", self.what)
        return [place, *below(place)]

    @abstractmethod
    def read(self) -> tuple[Part, Part | None]:
        """The examples for training, and those for testing if the data have any.

        Raises:
            ValueError: the data cannot be read.
        """

    def kind_of(self, train: Part) -> str:
        """The kind of the targets, or ``"auto"``."""
        return str(getattr(self, "kind", "classification"))

    def encoded(self) -> Arrays:
        """The task's arrays, and as bytes (``about``) its schema and notes for the user.

        Raises:
            ValueError: inputs or targets cannot be encoded, or there are too few examples.
        """
        from fl_app.tasks import table  # loads pandas

        train, test = self.read()
        where, schema, notes = train.where, self.known, [*train.notes]
        if schema is None:
            kind, outputs = table.fit_targets(train.targets, self.kind_of(train), where)
        else:
            kind, outputs = schema.kind, schema.outputs
        targets = table.encode_targets(train.targets, kind, outputs, where)
        groups = targets if kind == "classification" else np.zeros(len(targets), np.int64)
        if train.owners is not None:
            names = table.in_order(table.texts_of(train.owners))
            groups = table.codes_of(train.owners, names, where)
        tested = choose_test(groups, 0 if test else self.test_share, where)
        if schema is None:
            schema = self._fitted(train, ~tested, targets, kind, outputs)
            notes += table.doubts(train, schema)
        inputs = encoded_inputs(train, schema)
        if self.known is not None:
            notes += [f"{where}: {each}" for each in table.unusual(schema, inputs, targets)]
        arrays = {"inputs": inputs[~tested], "targets": targets[~tested]}
        if train.owners is not None:
            arrays["owners"] = groups[~tested]
        if test is not None:
            notes += test.notes
            arrays["test_inputs"] = encoded_inputs(test, schema)
            arrays["test_targets"] = table.encode_targets(test.targets, kind, outputs, test.where)
        elif tested.any():
            arrays |= {"test_inputs": inputs[tested], "test_targets": targets[tested]}
        summary = table.overview(schema, len(targets), train.owners, where)
        about = json.dumps({"schema": schema.to_json(), "notes": notes, "found": summary})
        return {**arrays, "about": np.frombuffer(about.encode(), np.uint8)}

    def _fitted(self, part: Part, rows: Flags, targets: Array, kind: str, outputs: Any) -> Schema:
        """The schema of the data, with the moments of the training rows.

        Args:
            part: the data.
            rows: which examples are for training, shape ``(n,)``.
            targets: encoded.
            kind: of the targets.
            outputs: names of the model's outputs.
        """
        from fl_app.tasks.scaling import moments_of  # loads torch
        from fl_app.tasks.table import fit_column  # loads pandas

        facts: dict[str, Any] = {"targets": (*map(str, part.targets),), "missing": self.rule}
        if kind == "regression":
            facts["target_mean"], facts["target_deviation"] = moments_of(targets[rows])
        if isinstance(part.inputs, np.ndarray):
            facts["mean"], facts["deviation"] = moments_of(part.inputs[rows])
            return Schema(kind, part.inputs.shape[1:], outputs, **facts)
        fill = self.rule == "median"
        columns = tuple(
            fit_column(values, rows, str(name) in part.categories, part.where, fill=fill)
            for name, values in part.inputs.items()
        )
        width = sum(column.width for column in columns)
        return Schema(kind, (width,), outputs, columns=columns, **facts)

    def __call__(self, *, seed: int = 0) -> "Task":
        if self.path is None:  # a server whose devices own the data
            assert self.known is not None, "the constructor refuses this"
            return self._task(self.name, self.known, {})
        facts, place = file_facts(self.files()), Path(self.path)
        resolved = place.resolve()
        name = f"{self.name}-{resolved.name if resolved.is_dir() else place.stem}"
        keys = {**vars(self), "model": None, "schema": None}
        entry = f"{name}-{digest(resolved)}"
        arrays = cached(entry, (READER, facts, keys), self.encoded)
        about = json.loads(arrays.pop("about").tobytes())
        _log_once(logging.INFO, about["found"])
        for note in about["notes"]:
            _log_once(logging.WARNING, note)
        return self._task(name, read_schema(about["schema"]), arrays)

    def _task(self, name: str, schema: Schema, arrays: Arrays) -> "Task":
        """The task on these arrays, or without any examples."""
        from fl_app.tasks.objective import objective_of  # loads torch

        moments, shape = (schema.target_mean, schema.target_deviation), schema.input_shape
        objective = objective_of(schema.kind, schema.outputs, *moments)
        if not arrays:
            arrays = {"inputs": np.empty((0, *shape), np.float32)}
            classes, numbers = np.empty(0, np.int64), np.empty((0, len(schema.outputs)), np.float32)
            arrays["targets"] = classes if schema.kind == "classification" else numbers
        scaling = scaling_of(arrays["inputs"], schema)
        return self.made_of(arrays, shape, objective, name=name, prepare=scaling, schema=schema)


def below(folder: Path) -> list[Path]:
    """All files below a folder where data are read; links are followed."""
    tree = os.walk(folder, followlinks=True)
    return [Path(inside) / name for inside, _, names in tree for name in names]


@dataclass(kw_only=True)
class ImageKeys(OwnData):
    """Images of one shape.

    Args:
        size: height and width of the images in pixels.
        channels: 3 (colours) or 1 (grey).
    """

    size: int = bounded(32, COUNT, "there would be no image")
    channels: int = bounded(3, Bound("1 (grey) or 3 (colours)", (1, 3).__contains__), "unknown")

    @property
    def shape(self) -> tuple[int, ...]:
        """(channels, height, width) of the model's images."""
        shape = self.channels, self.size, self.size
        return shape if self.known is None else self.known.input_shape


@dataclass(kw_only=True)
class TableData(OwnData):
    """Rows of a table: numbers are standardised, each category of a text becomes one input.

    Args:
        target: column to predict, or several; None = those of the schema.
        inputs: columns to predict from; None = all that have no other role.
        ignore: columns that are no inputs.
        categories: input columns whose numbers are names, such as postcodes; texts always are.
        client: column of the rows' owners; each owner is a client (or num_clients of them are),
            and partition= has no effect.
        kind: classification, regression, or auto: texts and up to 20 different whole numbers are
            classes.
        missing: rows that lack a value: refuse, drop, or median (fill in the median or the most
            frequent text of the training rows); None = as in the schema, else refuse.
    """

    target: Names | None = None
    inputs: Names | None = None
    ignore: Names = ()
    categories: Names = ()
    client: str | None = None
    kind: str = bounded("auto", KIND, "unknown")
    missing: str | None = bounded(None, one_of(*MISSING), "there is no other rule")

    def texts(self) -> set[str]:
        """Columns whose values are read as texts, so that 01 and 1 remain two names."""
        names = {*names_of(self.target), *names_of(self.categories), *names_of(self.client)}
        if self.known is None:
            return names
        return names.union(self.known.targets, (c.name for c in self.known.columns if c.categories))

    def part_of(self, table: "pd.DataFrame", where: str) -> Part:
        """The examples in the rows of a table.

        Args:
            table: a row for each example.
            where: the table, for messages.

        Raises:
            ValueError: a column or a value is missing.
        """
        from fl_app.tasks.table import completed, refuse_commas  # loads pandas

        inputs, targets = self._columns(table, where)
        owner, categories = names_of(self.client), names_of(self.categories)
        if self.known is None:
            numbers = table[[*inputs, *targets]].drop(columns=categories, errors="ignore")
            refuse_commas(numbers, targets, where)
        rule = self.rule if self.known else self.missing
        whole, notes = completed(table, inputs, [*targets, *owner], rule, where)
        owners = whole[owner[0]] if owner else None
        return Part(where, whole[inputs], whole[targets], owners, categories, notes)

    def _columns(self, table: "pd.DataFrame", where: str) -> tuple[list[str], list[str]]:
        """Names of the input columns and of the target columns.

        Raises:
            ValueError: a column does not exist or has two roles, there is no target or no input, or
                the schema has another target.
        """
        known = self.known
        targets = names_of(self.target) or ([*known.targets] if known else [])
        available = f"a column of {where}, which has {', '.join(table)}"
        require(len(targets) > 0, "task.target", "null", available, "there is nothing to predict")
        if known is not None:
            bound = f"{', '.join(known.targets)} as in task.schema, or null"
            same = (*targets,) == known.targets
            require(same, "task.target", ", ".join(targets), bound, "the model predicts that")
        roles = {"task.target": targets, "task.client": names_of(self.client)}
        if known is not None and known.columns:
            inputs = [column.name for column in known.columns]
            numbers = {column.name for column in known.columns if column.categories is None}
            for key, differ in (
                ("inputs", {*inputs} ^ {*(names_of(self.inputs) or inputs)}),
                ("ignore", {*inputs} & {*names_of(self.ignore)}),
                ("categories", numbers & {*names_of(self.categories)}),
            ):
                value, reason = ", ".join(names_of(getattr(self, key))), "the model has its inputs"
                require(not differ, f"task.{key}", value, "as in task.schema, or left out", reason)
            roles |= {"a column of task.schema": inputs, "task.inputs": inputs}
        else:
            ignored, inputs = names_of(self.ignore), names_of(self.inputs)
            if self.inputs is None:
                others = table.columns.isin([*targets, *ignored, self.client])
                inputs = [*table.columns[~others & ~table.columns.str.match(NAMELESS)]]
            roles |= {"task.inputs": inputs, "task.ignore": ignored}
            roles["task.categories"] = names_of(self.categories)
        for key, names in roles.items():
            for name in names:
                require(name in table, key, name, available, "it cannot be read")
        for key, names in (("task.target", targets), ("task.inputs", inputs)):
            twice = ", ".join(name for name in dict.fromkeys(names) if names.count(name) > 1)
            require(not twice, key, twice, "each column once", "it would count twice")
        require(len(inputs) > 0, "task.inputs", "[]", available, "there is nothing to predict from")
        for key, others, role in (
            ("task.client", targets, "the target"),
            ("task.inputs", [*targets, *roles["task.client"]], "the target or the owner"),
            ("task.ignore", [*targets, *inputs], "the target or an input"),
            ("task.categories", {*table} - {*inputs}, "no input"),
        ):
            wrong = ", ".join(name for name in roles.get(key, ()) if name in others)
            require(not wrong, key, wrong, "another column", f"it is {role}")
        return inputs, targets


def names_of(value: Names | float | None) -> list[str]:
    """Names of columns as a list; a key may hold one name, and Hydra reads 2020 as a number."""
    values = [value] if isinstance(value, str | int | float) else value or ()
    return [str(each) for each in values]


def encoded_inputs(part: Part, schema: Schema) -> Array:
    """Inputs of the model; images stay bytes, which are scaled batch by batch."""
    from fl_app.tasks.scaling import are_images  # loads torch
    from fl_app.tasks.table import encode_columns  # loads pandas

    inputs = part.inputs
    if not isinstance(inputs, np.ndarray):
        return encode_columns(inputs, schema.columns, part.where)
    if inputs.shape[1:] != schema.input_shape:
        raise ValueError(
            f"{part.where} has examples of shape {inputs.shape[1:]}, and task.schema or the "
            f"training examples state {schema.input_shape}: the model has one shape of inputs"
        )
    if are_images(inputs):
        return inputs
    shape = (1, -1, *(1,) * (inputs.ndim - 2))
    scaled = (inputs - np.reshape(schema.mean, shape)) / np.reshape(schema.deviation, shape)
    return np.asarray(scaled, np.float32)


def scaling_of(inputs: Array, schema: Schema) -> "Scaling | None":
    """The scaling of images to inputs of the model; None = the inputs need none."""
    from fl_app.tasks.scaling import are_images, make_scaling  # loads torch

    moments = schema.mean, schema.deviation
    return make_scaling("standardised", moments) if are_images(inputs) else None


def choose_test(groups: Indices, share: float, where: str) -> Flags:
    """A mask of the test examples, shape ``(n,)``; equal arguments give equal masks.

    The share holds in every group up to one example, and every group keeps one for training. The
    choice does not depend on a run's seed, so that all runs are tested on the same examples.

    Args:
        groups: class or owner of each example, shape ``(n,)``.
        share: of all examples, in [0, 1); 0 = none.
        where: the data, for messages.

    Raises:
        ValueError: there are too few examples.
    """
    order = np.random.default_rng(STREAM).permutation(groups.size)
    order = order[np.argsort(groups[order], kind="stable")]
    sizes = np.unique(groups, return_counts=True)[1]
    firsts = np.cumsum(sizes) - sizes  # one of each group, for training
    free = np.delete(order, firsts)
    count = min(round(share * groups.size), free.size)
    if share and not count:
        raise ValueError(
            f"{where} has {groups.size} examples, too few for a test set of "
            f"task.test_share={share}: every class or client keeps one for training; give more, a "
            "larger share, test data of their own, or task.test_share=0 for no test set"
        )
    chosen = np.zeros(groups.size, bool)
    # Evenly spaced among examples sorted by group.
    chosen[free[((np.arange(count) + 0.5) * free.size / max(count, 1)).astype(np.int64)]] = True
    return chosen
