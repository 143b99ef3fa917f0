"""When clients start, and when their updates are aggregated."""

from fl_app.schedule.base import Schedule as Schedule
from fl_app.schedule.base import not_waiting as not_waiting
from fl_app.schedule.buffered import Buffered as Buffered
from fl_app.schedule.buffered import fully_async as fully_async
from fl_app.schedule.buffered import k_async as k_async
from fl_app.schedule.buffered import synchronous as synchronous
from fl_app.schedule.random_k import RandomK as RandomK
from fl_app.schedule.round_blocking import RoundBlocking as RoundBlocking
