"""A task on a data set of Hugging Face's `datasets`, from a folder or from the hub."""

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

from fl_app.core.errors import require
from fl_app.core.extras import told_if_missing
from fl_app.tasks import own_data as own
from fl_app.tasks.cache import Arrays
from fl_app.tasks.items import column_of, label_names
from fl_app.tasks.options import check_images, check_options, check_own_data, image_shape
from fl_app.tasks.partition import Partitioner
from fl_app.tasks.schema import Schema, read_schema
from fl_app.tasks.sources import said

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from fl_app.tasks.table import Roles


def huggingface(
    *,
    partition: Partitioner,
    num_clients: int | None,
    path: str | None = None,
    subset: str | None = None,
    inputs: str | Sequence[str] | None = None,
    target: str | Sequence[str] | None = None,
    client: str | None = None,
    ignore: str | Sequence[str] = (),
    categories: str | Sequence[str] = (),
    split: str = "train",
    test_split: str | None = None,
    test_share: float = 0.2,
    size: int | Sequence[int] = 32,
    channels: int = 3,
    scaling: str = "standardised",
    kind: str = "auto",
    missing: str | None = None,
    model: str | None = None,
    schema: str | Mapping[str, Any] | None = None,
    seed: int = 0,
) -> own.OwnTask:
    """Predict columns of a data set from a column of images, or from columns of numbers and texts.

    Numbers are standardised. Each category of a column of texts becomes one input. A column of
    lists of numbers becomes as many columns as its lists are long. Names of classes are those of
    the data set. A target of lists of classes makes a label of each class.

    Args:
        partition: distributes the training examples, unless `client` is given.
        num_clients: N >= 1; None = all owners, or 50 where nobody owns anything.
        path: a folder that ``save_to_disk`` has written or that holds files of data, or a name on
            the hub; None = no data, only a schema.
        subset: of a data set on the hub that has several.
        inputs: columns to predict from; None = all that have no other role.
        target: column to predict, or several; None = those of the schema.
        client: column that says whose an example is; `num_clients` of its values take part, each a
            client.
        ignore: columns that are no inputs.
        categories: input columns whose numbers are names, such as postcodes.
        split: part of the data set for training.
        test_split: part that is the test set; None = ``"test"`` if there is one, else a share of
            the training part.
        test_share: this share, in [0, 1); 0 = no test set.
        size: height and width of the model's images in pixels, or both as ``[height, width]``.
        channels: of the model's images, 1 (grey) or 3 (colours).
        scaling: of images, see `fl_app.tasks.scaling.make_scaling`.
        kind: as of `fl_app.tasks.table.fit_targets`.
        missing: of columns, as of `fl_app.tasks.csv.csv`.
        model: a model's name; None = ``"cnn"`` for images, ``"mlp"`` for other inputs.
        schema: states columns, categories and classes, which are else those of the training
            examples; a path, or the contents of a file (`fl_app.tasks.schema`).
        seed: seed of the partition.

    Raises:
        ValueError: a value is out of its bounds, the data cannot be reached or encoded, a column is
            missing, or a client gets no examples.
    """
    check_own_data(path=path, schema=schema, kind=kind, test_share=test_share, missing=missing)
    check_images(size=size, channels=channels)
    check_options(scaling=scaling)
    if path is None:
        return own.task_without_data("huggingface", schema, model)
    known = read_schema(schema)
    rule = known.missing if known else missing or "refuse"
    folder = folder_of(path, "task.path")
    shape = known.input_shape if known else image_shape(size, channels)
    given = (target, inputs, ignore, categories, client)

    def read() -> Arrays:
        from fl_app.tasks.table import Roles  # loads pandas

        roles = Roles.of(*given)
        with loaded(path, subset, "task.path") as parts:
            for key, name in (("task.split", split), ("task.test_split", test_split)):
                bound = f"a part of {path}, one of {', '.join(parts)}"
                require(name in (None, *parts), key, name, bound, "there is no other")

            def part(name: str, roles: Roles) -> own.Part:
                return _part(parts[name], roles, rule, known, shape, f"task.path={path}, {name}")

            tests = test_split or ("test" if "test" in parts and split != "test" else None)
            train = part(split, roles)
            test = None if tests is None else part(tests, replace(roles, client=None))
        return own.encode(
            train,
            test,
            kind=kind,
            test_share=test_share,
            schema=known,
            categories=roles.categories,
            missing=rule,
        )

    return own.own_task(
        "huggingface",
        folder or path,
        [*folder.rglob("*")] if folder else [],
        (path, subset, split, test_split, given, kind, test_share, missing, shape, known),
        read,
        partition=partition,
        num_clients=num_clients,
        seed=seed,
        model=model,
        scaling=scaling,
        source="own" if folder else "hub",
    )


def folder_of(path: str, key: str) -> Path | None:
    """The folder of this name; None = it is the name of a data set on the hub.

    Raises:
        ValueError: it is neither.
    """
    if Path(path).expanduser().is_dir():
        return Path(path).expanduser()
    if path.startswith((".", "/", "~")) or path.count("/") > 1:
        own.existing(path, key, "folder")  # raises
    return None


@contextmanager
def loaded(path: str, subset: str | None, key: str) -> Iterator["DatasetDict"]:
    """The parts of a data set, from a folder or from the hub.

    What `datasets` unpacks of a folder is removed at the end of the context.

    Args:
        path: a folder that ``save_to_disk`` has written or that holds files of data, or a name on
            the hub.
        subset: of a data set that has several.
        key: what messages call the path.

    Raises:
        ValueError: the folder cannot be read, or the hub cannot be reached or has no such set.
    """
    with told_if_missing():  # it takes seconds to import
        import datasets

    folder = folder_of(path, key)
    with TemporaryDirectory(prefix="fl_app-") as made:
        try:
            if folder is None:
                data = datasets.load_dataset(path, subset)
            elif any((folder / name).exists() for name in ("dataset_dict.json", "state.json")):
                data = datasets.load_from_disk(folder)
            else:
                data = datasets.load_dataset(str(folder), subset, cache_dir=made)
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
        yield data if isinstance(data, dict) else datasets.DatasetDict(train=data)


def stored_images(data: "Dataset", column: str, where: str) -> list[tuple[str, Path | IO[bytes]]]:
    """The images of a column as they are stored, each with what messages call it."""
    import datasets

    stored = data.cast_column(column, datasets.Image(decode=False))[column]
    return [
        (
            f"{where}, row {row}",
            io.BytesIO(image["bytes"]) if image["bytes"] else Path(image["path"]),
        )
        for row, image in enumerate(stored, 1)
    ]


def _part(
    data: "Dataset",
    roles: "Roles",
    missing: str,
    schema: Schema | None,
    shape: Sequence[int],
    where: str,
) -> own.Part:
    """The examples of one part of a data set.

    Raises:
        ValueError: a column is missing or cannot be an input, or an image cannot be read.
    """
    import datasets

    from fl_app.tasks.pictures import decode

    images = [name for name, kind in data.features.items() if isinstance(kind, datasets.Image)]
    inputs = roles.inputs or (() if roles.inputs is not None else tuple(images))
    image = next((name for name in images if name in inputs), None)
    if image is not None and len(inputs) > 1:
        raise ValueError(
            f"task.inputs={list(inputs)} must be one column of images, or columns of numbers and "
            "texts: the model takes one kind"
        )
    used = {*roles.target, *inputs, roles.client, *(schema.targets if schema else ())}
    if not inputs:  # all columns may be some
        used |= {*data.column_names} - {*roles.ignore}
    names = [name for name in data.column_names if name in used and name not in images]
    table, made = _table(data, names, where, needed=schema is None)
    if image is not None:
        table[image] = True  # so that it is there; images have no missing values
    roles = replace(
        roles,
        target=tuple(new for old in roles.target for new in made.get(old, [old])),
        inputs=tuple(new for old in inputs for new in made.get(old, [old])) or None,
        ignore=tuple(name for name in roles.ignore if name not in data.column_names),
    )
    part = own.part_of(table, roles, missing, schema, where)
    if image is None:
        return part
    kept = data.select(part.targets.index)
    return replace(part, inputs=decode(stored_images(kept, image, where), shape))


def _table(
    data: "Dataset", names: Sequence[str], where: str, *, needed: bool
) -> tuple[Any, dict[str, list[str]]]:
    """Columns as a table, and what takes the place of a column of lists: one for each entry.

    Args:
        data: one part of a data set.
        names: of the columns.
        where: the data, for messages.
        needed: whether a column that has no place in a table is an error; else it is left out.

    Raises:
        ValueError: a column is needed and has no place in a table.
    """
    import pandas as pd

    table: dict[str, Any] = {}
    made: dict[str, list[str]] = {}
    for name in names:
        try:
            values = column_of(data, name)
            first = values.flat[0] if values.size else None
            if values.ndim > 2 or values.dtype.kind in "mM" or isinstance(first, dict | bytes):
                raise ValueError(f"the column {name!r} has the type {data.features[name]}")
        except ValueError as error:
            if not needed:
                continue
            raise ValueError(
                f"{where}: {error}; a table has numbers, texts, classes, lists of classes, and "
                f"lists of numbers of one length: leave it out with task.ignore=[{name}]"
            ) from error
        if values.ndim == 1:
            table[name] = values
            continue
        labels = label_names(data, name)
        places = [f"[{place}]" for place in range(values.shape[1])]
        made[name] = [
            f"{name}{end}" for end in (places if labels is None else map(".{}".format, labels))
        ]
        table |= dict(zip(made[name], values.T, strict=True))
    return pd.DataFrame(table), made
