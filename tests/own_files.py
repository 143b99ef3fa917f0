"""Small data of a user's own, one of each form, that a model can learn."""

import numpy as np
from PIL import Image

CLIENTS, ROWS = 12, 120


def table(folder):
    """A table whose owners have 10 rows each; the overrides of its task."""
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((2, ROWS)) * [[10.0], [0.1]]
    city = rng.choice(["Bern", "Rome"], ROWS)
    bought = np.where(first / 10 + (city == "Rome") > 0.5, "yes", "no")
    lines = ["first,second,city,bought,price,user"]
    for row in range(ROWS):
        values = (first[row], second[row], city[row], bought[row], 1e5 + 1e4 * first[row])
        lines.append(",".join(map(str, (*values, f"user{row % CLIENTS}"))))
    (folder / "table.csv").write_text("\n".join(lines))
    return [
        *("task=csv", f"task.path={folder}/table.csv", "task.target=bought"),
        *("task.ignore=[price]", "task.client=user"),
    ]


def images(folder):
    """Bright and dark images of as many clients; the overrides of their task."""
    rng = np.random.default_rng(0)
    for place in range(ROWS // 2):
        for label, bright in (("bright", 200), ("dark", 50)):
            path = folder / "images" / f"client{place % CLIENTS}" / label / f"{place}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = rng.integers(-40, 40, (10, 10, 3))
            Image.fromarray((bright + noise).astype(np.uint8)).save(path)
    return ["task=image_folder", f"task.path={folder}/images", "task.size=8"]


def arrays(folder):
    """Two classes of points with owners; the overrides of their task."""
    rng = np.random.default_rng(0)
    labels = np.arange(ROWS) % 2
    points = rng.standard_normal((ROWS, 3)) + 3 * labels[:, None]
    owners = np.arange(ROWS) // (ROWS // CLIENTS)
    np.savez(folder / "arrays.npz", x_train=points, y_train=labels, client=owners)
    return ["task=arrays", f"task.path={folder}/arrays.npz"]
