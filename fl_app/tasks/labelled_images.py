"""Images with targets, from wherever they come, as arrays of a task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fl_app.tasks.cache import Arrays
from fl_app.tasks.own_data import choose_test, moments_of, pack, target_moments
from fl_app.tasks.pixels import decode
from fl_app.tasks.schema import Schema
from fl_app.tasks.targets import Values, encode_targets, fit_targets, ids


@dataclass(frozen=True)
class Images:
    """Images that are not decoded yet.

    Attributes:
        files: of each image a name for messages, and where it can be read.
        targets: columns of targets by name, shape ``(n,)`` each.
        owners: whose each image is, shape ``(n,)``; None = nobody's.
        column: values by which a partition distributes them, shape ``(n,)``; None = none.
        where: the data, for messages.
    """

    files: Sequence[tuple[str, Path | IO[bytes]]]
    targets: Mapping[str, Values]
    where: str
    owners: Values | None = None
    column: Values | None = None


def encode_images(
    train: Images,
    test: Images | None,
    *,
    shape: tuple[int, ...],
    kind: str,
    test_share: float,
    schema: Schema | None,
) -> Arrays:
    """Arrays of images, as `fl_app.tasks.own_data.pack` gives them.

    Args:
        train: images for training, at least one.
        test: images for testing; None = a share of `train`.
        shape: of the model's images, (channels, height, width).
        kind: as of `fl_app.tasks.targets.fit_targets`.
        test_share: share of the images for testing, if there is no test set.
        schema: states shape and outputs; None = they are fitted.

    Raises:
        ValueError: an image cannot be read, targets cannot be encoded, or there are too few.
    """
    where = train.where
    if schema is None:
        kind, outputs = fit_targets(train.targets, kind, where)
    else:
        kind, outputs, shape = schema.kind, schema.outputs, schema.input_shape
    targets = encode_targets(train.targets, kind, outputs, where)
    owners = None if train.owners is None else ids(train.owners)
    groups = targets if owners is None and kind == "classification" else owners
    tested = choose_test(len(targets), 0 if test else test_share, groups, where)
    held = None
    if test is not None:
        test_targets = encode_targets(test.targets, kind, outputs, test.where)
        held = decode(test.files, shape), test_targets
    inputs = decode(train.files, shape)
    if tested.any():
        held = inputs[tested], targets[tested]
    inputs, targets = inputs[~tested], targets[~tested]
    if schema is None:
        mean, deviation = moments_of(inputs)
        schema = Schema(
            kind,
            shape,
            outputs,
            targets=tuple(train.targets),
            mean=mean,
            deviation=deviation,
            **target_moments(kind, targets),
        )
    owners, column = (v if v is None else v[~tested] for v in (owners, train.column))
    return pack(schema, (inputs, targets), held, owners, column)
