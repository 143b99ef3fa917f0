"""Which clients are slow, known to devices and partitions alike."""

from fl_app.core.hyper import SHARE


def slow_clients(num_clients: int, share: float) -> range:
    """The last clients of a federation: ``round(share * num_clients)`` of them, but at least one.

    Ids carry no meaning (partitions and devices are drawn at random), so a fixed choice serves as
    well as a draw, and a partition that gives data to slow clients only needs nothing but `share`
    to mean the clients that `fl_app.devices.compute.TwoSpeed` slows down.

    Args:
        num_clients: N >= 1.
        share: of clients that are slow, in (0, 1].

    Raises:
        ValueError: `share` is out of its bounds.
    """
    SHARE.check("slow_share", share, "it is a share of the clients")
    return range(num_clients - max(1, round(share * num_clients)), num_clients)
