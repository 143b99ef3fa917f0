"""A task on a data set of Hugging Face's `datasets`, from a folder or from the hub."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_app.core.extras import told_if_missing
from fl_app.tasks.cache import Arrays, cached
from fl_app.tasks.labelled_images import encode_images
from fl_app.tasks.options import check_images, check_options, check_own_data
from fl_app.tasks.own_data import (
    READER,
    file_facts,
    folder_of,
    own_task,
    task_without_data,
)
from fl_app.tasks.partition import Partitioner
from fl_app.tasks.pixels import image_shape
from fl_app.tasks.roles import roles_of
from fl_app.tasks.schema import read_schema

if TYPE_CHECKING:
    from flwr_datasets import FederatedDataset

    from fl_app.tasks.own_task import OwnTask


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
    model: str | None = None,
    schema: str | Mapping[str, Any] | None = None,
    seed: int = 0,
) -> "OwnTask":
    """Predict columns of a data set from a column of images, or from columns of numbers and texts.

    Numbers are standardised. Each category of a column of texts becomes one input. A column of
    lists of numbers becomes as many columns as its lists are long. Names of classes are those of
    the data set. A target of lists of classes makes a label of each class.

    Args:
        partition: distributes the training examples, unless `client` is given. `Flwr` may name a
            column of the data in ``partition_by``.
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
        kind: as of `fl_app.tasks.targets.fit_targets`.
        model: a model's name; None = ``"cnn"`` for images, ``"mlp"`` for other inputs.
        schema: states columns, categories and classes, which are else those of the training
            examples; a path, or the contents of a file (`fl_app.tasks.schema`).
        seed: seed of the partition.

    Raises:
        ValueError: a value is out of its bounds, the data cannot be reached or encoded, a column is
            missing, or a client gets no examples.
    """
    check_own_data(path=path, schema=schema, kind=kind, test_share=test_share)
    check_images(size=size, channels=channels)
    check_options(scaling=scaling)
    if path is None:
        return task_without_data("huggingface", schema, model)
    known = read_schema(schema)
    by = getattr(partition, "partition_by", None)
    roles = roles_of(target, inputs, client, ignore, categories, by)
    folder = folder_of(path, "task.path")

    def read() -> Arrays:
        # Imported here: it takes seconds, and a filled cache does not need it.
        with told_if_missing():
            from fl_app.tasks.dataset_table import loaded

        with loaded(path, subset, "task.path", partitioners={}, shuffle=False) as data:
            where, tests = f"task.path={path}", test_split or "test"
            train = _part(data, "task.split", split, where)
            test = None
            if tests != split:
                optional = test_split is None
                test = _part(data, "task.test_split", tests, where, optional=optional)
            return encode(train, test)

    def encode(train: Any, test: Any) -> Arrays:
        from fl_app.tasks.dataset_table import as_table, image_column, unread_images

        where, test_where = (f"task.path={path}, {name}" for name in (split, test_split or "test"))
        of_test = replace(roles, client=None, partition_by=None)
        column = image_column(train, roles)
        if column is not None:
            return encode_images(
                unread_images(train, column, roles, known, where),
                test and unread_images(test, column, of_test, known, test_where),
                shape=image_shape(size, channels),
                kind=kind,
                test_share=test_share,
                schema=known,
            )
        from fl_app.tasks.columns import encode_table

        table, own = as_table(train, roles, where, known=known is not None)
        test_table = test and (as_table(test, roles, test_where, known=True)[0], test_where)
        return encode_table(
            table, where, own, kind=kind, test_share=test_share, test=test_table, schema=known
        )

    files = (
        path
        if folder is None
        else [file_facts(f) for f in sorted(folder.rglob("*")) if f.is_file()]
    )
    shape = image_shape(size, channels)
    state = (READER, files, subset, split, test_split, roles, kind, test_share, shape, known)
    name = f"huggingface-{(folder or Path(path)).resolve().name}"
    arrays = cached(name, state, read, private=(str((folder or Path(path)).resolve()), files))
    images = arrays["inputs"].dtype == np.uint8
    return own_task(
        name,
        arrays,
        partition=partition,
        num_clients=num_clients,
        seed=seed,
        model=model,
        scaling=scaling if images else None,
        source="own" if folder is not None else "hub",
    )


def _part(
    data: "FederatedDataset", key: str, name: str, where: str, *, optional: bool = False
) -> Any:
    """A part of a data set; None if there is none and it is `optional`.

    Raises:
        ValueError: it does not exist or is empty.
    """
    try:
        found = data.load_split(name)
    except ValueError as error:
        if optional:
            return None
        raise ValueError(f"{key}={name} must be a part of {where}: {error}") from error
    if len(found) == 0:
        raise ValueError(f"{where} has a part without rows: there is nothing to learn from")
    return found
