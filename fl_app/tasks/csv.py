"""A task on a table in a file of comma-separated values."""

import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fl_app.tasks import own_data as own
from fl_app.tasks.cache import Arrays
from fl_app.tasks.options import check_own_data
from fl_app.tasks.partition import Partitioner
from fl_app.tasks.schema import read_schema
from fl_app.tasks.sources import reading

if TYPE_CHECKING:
    import pandas as pd


def csv(
    *,
    partition: Partitioner,
    num_clients: int | None,
    path: str | None = None,
    target: str | Sequence[str] | None = None,
    inputs: str | Sequence[str] | None = None,
    ignore: str | Sequence[str] = (),
    categories: str | Sequence[str] = (),
    client: str | None = None,
    test_path: str | None = None,
    test_share: float = 0.2,
    kind: str = "auto",
    missing: str | None = None,
    separator: str = ",",
    model: str = "mlp",
    schema: str | Mapping[str, Any] | None = None,
    seed: int = 0,
) -> own.OwnTask:
    """Predict one column of a table, or several, from other columns.

    Numbers are standardised with mean and deviation of the training rows. Each category of a column
    of texts becomes one input. The first line of a file names its columns.

    Args:
        partition: distributes the training rows, unless `client` is given.
        num_clients: N >= 1; None = all owners, or 50 where nobody owns anything.
        path: the file, which may be compressed (``.gz``, ``.zip``, ...); None = no data, only a
            schema.
        target: column to predict, or several; None = those of the schema.
        inputs: columns to predict from; None = all that have no other role.
        ignore: columns that are no inputs.
        categories: input columns whose numbers are names, such as postcodes.
        client: column that says whose a row is; each of its values is a client, or `num_clients`
            of them.
        test_path: file with the test set; None = the test set is a share of the rows.
        test_share: this share, in [0, 1); 0 = no test set.
        kind: ``"classification"``, ``"multi_label"``, ``"regression"``, or ``"auto"``, see
            `fl_app.tasks.table.fit_targets`.
        missing: rows without a value are refused (``"refuse"``) or left out (``"drop"``), or the
            value becomes the median of the training rows, of texts the commonest (``"median"``);
            None = as the schema says, else they are refused.
        separator: of values in a line.
        model: a model's name.
        schema: states columns, categories and classes, which are else those of the training rows;
            a path, or the contents of a file (`fl_app.tasks.schema`).
        seed: seed of the partition.

    Raises:
        ValueError: a value is out of its bounds, a file or a column is missing, the table cannot be
            encoded, or a client gets no rows.
    """
    check_own_data(path=path, schema=schema, kind=kind, test_share=test_share, missing=missing)
    if path is None:
        return own.task_without_data("csv", schema, model)
    known = read_schema(schema)
    rule = known.missing if known else missing or "refuse"
    files = {"task.path": own.existing(path, "task.path", "file")}
    if test_path is not None:
        files["task.test_path"] = own.existing(test_path, "task.test_path", "file")
    given = (target, inputs, ignore, categories, client)

    def read() -> Arrays:
        # Imported here: it takes a second, and a filled cache does not need it.
        from fl_app.tasks.table import Roles

        def part(key: str, roles: Roles) -> own.Part:
            table = _read(files[key], key, separator, roles.texts(known))
            return own.part_of(table, roles, rule, known, f"{key}={files[key]}")

        roles, test = Roles.of(*given), None
        train = part("task.path", roles)
        if test_path is not None:  # nobody owns a row of it, and it needs no other columns
            names = () if known else tuple(train.inputs)
            test = part("task.test_path", Roles(roles.target, names))
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
        "csv",
        files["task.path"],
        [*files.values()],
        (given, kind, test_share, missing, separator, known),
        read,
        partition=partition,
        num_clients=num_clients,
        seed=seed,
        model=model,
    )


def _read(file: Path, key: str, separator: str, texts: Collection[str]) -> "pd.DataFrame":
    import pandas as pd

    expected = f"a table in UTF-8, of values separated by {separator!r} (task.separator)"
    with reading(f"{key}={file}", expected), warnings.catch_warnings():
        # A line with more values than columns.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        table = pd.read_csv(
            file,
            sep=separator,
            dtype=dict.fromkeys(texts, "str"),
            skipinitialspace=True,
            index_col=False,
            low_memory=False,  # the types of columns must not depend on the size of a chunk
        )
    table.columns = table.columns.str.strip()
    twice = table.columns[table.columns.duplicated()]
    if len(twice):
        raise ValueError(f"{key}={file} has two columns {twice[0]!r}: rename one")
    return table
