"""Devices: the duration and the energy of orders on each client, and when clients are online.

`Fleet` combines training times (`compute`), transfer times (`network`) and energy. `Churn` and
`Diurnal` say when clients are online. All of it is a function of (seed, client, number).
"""

from fl_app.devices.availability import Churn, Diurnal
from fl_app.devices.boards import BoardLinks, Boards, MeasuredServer
from fl_app.devices.compute import Exponential, LogNormal, MeanSeconds, TwoSpeed, UniformRatio
from fl_app.devices.fleet import Compute, Energy, Fleet, Network
from fl_app.devices.measured import MeasuredLinks, MeasuredPhones
from fl_app.devices.network import Link, Relative
from fl_app.devices.overlap import OverlapCompute, OverlapNetwork, Overlapping
from fl_app.devices.replay import Replay
from fl_app.record.files import Recorder

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
    "Recorder",
    "Relative",
    "Replay",
    "TwoSpeed",
    "UniformRatio",
]
