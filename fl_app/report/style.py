"""Style of the figures: one colour per algorithm, safe for colour-blind readers."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette without yellow (too pale for lines) and with grey for black, and two dark
# colours of Paul Tol's. Any two are at least 16 apart (CIE Lab) under protanopia, deuteranopia and
# tritanopia; a tenth colour would not be.
_GREY, _ORANGE, _BLUE, _GREEN, _VERMILION = "#4d4d4d", "#e69f00", "#0072b2", "#009e73", "#d55e00"
_PINK, _SKY, _BROWN, _INDIGO = "#cc79a7", "#56b4e9", "#661100", "#332288"

# The order is that of legends, tables and panels. Where two algorithms share a colour, line styles
# tell them apart (`looks`).
_COLOURS = {
    "fedavg": _GREY,
    "fedavg_k": _ORANGE,
    "fedasync": _BLUE,
    "fedbuff": _GREEN,
    "wkafl": _VERMILION,
    "fedhist": _PINK,
    "fedasmu": _SKY,
    "overlap_fedavg": _INDIGO,
    "eafl": _BROWN,
    "fedprox": _GREY,
    "moon": _BROWN,
    "feddyn": _INDIGO,
    "port": _VERMILION,
    "aso_fed": _SKY,
    "fedsa (re-interpreted)": _PINK,
    "twafl": _GREEN,
    "sasgd": _BLUE,
    "dynsgd": _ORANGE,
    "refl": _BROWN,
    "gsgm": _INDIGO,
    "afl": _VERMILION,
    "safl": _SKY,
    "dp_fedbuff": _GREEN,
    "fedavgm": _SKY,
    "krum": _VERMILION,
    "multi_krum": _ORANGE,
    "median": _BLUE,
    "trimmed_mean": _PINK,
    "scaffold": _GREY,
    "ca2fl": _BLUE,
    "cana": _GREEN,
    "fadas": _VERMILION,
    "ace": _PINK,
    "area": _SKY,
    "fedstaleweight": _ORANGE,
    "fedstaleasync": _BROWN,
    "asyncfeded": _INDIGO,
    "ringmaster": _GREY,
}
ALGORITHMS = tuple(_COLOURS)
_PALETTE = tuple(dict.fromkeys(_COLOURS.values()))
_LINES = ("-", "--", ":", "-.", "long")
_LONG = (
    0,
    (9, 2),
)  # points that are drawn and left out, of the style that Matplotlib has no word for

INK, MUTED, GRID, WAITING = "#222222", "#888888", "#e6e6e6", "#d4d4d4"

# Colours of a page in dark mode. They differ as much as the light ones, and each has a contrast of
# at least 3 with the background.
PAPER = "#1d2125"
IN_THE_DARK = {
    _GREY: "#fcf0e6",
    _ORANGE: "#f69a00",
    _BLUE: "#4282c2",
    _GREEN: "#33c972",
    _VERMILION: "#ec4f31",
    _PINK: "#cfa2b8",
    _SKY: "#9fc2ff",
    _BROWN: "#b03a4a",
    _INDIGO: "#845aef",
    INK: "#e6e8ea",
    MUTED: "#9aa0a6",
    GRID: "#353a40",
    WAITING: "#4d535a",
    "white": PAPER,
}

RC: dict[Any, Any] = {
    "figure.dpi": 160,
    "savefig.dpi": 160,
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "legend.edgecolor": "none",
    "lines.linewidth": 1.4,
    "pdf.fonttype": 42,  # TrueType, which journals ask for: text stays text
}


class Look(NamedTuple):
    """Colour and line style of one series."""

    colour: str
    line: str

    @property
    def dashes(self) -> "str | tuple[int, tuple[int, int]]":
        """The line style as Matplotlib takes it."""
        return _LONG if self.line == "long" else self.line


def looks(algorithms: Sequence[str]) -> list[Look]:
    """One look per series: the algorithm's colour, and another line style if that is taken.

    If an algorithm has more series than there are line styles, as in a sweep, they use all colours
    of the palette. Up to 45 looks differ.

    Args:
        algorithms: of the series, in the order they are drawn. The colour of an unknown algorithm
            is chosen by the hash of its name.
    """
    many = {name for name, number in Counter(algorithms).items() if number > len(_LINES)}
    taken: Counter[str] = Counter()
    result = []
    for algorithm in algorithms:
        colour = _COLOURS.get(algorithm) or _PALETTE[crc32(algorithm.encode()) % len(_PALETTE)]
        if algorithm in many or taken[colour] >= len(_LINES):
            own = colour
            colour = min(_PALETTE, key=lambda other: (taken[other], other != own))
        result.append(Look(colour, _LINES[taken[colour] % len(_LINES)]))
        taken[colour] += 1
    return result


def save(figure: "Figure", path: Path, *, pdf: bool = False, tight: bool = False) -> None:
    """Write a figure; equal figures give equal bytes.

    Args:
        figure: drawn with `RC`.
        path: of the PNG.
        pdf: whether to write a PDF beside it, for print, which takes three times as long. One that
            is there is written anew in any case.
        tight: whether to crop the empty border.
    """
    path.parent.mkdir(exist_ok=True)
    box = "tight" if tight else None
    figure.savefig(path, bbox_inches=box)
    document = path.with_suffix(".pdf")
    if pdf or document.exists():
        figure.savefig(document, bbox_inches=box, metadata={"CreationDate": None})
