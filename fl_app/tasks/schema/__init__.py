"""What must be known of a user's data before they are read: shapes, classes, columns.

A schema is written from data that have everything (``python -m fl_app.tasks.schema``). With it, all
nodes encode their own data alike, and a server builds the model without any data.
"""

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fl_app.core.errors import is_number

FORMAT = 1  # of the file
KINDS = ("classification", "multi_label", "regression")
MISSING = ("refuse", "median", "drop")  # what becomes of rows of a table that lack a value
COMMAND = "python -m fl_app.tasks.schema task=... task.path=... -o schema.json"


@dataclass(frozen=True)
class Column:
    """An input column of a table.

    Attributes:
        name: its name in the table.
        mean: of a column of numbers.
        deviation: > 0, of a column of numbers.
        categories: the texts of a column of categories, each of them one input of the model; None =
            a column of numbers.
        fill: what a missing value counts as, a number or a category; None = there is nothing.
    """

    name: str
    mean: float = 0.0
    deviation: float = 1.0
    categories: tuple[str, ...] | None = None
    fill: float | str | None = None

    @property
    def width(self) -> int:
        """Number of the model's inputs that this column becomes."""
        return 1 if self.categories is None else len(self.categories)


@dataclass(frozen=True)
class Schema:
    """What is known of data without reading them.

    Attributes:
        kind: ``"classification"``, ``"multi_label"`` or ``"regression"``.
        input_shape: shape of one input, ``(d,)`` of a table, ``(channels, height, width)`` of an
            image.
        outputs: names of the classes, of the labels, or of the numbers to predict, in the order of
            the model's outputs.
        targets: target columns of a table; empty for data without columns.
        columns: input columns of a table; empty for other data.
        mean: of every channel of training images, or every entry of other inputs; empty = unknown.
        deviation: as `mean`, > 0.
        target_mean: of every number to predict, in the training set; empty = not standardised.
        target_deviation: as `target_mean`, > 0.
        missing: rows of a table without a value are refused (``"refuse"``), get the columns' `fill`
            (``"median"``) or are left out (``"drop"``).

    Raises:
        ValueError: the values contradict each other.
    """

    kind: str
    input_shape: tuple[int, ...]
    outputs: tuple[str, ...]
    targets: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    mean: tuple[float, ...] = ()
    deviation: tuple[float, ...] = ()
    target_mean: tuple[float, ...] = ()
    target_deviation: tuple[float, ...] = ()
    missing: str = "refuse"

    def __post_init__(self) -> None:
        self._check(self.kind in KINDS, "kind", f"one of {', '.join(KINDS)}")
        sizes = self.input_shape
        self._check(len(sizes) > 0 and min(sizes) >= 1, "input_shape", "a list of sizes >= 1")
        least = 2 if self.kind == "classification" else 1
        distinct = len(set(self.outputs)) == len(self.outputs)
        self._check(
            len(self.outputs) >= least and distinct, "outputs", f"{least} or more distinct names"
        )
        width = sum(column.width for column in self.columns)
        self._check(not self.columns or sizes == (width,), "input_shape", f"[{width}], its columns")
        for key, means in (("deviation", self.mean), ("target_deviation", self.target_mean)):
            values = getattr(self, key)
            fits = len(values) == len(means) and all(value > 0 for value in values)
            self._check(fits, key, f"{len(means)} numbers above 0")
        fits = not self.target_mean or len(self.target_mean) == len(self.outputs)
        self._check(fits, "target_mean", "one number for each output")
        self._check(self.missing in MISSING, "missing", f"one of {', '.join(MISSING)}")

    def _check(self, fits: bool, key: str, expected: str) -> None:
        if not fits:
            value = getattr(self, key)
            shown = list(value) if isinstance(value, tuple) else value
            raise ValueError(f"{key}={shown} must be {expected}")

    @property
    def num_outputs(self) -> int:
        """Number of the model's outputs."""
        return len(self.outputs)

    def to_json(self) -> str:
        """The contents of a schema file, which `read_schema` reads."""
        values = {"format": FORMAT, **asdict(self)}
        if self.missing == "refuse":  # as in files of versions without the key
            del values["missing"]
        for column in values["columns"]:
            keys = ("mean", "deviation") if column["categories"] is not None else ("categories",)
            for key in (*keys, *(("fill",) if column["fill"] is None else ())):
                del column[key]
        return json.dumps(values, indent=1)


def read_schema(given: str | Mapping[str, Any] | None) -> Schema | None:
    """The schema of the key ``task.schema``; None = none is given.

    Args:
        given: a path, the contents of a file as text, or these as a mapping.

    Raises:
        ValueError: the file cannot be read, or is no schema.
    """
    if given is None:
        return None
    name, contents = "task.schema", given
    try:
        if isinstance(given, str):
            name = name if _is_text(given) else f"task.schema={given}"
            contents = json.loads(_text(given))
        return _parse(contents)
    except OSError as error:
        problem = error.strerror or type(error).__name__
    except (ValueError, KeyError, TypeError) as error:
        problem = f"it has no {error}" if isinstance(error, KeyError) else str(error)
    raise ValueError(f"{name} must be a schema as `{COMMAND}` writes it: {problem}") from None


def inline_schema(config: DictConfig) -> DictConfig:
    """The configuration with the contents of its schema's file instead of the path.

    Nodes get the configuration, and not the server's files. `config` itself is not changed.

    Raises:
        ValueError: as `read_schema`.
    """
    given = config.task.get("schema")
    if not isinstance(given, str) or _is_text(given):
        return config
    schema = read_schema(given)
    assert schema is not None
    config = deepcopy(config)
    # As text, because a category may look like an interpolation of OmegaConf.
    config.task.schema = json.dumps(json.loads(schema.to_json())).replace("$", "\\u0024")
    return config


def _is_text(given: str) -> bool:
    return given.lstrip().startswith("{")


def _text(given: str) -> str:
    return given if _is_text(given) else Path(given).expanduser().read_text(encoding="utf-8")


def _parse(contents: Any) -> Schema:
    if not isinstance(contents, Mapping):
        raise ValueError("it must be a mapping")
    values = dict(contents)
    found = values.pop("format", None)
    if found != FORMAT:
        raise ValueError(f"format={found} must be {FORMAT}")
    known = [field.name for field in fields(Schema)]
    if surplus := sorted(map(str, values.keys() - set(known))):
        raise ValueError(f"unknown keys: {', '.join(surplus)}")
    return Schema(
        kind=str(values["kind"]),
        input_shape=tuple(_list(values, "input_shape", int)),
        outputs=tuple(_list(values, "outputs", str)),
        targets=tuple(_list(values, "targets", str)),
        columns=tuple(_column(column) for column in _list(values, "columns", Mapping)),
        mean=tuple(_list(values, "mean", float)),
        deviation=tuple(_list(values, "deviation", float)),
        target_mean=tuple(_list(values, "target_mean", float)),
        target_deviation=tuple(_list(values, "target_deviation", float)),
        missing=str(values.get("missing", "refuse")),
    )


def _column(values: Mapping[str, Any]) -> Column:
    name, fill = str(values["name"]), values.get("fill")
    if "categories" in values:
        categories = _list(values, "categories", str)
        if len(set(categories)) != len(categories) or not categories:
            raise ValueError(f"the categories of column {name!r} must be one or more, and distinct")
        if fill is not None and fill not in categories:
            raise ValueError(f"fill={fill} of column {name!r} must be one of its categories")
        return Column(name, categories=tuple(categories), fill=fill)
    mean, deviation = values["mean"], values["deviation"]
    if not (is_number(mean) and is_number(deviation) and deviation > 0):
        raise ValueError(f"column {name!r} must have a finite mean and a deviation above 0")
    if not (fill is None or is_number(fill)):
        raise ValueError(f"fill={fill} of column {name!r} must be a finite number")
    return Column(name, float(mean), float(deviation), fill=fill)


def _list(values: Mapping[str, Any], key: str, kind: type) -> Sequence[Any]:
    """The values of a list; those of optional keys may be missing."""
    items = values[key] if key in ("input_shape", "outputs") else values.get(key, ())
    if not isinstance(items, list | tuple):
        raise ValueError(f"{key}={items} must be a list")
    for item in items:
        fits = is_number(item) if kind is float else isinstance(item, kind)
        if not fits or isinstance(item, bool):
            what = {int: "integers", float: "finite numbers", str: "texts"}.get(kind, "mappings")
            raise ValueError(f"{key} must be a list of {what}, and {item!r} is none")
    return [float(item) for item in items] if kind is float else items
