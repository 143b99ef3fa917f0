"""Devices: the duration and the energy of orders on each client, and when clients are online.

`Fleet` combines training times (`compute`), transfer times (`network`) and energy. `Churn` says
when clients are online. All of it is a function of (seed, client, number).
"""

from fl_app.devices.compute import Boards as Boards
from fl_app.devices.compute import Exponential as Exponential
from fl_app.devices.compute import LogNormal as LogNormal
from fl_app.devices.compute import MeanSeconds as MeanSeconds
from fl_app.devices.compute import MeasuredPhones as MeasuredPhones
from fl_app.devices.compute import OverlapCompute as OverlapCompute
from fl_app.devices.compute import TwoSpeed as TwoSpeed
from fl_app.devices.compute import UniformRatio as UniformRatio
from fl_app.devices.fleet import Churn as Churn
from fl_app.devices.fleet import Compute as Compute
from fl_app.devices.fleet import Energy as Energy
from fl_app.devices.fleet import Fleet as Fleet
from fl_app.devices.fleet import MeasuredServer as MeasuredServer
from fl_app.devices.fleet import Network as Network
from fl_app.devices.fleet import Overlapping as Overlapping
from fl_app.devices.network import BoardLinks as BoardLinks
from fl_app.devices.network import Link as Link
from fl_app.devices.network import MeasuredLinks as MeasuredLinks
from fl_app.devices.network import OverlapNetwork as OverlapNetwork
from fl_app.devices.network import Relative as Relative
