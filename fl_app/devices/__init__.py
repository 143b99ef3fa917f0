"""Devices: the duration and the energy of orders on each client, and when clients are online.

`Fleet` combines training times (`compute`), transfer times (`network`) and energy. `Churn` and
`Diurnal` say when clients are online. All of it is a function of (seed, client, number).
"""

from fl_app.devices.availability import Churn, Diurnal
from fl_app.devices.compute import (
    Boards,
    Exponential,
    LogNormal,
    MeanSeconds,
    MeasuredPhones,
    OverlapCompute,
    TwoSpeed,
    UniformRatio,
)
from fl_app.devices.fleet import Compute, Energy, Fleet, MeasuredServer, Network, Overlapping
from fl_app.devices.network import BoardLinks, Link, MeasuredLinks, OverlapNetwork, Relative

__all__ = [
    "BoardLinks",
    "Boards",
    "Churn",
    "Compute",
    "Diurnal",
    "Energy",
    "Exponential",
    "Fleet",
    "Link",
    "LogNormal",
    "MeanSeconds",
    "MeasuredLinks",
    "MeasuredPhones",
    "MeasuredServer",
    "Network",
    "OverlapCompute",
    "OverlapNetwork",
    "Overlapping",
    "Relative",
    "TwoSpeed",
    "UniformRatio",
]
