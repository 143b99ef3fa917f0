"""What must be known about a user's data before they are read: shapes, classes, columns.

A schema is written from complete data (``python -m fl_app.schema``). With it, all nodes encode
their own data alike, and a server builds the model without any data.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from fl_app.core.errors import explaining, is_number

FORMAT = 1  # of the file
KINDS = ("classification", "regression")
MISSING = ("refuse", "median", "drop")  # treatment of table rows that lack a value
CODE = r"\s*0\d+\s*"  # a name rather than a number, such as a postcode
COMMAND = "python -m fl_app.schema task=... task.path=... > schema.json"


@dataclass(frozen=True)
class Column:
    """An input column of a table.

    Attributes:
        name: its name in the table.
        mean: of a column of numbers.
        deviation: > 0, of a column of numbers.
        categories: the texts of a column of categories, each of them one input of the model; None =
            a column of numbers.
        fill: replaces a missing value, a number or a category; None = nothing does.

    Raises:
        ValueError: the values contradict each other.
    """

    name: str
    mean: float = 0.0
    deviation: float = 1.0
    categories: tuple[str, ...] | None = None
    fill: float | str | None = None

    def __post_init__(self) -> None:
        where, known = f"of column {self.name!r}", self.categories
        if known is None:
            numbers = (self.mean, self.deviation, 0.0 if self.fill is None else self.fill)
            fits = all(map(is_number, numbers)) and self.deviation > 0
            _check(fits, f"mean, deviation and fill {where}", numbers, "finite, the second above 0")
        else:
            fits = 0 < len(set(known)) == len(known) and self.fill in (None, *known)
            _check(fits, f"categories {where}", known, "distinct texts, one of them the fill")

    @property
    def width(self) -> int:
        """Number of the model's inputs that this column becomes."""
        return 1 if self.categories is None else len(self.categories)


@dataclass(frozen=True)
class Schema:
    """What is known of data without reading them.

    Attributes:
        kind: ``"classification"`` or ``"regression"``.
        input_shape: shape of one input, ``(d,)`` of a table, ``(channels, height, width)`` of an
            image.
        outputs: names of the classes or of the numbers to predict, in the order of the model's
            outputs.
        targets: target columns of a table; empty for data without columns.
        columns: input columns of a table; empty for other data.
        mean: of every channel of training images, or every entry of other arrays; empty for tables.
        deviation: as `mean`, > 0.
        target_mean: of every number to predict, in the training set; empty = not standardised.
        target_deviation: as `target_mean`, > 0.
        missing: rows of a table that lack a value are refused (``"refuse"``), get the columns'
            `fill` (``"median"``) or are left out (``"drop"``).

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
        width = sum(column.width for column in self.columns)
        minimum = 2 if self.kind == "classification" else 1
        names = isinstance(self.outputs, tuple) and all(isinstance(n, str) for n in self.outputs)
        distinct = len(set(self.outputs)) == len(self.outputs) >= minimum
        shape = f"[{width}], its columns" if width else "a list of sizes >= 1"
        shaped = self.input_shape == (width,) if width else min(self.input_shape, default=0) >= 1
        means, deviations = self.mean + self.target_mean, self.deviation + self.target_deviation
        sound = all(map(is_number, means + deviations)) and all(v > 0 for v in deviations)
        paired = len(self.mean) == len(self.deviation) and len(means) == len(deviations)
        means_fit = width or len(self.mean) == self.input_shape[0]
        for key, fits, expected in (
            ("kind", self.kind in KINDS, f"one of {', '.join(KINDS)}"),
            ("missing", self.missing in MISSING, f"one of {', '.join(MISSING)}"),
            ("input_shape", shaped, shape),
            ("outputs", names and distinct, f"{minimum} or more distinct names"),
            ("deviation", sound and paired, "finite numbers above 0, one for each mean"),
            ("mean", means_fit, "one of each channel or entry"),
        ):
            _check(fits, key, getattr(self, key), expected)

    def to_json(self) -> str:
        """The contents of a schema file, which `read_schema` reads."""
        fields = asdict(
            self, dict_factory=lambda items: {k: v for k, v in items if v not in ((), None)}
        )
        return json.dumps({"format": FORMAT, **fields}, indent=1)


def _check(fits: object, key: str, value: object, expected: str) -> None:
    if not fits:
        shown = list(value) if isinstance(value, tuple) else value
        raise ValueError(f"{key}={shown} must be {expected}")


def read_schema(source: str) -> Schema:
    """The schema of the key ``task.schema``.

    Args:
        source: a path, or the contents of a file.

    Raises:
        ValueError: the file cannot be read, or is no schema.
    """
    text = _is_text(source)
    name = "task.schema" if text else f"task.schema={source}"
    with explaining(f"{name} must be a schema as `{COMMAND}` writes it"):
        contents = source if text else Path(source).expanduser().read_text(encoding="utf-8")
        return _parse(json.loads(contents))


def inline_schema(config: DictConfig) -> DictConfig:
    """The configuration with the contents of its schema's file instead of the path.

    Nodes get the configuration but not the server's files. `config` itself is not changed.

    Raises:
        ValueError: as `read_schema`.
    """
    source = config.task.get("schema")
    if not isinstance(source, str) or _is_text(source):
        return config
    contents = read_schema(source).to_json()
    config = deepcopy(config)
    # As text, because a category may look like an interpolation of OmegaConf.
    config.task.schema = json.dumps(json.loads(contents)).replace("$", "\\u0024")
    return config


def _is_text(source: str) -> bool:
    return source.lstrip().startswith("{")


def _parse(contents: Any) -> Schema:
    if not isinstance(contents, Mapping):
        raise ValueError("it must be a mapping")
    values = dict(contents)
    version = values.pop("format", None)
    _check(version == FORMAT, "format", version, str(FORMAT))
    # Unknown and missing keys are errors of the constructors.
    columns = tuple(Column(**_frozen(column)) for column in values.pop("columns", ()))
    return Schema(**_frozen(values), columns=columns)


def _frozen(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(v) if isinstance(v, list) else v for key, v in values.items()}
