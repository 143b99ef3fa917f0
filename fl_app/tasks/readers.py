"""Readers of a user's own data: a table, arrays, folders of images, `datasets`."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fl_app.core.errors import explaining, require
from fl_app.core.hyper import Bound, bounded
from fl_app.core.types import Array
from fl_app.tasks.encoding import CODE
from fl_app.tasks.files import existing, folder_of, loaded, stored_images
from fl_app.tasks.own_data import KIND, ImageKeys, OwnData, Part, TableData, below, names_of
from fl_app.tasks.vision import torchvision

if TYPE_CHECKING:
    import pandas as pd
    from datasets import Dataset

MISSING = ["", "NA", "N/A", "NaN", "nan", "NULL", "null"]  # None may be a category
SIGNS = {r"\t": "\t", "tab": "\t", "semicolon": ";"}  # words, since shells and files eat quotes
SIGN = Bound("one character, tab or semicolon", lambda v: len(v) == 1 or v in SIGNS)
FORMS = {b"PAR1": "Parquet", b"\x1f\x8b": "gzip", b"PK\x03\x04": "Excel or zip"}
FORMS[b"\xd0\xcf\x11\xe0"] = "Excel (.xls)"
CODED = 1000  # first rows in which a number with a zero in front makes a column one of texts
OTHERS = ";\t|,"  # separators that a file may have instead
NAMES = ("x_train", "y_train", "x_test", "y_test", "client")  # arrays that are read
LAYOUT = "a folder for each class (DIR/class/image), or for each client (DIR/client/class/image)"


@dataclass(kw_only=True)
class Csv(TableData):
    """Predict one column of a table, or several, from other columns.

    The first line of a file names its columns. A file may be compressed (``.gz``, ``.zip``, ...).

    Args:
        test_path: file with the test set; None = a share of path.
        separator: between the values of a line: one character, tab or semicolon.
    """

    test_path: str | None = None
    separator: str = bounded(",", SIGN, "a line could not be cut into values")
    model: str | None = "mlp"

    name = "csv"
    tabular = True

    def __post_init__(self) -> None:
        super().__post_init__()
        fits, bound = self.path is not None or self.test_path is None, "null without task.path"
        effect = "nothing would read it: a server without data gives it as task.path, too"
        require(fits, "task.test_path", self.test_path, bound, effect)

    def files(self) -> Sequence[Path]:
        places = {"task.path": self.path, "task.test_path": self.test_path}
        return [existing(path, key, "file") for key, path in places.items() if path is not None]

    def read(self) -> tuple[Part, Part | None]:
        file, *tests = self.files()
        train = self.part_of(self.table(file, "task.path"), f"task.path={file}")
        if not tests:
            return train, None
        # No client owns its rows, and it needs no other columns.
        assert not isinstance(train.inputs, np.ndarray)
        names = None if self.known else [*train.inputs]
        nominal = [name for name in names_of(self.categories) if name in train.inputs]
        tester = replace(self, client=None, inputs=names, ignore=(), categories=nominal)
        texts = train.inputs.select_dtypes(exclude=["number", "bool"])
        where, key = f"task.test_path={tests[0]}", "task.test_path"
        return train, tester.part_of(self.table(tests[0], key, texts), where)

    def part_of(self, table: "pd.DataFrame", where: str) -> Part:
        """As of every table, with notes on cells that hold a line break."""
        notes = []
        for name, values in table.select_dtypes(exclude=["number", "bool"]).items():
            if (broken := values.astype(str).str.contains("\n")).any():
                row = f"a line break in row {broken.idxmax() + 1}"
                notes.append(f"{where}: {name} has {row}: a single quote mark joins lines")
        part = super().part_of(table, where)
        return replace(part, notes=[*notes, *part.notes])

    def table(self, file: Path, key: str, texts: Iterable[str] = ()) -> "pd.DataFrame":
        """The rows of a file.

        Args:
            file: its place.
            key: what messages call it.
            texts: further columns whose values are read as texts.

        Raises:
            ValueError: it is no table, or two columns have the same name.
        """
        import pandas as pd

        sign = SIGNS.get(self.separator, self.separator)
        expected = f"a table in UTF-8, of values separated by {sign!r} (task.separator)"
        with explaining(f"{key}={file} must be {expected}"), warnings.catch_warnings():
            # A line with more values than columns.
            warnings.simplefilter("error", pd.errors.ParserWarning)
            options: dict[str, Any] = {"sep": sign, "skipinitialspace": True}
            with file.open("rb") as stream:
                start = stream.read(4)
            forms = [form for magic, form in FORMS.items() if start.startswith(magic)]
            if forms and file.suffix.lower() not in (".gz", ".zip"):  # these pandas unpacks
                raise ValueError(f"it is {forms[0]}: write it as CSV (to_csv of pandas)")
            first = pd.read_csv(file, header=None, nrows=1, dtype=str, na_filter=False, **options)
            head, *more = names = first.iloc[0].str.strip()
            others = [other for other in OTHERS if other in head and not more]
            if head.startswith("sep="):
                raise ValueError(f"line 1 is {head!r}, which only Excel reads: remove it")
            if others:
                words = {sign: word for word, sign in SIGNS.items()}
                remedy = f"give task.separator={words.get(others[0], others[0])}"
                remedy = f"write {sign!r} instead of {others[0]!r}" if self.known else remedy
                raise ValueError(f"its first line is {head!r}: {remedy}")
            options |= {"keep_default_na": False, "na_values": MISSING, "index_col": False}
            try:
                rows = pd.read_csv(file, dtype=str, nrows=CODED, **options)
                codes = rows.columns[[rows[n].str.fullmatch(CODE).any() for n in rows]]
                as_text = self.texts().union(texts, codes.str.strip())
                types = {n: "str" for n in first.iloc[0] if n.strip() in as_text}
                # The types of columns must not depend on the size of a chunk.
                table = pd.read_csv(file, dtype=types, low_memory=False, **options)
            except pd.errors.ParserWarning:
                text = f"rows have more values than line 1, {head!r}..., which must name every"
                raise ValueError(f"{text} column: remove the lines above the names") from None
        table.columns = table.columns.str.strip()
        for name, values in table.select_dtypes(exclude=["number", "bool"]).items():
            table[name] = values.mask(values.astype(str).str.strip().isin(MISSING))  # padded ones
        twice = names[names.duplicated() & (names != "")]
        if len(twice):  # pandas has numbered them
            raise ValueError(f"{key}={file} has two columns {twice.iloc[0]!r}: rename one")
        return table


@dataclass(kw_only=True)
class Arrays(OwnData):
    """Learn from arrays in a ``.npz`` file.

    It holds ``x_train`` of shape ``(n, ...)`` and ``y_train`` of shape ``(n,)`` or ``(n, k)``. It
    may hold ``x_test`` and ``y_test``, and ``client`` of shape ``(n,)``, the owner of each training
    example. Bytes in three or four dimensions are images; their channels come first or last.
    Inputs are standardised, every entry or every channel. Nothing in the file is unpickled.

    Args:
        client: whether each value of the array ``client`` is a client; False = partition=
            distributes all examples.
        kind: classification, regression, or auto: as of task=csv, but integers are always classes.
    """

    client: bool | None = True
    kind: str = bounded("auto", KIND, "unknown")

    name = "arrays"
    tabular = False

    def kind_of(self, train: Part) -> str:
        integers = [dtype.kind in "iu" for dtype in train.targets.dtypes] == [True]
        return "classification" if self.kind == "auto" and integers else self.kind

    def read(self) -> tuple[Part, Part | None]:
        import pandas as pd

        from fl_app.tasks.conversion import owners_of  # loads torch

        (file,) = self.files()
        where = f"task.path={file}"
        expected = "a .npz file of numbers or texts (numpy.savez); objects are not read"
        with explaining(f"{where} must be {expected}"), np.load(file) as stored:
            arrays = {name: stored[name] for name in stored.files}
        train, test = _part(arrays, "train", where), None
        if unread := ", ".join(sorted({*arrays} - {*NAMES})):
            note = f"{where} has {unread}, which nothing reads, beside {', '.join(NAMES)}"
            train = replace(train, notes=[note])
        if "x_test" in arrays:
            test = _part(arrays, "test", where)
        if self.client and "client" in arrays:
            owners = owners_of(arrays["client"], len(train.inputs), f"{where}: client")
            train = replace(train, owners=pd.Series(owners))
        return train, test


def _part(arrays: Mapping[str, Any], name: str, where: str) -> Part:
    """The examples for training, or those for testing.

    Raises:
        ValueError: an array is missing or does not fit the others.
    """
    from fl_app.tasks.conversion import pair, table_of  # loads torch

    x, y = f"x_{name}", f"y_{name}"
    for needed in (x, y):
        if needed not in arrays:
            raise ValueError(f"{where} has no {needed}, only {', '.join(arrays)}")
    inputs, targets = pair(arrays[x], arrays[y], f"{where}: {x}", y)
    return Part(f"{where}: {x}", channels_first(inputs), table_of(targets, y))


def channels_first(inputs: Array) -> Array:
    """Images in bytes as ``(n, channels, height, width)``; other inputs are unchanged."""
    if inputs.dtype == np.uint8 and inputs.ndim == 3:
        return inputs[:, None]
    if inputs.dtype == np.uint8 and inputs.ndim == 4:
        last = inputs.shape[3] in (1, 3, 4) and inputs.shape[1] not in (1, 3, 4)
        return np.ascontiguousarray(inputs.transpose(0, 3, 1, 2)) if last else inputs
    return inputs


@dataclass(kw_only=True)
class ImageFolder(ImageKeys):
    """Classify images that lie in a folder for each class.

    The folder holds ``class/image`` or ``client/class/image``. It may hold ``train`` and ``test``
    (or ``val``) with these instead. Images are decoded and resized once and held as bytes.

    Args:
        client: whether each folder of ``client/class/image`` is a client; False = partition=
            distributes their images.
    """

    client: bool | None = True
    model: str | None = "cnn"

    name = "image_folder"
    what = "folder"
    tabular = False

    def read(self) -> tuple[Part, Part | None]:
        from fl_app.tasks.conversion import TESTS  # loads torch

        root, *_ = self.files()
        folders = _folders(root)
        trains = [each for each in folders if each.name.lower() == "train" and _folders(each)]
        if not trains:  # a class may have this name
            return self._part(root, owned=bool(self.client)), None
        by_name = {each.name.lower(): each for each in folders}
        tests = [by_name[name] for name in TESTS if name in by_name]
        fits = len(tests) == len(folders) - 1 > 0
        bound = f"a folder of train and {', '.join(TESTS[:-1])} or {TESTS[-1]}"
        reason = f"it holds {', '.join(sorted(by_name))}; rename the test set, move others away, "
        reason += f"or give task.path={trains[0]}"
        require(fits, "task.path", root, bound, reason)
        train = self._part(trains[0], owned=bool(self.client))
        return train, self._part(tests[0], owned=False)

    def _part(self, root: Path, *, owned: bool) -> Part:
        """All images below a folder, decoded.

        Args:
            root: the folder.
            owned: whether the images of ``client/class/image`` have owners.

        Raises:
            ValueError: its layout is another, or an image cannot be read.
        """
        import pandas as pd

        from fl_app.tasks.pictures import decode

        folders = _folders(root)
        deep = [folder for folder in folders if _folders(folder)]
        if not folders or len(deep) not in (0, len(folders)):
            flat = next((folder for folder in folders if folder not in deep), root)
            raise ValueError(
                f"task.path={root} must hold {LAYOUT}, and {flat} has no folders in it"
            )
        rows = []
        for owner in folders if deep else [root]:
            images = torchvision().datasets.ImageFolder(owner, allow_empty=True)
            samples = ((file, images.classes[label], owner.name) for file, label in images.samples)
            rows += [row for row in samples if "." not in (row[1][0], Path(row[0]).name[0])]
        if not rows:
            raise ValueError(
                f"task.path={root} holds no images (.png, .jpg, ...): there are no data"
            )
        table = pd.DataFrame(rows, columns=["file", "class", "owner"])
        inputs = decode([(file, Path(file)) for file in table["file"]], self.shape)
        owners = table["owner"] if deep and owned else None
        return Part(f"task.path={root}", inputs, table[["class"]], owners)


def _folders(root: Path) -> list[Path]:
    """Folders that are not hidden; macOS adds one to a zip."""
    folders = (path for path in root.iterdir() if path.is_dir())
    return sorted(path for path in folders if path.name[0] != "." and path.name != "__MACOSX")


@dataclass(kw_only=True)
class Huggingface(ImageKeys, TableData):
    """Predict a column of a data set, or several, from other columns.

    The path is a folder that ``save_to_disk`` has written or that holds files of data, or a name on
    the hub. Of its parts, ``train`` is used, and ``test`` or else ``validation``, if there is one.
    Inputs are a column of images or of arrays, or columns of numbers and texts. Names of classes
    are those of the set.

    Args:
        subset: of a data set on the hub that has several.
    """

    subset: str | None = None

    name = "huggingface"

    def files(self) -> Sequence[Path]:
        folder = folder_of(self.path or "", "task.path")
        return below(folder) if folder else []

    def read(self) -> tuple[Part, Part | None]:
        from fl_app.tasks.conversion import splits_of  # loads torch

        where = f"task.path={self.path}"
        with loaded(self.path or "", self.subset, "task.path") as parts:
            train, test = splits_of(parts, where)
            part = self._part(train, f"{where}, train")
            if test is None:
                return part, None
            test = test.remove_columns({*names_of(self.client)}.intersection(test.column_names))
            return part, replace(self, client=None)._part(test, f"{where}, test")

    def _part(self, data: "Dataset", where: str) -> Part:
        """The examples of one part of a data set.

        Raises:
            ValueError: a column is missing or cannot be an input.
        """
        import datasets
        import pandas as pd

        from fl_app.tasks.conversion import column_of, pair  # loads torch
        from fl_app.tasks.pictures import decode

        kinds, flat = data.features, (datasets.ClassLabel, datasets.Value)
        ignored = names_of(self.ignore)
        images = [n for n, k in kinds.items() if isinstance(k, datasets.Image) and n not in ignored]
        # Images and arrays are read only after the inputs are known.
        columns = {n: column_of(data, n) if isinstance(k, flat) else True for n, k in kinds.items()}
        owner = kinds.get(self.client)
        # With gaps, these would become floats, and long ones equal.
        if isinstance(owner, datasets.Value) and "int" in owner.dtype:
            plain = data.select_columns([self.client]).with_format(None)
            columns[self.client] = np.array(plain[:][self.client], object)
        table = pd.DataFrame(columns, index=range(len(data)))
        part = replace(self, inputs=self.inputs or images or None).part_of(table, where)
        names = [*part.inputs]
        deep = next((name for name in names if not isinstance(kinds[name], flat)), None)
        if deep is None:
            return part
        if len(names) > 1:
            raise ValueError(
                f"task.inputs={names} must be one column of images or of arrays, as {deep!r} is, "
                f"or columns of numbers and texts; leave others out (task.ignore=[{deep}])"
            )
        examples = data.select(part.targets.index)
        if deep in images:
            images = stored_images(examples, deep, where, part.targets.index)
            return replace(part, inputs=decode(images, self.shape))
        arrays, _ = pair(column_of(examples, deep), part.targets, f"{where}: {deep}", "its targets")
        return replace(part, inputs=arrays)
