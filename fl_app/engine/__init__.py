"""The event loop, clocks and mailboxes."""

from fl_app.engine.engine import Engine, Outcome, Stop
from fl_app.engine.virtual import VirtualClock
from fl_app.engine.wall import WallClock
from fl_app.engine.workers import Inline, Workers

__all__ = ["Engine", "Inline", "Outcome", "Stop", "VirtualClock", "WallClock", "Workers"]
