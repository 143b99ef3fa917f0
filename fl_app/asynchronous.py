"""Flower's own strategies, asynchronously: see `fl_app.strategy.asynchronous`."""

from fl_app.strategy.asynchronous import Asynchronous as Asynchronous
