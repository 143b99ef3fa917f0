"""Style of the figures: one colour per algorithm, safe for colour-blind readers."""

from collections import Counter
from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple
from zlib import crc32

# Okabe and Ito's palette without yellow (too pale for lines) and with grey for black, and two dark
# colours of Paul Tol's. Any two are at least 16 apart (CIE Lab) under protanopia, deuteranopia and
# tritanopia; a tenth colour would not be.
_PALETTE = (
    *("#4d4d4d", "#e69f00", "#0072b2", "#009e73", "#d55e00"),
    *("#cc79a7", "#56b4e9", "#332288", "#661100"),
)
# The order is that of legends, tables and panels. Each has the next colour of the palette. Where
# two algorithms share a colour, line styles tell them apart (`looks`).
ALGORITHMS = (
    *("fedavg", "fedavg_k", "fedasync", "fedbuff", "wkafl", "fedhist", "fedasmu", "overlap_fedavg"),
    *("eafl", "fedprox", "moon", "feddyn", "port", "aso_fed", "fedsa (re-interpreted)", "twafl"),
    *("sasgd", "dynsgd", "refl", "gsgm", "afl", "safl", "dp_fedbuff", "fedavgm", "krum", "zeno"),
    *("median", "trimmed_mean", "scaffold", "ca2fl", "cana", "fadas", "ace", "area"),
    *("fedstaleweight", "fedstaleasync", "asyncfeded", "ringmaster", "ringleader", "rescaled_asgd"),
    *("dude_asgd", "mr_asyncfl", "fedpsa", "fedqs", "fedcompass", "pisces", "fedqueue"),
)
_COLOURS = dict(zip(ALGORITHMS, cycle(_PALETTE)))
# Dash patterns: pixels drawn, pixels left out.
_LINES = ((1, 0), (6, 3), (2, 2), (7, 2, 2, 2), (12, 3), (9, 2, 2, 2, 2, 2))

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
