"""Style of the figures: one colour per algorithm, safe for colour-blind readers."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

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
# Pixels that are drawn and left out.
_LINES = ((1, 0), (6, 3), (2, 2), (7, 2, 2, 2), (12, 3))

INK, MUTED, GRID, WAITING = "#222222", "#888888", "#e6e6e6", "#d4d4d4"


class Look(NamedTuple):
    """Colour and dashes of one series."""

    colour: str
    dashes: tuple[int, ...]


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
