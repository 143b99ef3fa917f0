"""Errors in the code of clients: told once, and the end of the run unless it tolerates them."""

import logging

from fl_app.core.bugs import place_of
from fl_app.core.errors import ClientError
from fl_app.core.types import Order

log = logging.getLogger(__name__)

MOST = 20  # whose tracebacks are logged


class Mistakes:
    """The errors that clients' code has raised.

    Args:
        tolerated: whether the run goes on after one, whose order has failed.
    """

    def __init__(self, tolerated: bool) -> None:
        self._tolerated = tolerated
        self._places: set[tuple[str, ...]] = set()  # in the code, of those that were logged

    def tell(self, order: Order, reason: str, traceback: str) -> None:
        """Log an error, once for each place in the code.

        Raises:
            ClientError: errors are not tolerated.
        """
        where = f"client {order.client_id}, order {order.number}"
        place = place_of(traceback)
        if place not in self._places and len(self._places) < MOST:
            self._places.add(place)
            log.error("%s, raised an error:\n%s", where, traceback)
        if not self._tolerated:
            raise ClientError(
                f"{where}: {reason}. With failures=tolerate such an order has failed, and the run "
                "goes on"
            )
