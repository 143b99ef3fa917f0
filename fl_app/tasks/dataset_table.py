"""A data set of Hugging Face as a table and a column of images.

It loads `datasets`, which loads pandas. The task imports it when the cache does not have the data.
"""

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import numpy as np
import pandas as pd

from fl_app.tasks.columns import require_complete
from fl_app.tasks.labelled_images import Images
from fl_app.tasks.own_data import folder_of
from fl_app.tasks.partition.flower import FederatedDataset
from fl_app.tasks.roles import Roles
from fl_app.tasks.schema import Schema
from fl_app.tasks.sources import said


@contextmanager
def loaded(path: str, subset: str | None, key: str, **settings: Any) -> Iterator[FederatedDataset]:
    """A data set from a folder or from the hub.

    What `datasets` unpacks of a folder is removed at the end of the context.

    Args:
        path: a folder that ``save_to_disk`` has written or that holds files of data, or a name on
            the hub.
        subset: of a data set that has several.
        key: what messages call the path.
        settings: of the `FederatedDataset`.

    Raises:
        ValueError: the folder cannot be read, or the hub cannot be reached or has no such set.
    """
    folder = folder_of(path, key)
    with TemporaryDirectory(prefix="fl_app-") as made:
        try:
            if folder is None:
                data = FederatedDataset(dataset=path, subset=subset, **settings)
            elif saved := _saved(folder):
                settings |= {"data_files": saved, "cache_dir": made}
                data = FederatedDataset(dataset="arrow", **settings)
            else:
                settings |= {"subset": subset, "cache_dir": made}
                data = FederatedDataset(dataset=str(folder), **settings)
            _ = data.partitioners  # loads the data
        except Exception as error:  # libraries raise errors of any type
            if folder is not None:
                raise ValueError(
                    f"{key}={path} must be a folder that save_to_disk has written or that holds "
                    f"files of data (parquet, csv, json, images), but {said(error)}"
                ) from error
            words = f"{path!r}" if subset is None else f"{path!r}, {subset!r}"
            raise ValueError(
                f"{key}={path} is no folder here, and cannot be loaded from the Hugging Face hub "
                f"({said(error)}). With network, this puts it into a folder DIR, for {key}=DIR:\n"
                f'  python -c "from datasets import load_dataset as load; load({words})'
                ".save_to_disk('DIR')\""
            ) from error
        yield data


def _saved(folder: Path) -> dict[str, list[str]]:
    """The files of each part that ``save_to_disk`` has written; empty if it has not."""
    parts = {"train": folder}
    if (folder / "dataset_dict.json").exists():
        names = json.loads((folder / "dataset_dict.json").read_text())["splits"]
        parts = {name: folder / name for name in names}
    elif not (folder / "state.json").exists():
        return {}
    states = {name: json.loads((part / "state.json").read_text()) for name, part in parts.items()}
    return {
        name: [str(parts[name] / file["filename"]) for file in state["_data_files"]]
        for name, state in states.items()
    }


def image_column(data: Any, roles: Roles) -> str | None:
    """The column of images that is the input; None = inputs are columns of a table.

    Raises:
        ValueError: there are several, or one beside other inputs.
    """
    images = [name for name, kind in data.features.items() if isinstance(kind, datasets.Image)]
    chosen = images if roles.inputs is None else [n for n in images if n in roles.inputs]
    if len(chosen) > 1 or (chosen and len(roles.inputs or chosen) > 1):
        raise ValueError(
            f"task.inputs={list(roles.inputs or chosen)} must be one column of images, or columns "
            "of numbers and texts: the model takes one kind"
        )
    return chosen[0] if chosen else None


def as_table(data: Any, roles: Roles, where: str, *, known: bool) -> tuple[pd.DataFrame, Roles]:
    """All columns but images as columns of numbers and texts, and the roles of these.

    A list becomes one column for each of its numbers, or for each class that it may hold.

    Args:
        data: one part of a data set.
        roles: of its columns.
        where: the data, for messages.
        known: whether a schema says which columns are used.

    Raises:
        ValueError: a column that is used has another type, or lists that are not equally long.
    """
    table: dict[str, Any] = {}
    names: dict[str, tuple[str, ...]] = {}
    plain = [n for n, kind in data.features.items() if not isinstance(kind, datasets.Image)]
    used = {*roles.target, *(roles.inputs or ()), roles.client, roles.partition_by}
    chosen = known or roles.inputs is not None  # so that a column need not be an input
    kept = [name for name in plain if name not in roles.ignore or name == roles.partition_by]
    frame = data.select_columns(kept).to_pandas()
    for name in frame.columns:
        made = _columns(name, data.features[name], frame[name])
        if made is None and (name in used or not chosen):
            raise ValueError(
                f"{where}: column {name!r} has the type {data.features[name]}, and must be "
                "numbers, texts, classes, lists of classes, or lists of numbers of one length: the "
                f"model has one shape of inputs; leave it out with task.ignore=[{name}]"
            )
        table |= made or {}
        names[name] = tuple(made or (name,))
    absent = tuple(name for name in roles.ignore if name not in data.features)
    return pd.DataFrame(table), replace(roles.renamed(names), ignore=absent)


def unread_images(
    data: Any, column: str, roles: Roles, schema: Schema | None, where: str
) -> Images:
    """The images of a column with their targets.

    Raises:
        ValueError: a column is missing, or a value of a target or a client.
    """
    told = [name for name in (roles.client, roles.partition_by) if name is not None]
    named = [name for name in (*roles.target, *told) if name in data.features]
    used = data if schema is not None else data.select_columns([column, *dict.fromkeys(named)])
    table, roles = as_table(used, roles, where, known=schema is not None)
    own = replace(
        roles, target=roles.target or (schema.targets if schema else ()), inputs=(column,)
    )
    _, targets = own.resolve(
        [column, *(n for n in data.features if n != column), *table], None, where
    )
    require_complete(table, [*targets, *told], where)
    stored = data.cast_column(column, datasets.Image(decode=False))[column]
    return Images(
        files=[
            (
                f"{where}, row {row}",
                Path(image["path"]) if image["bytes"] is None else io.BytesIO(image["bytes"]),
            )
            for row, image in enumerate(stored, 1)
        ],
        targets={name: table[name].to_numpy() for name in targets},
        where=where,
        owners=table[roles.client].to_numpy() if roles.client else None,
        column=table[roles.partition_by].to_numpy() if roles.partition_by else None,
    )


def _columns(name: str, kind: Any, values: pd.Series) -> dict[str, Any] | None:
    """The column, or several in its place; None = it has none of the types that are known."""
    if isinstance(kind, datasets.ClassLabel):
        classes = np.array([*kind.names, None], object)
        # Data sets for competitions have the class -1 where it is not told.
        return {name: classes[values.fillna(-1).to_numpy(np.int64)]}
    if isinstance(kind, datasets.Value):
        if kind.dtype.startswith(("timestamp", "date", "time", "duration", "binary")):
            return None
        return {name: values} if not isinstance(values.iloc[:1].squeeze(), dict | bytes) else None
    inner = getattr(kind, "feature", None)
    if isinstance(inner, datasets.ClassLabel):
        held = [set(row) if row is not None else set() for row in values]
        return {
            f"{name}.{label}": np.array([place in row for row in held])
            for place, label in enumerate(inner.names)
        }
    lengths = {len(row) if row is not None else 0 for row in values}
    if isinstance(inner, datasets.Value) and len(lengths) == 1 and lengths != {0}:
        rows = np.stack(values.to_list())
        if rows.dtype.kind in "biuf":
            return {f"{name}[{place}]": column for place, column in enumerate(rows.T)}
    return None
