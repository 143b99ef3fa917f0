"""The process that carries out a node's orders, one after the other, and stays between them.

Flower starts a process for each order. It would have to import torch and load the data each time,
and could not train while models travel (P_com and P_pro of Overlap-FedAvg). So a warm node
(`fl_app.node.warm`) sends each order to this process, in which Flower's own `run_clientapp` carries
it out. The process ends with the executor that started it, and after an order that failed.
"""

import logging
import os
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from flwr.supercore.app_utils import start_parent_process_monitor
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime.run_clientapp import run_clientapp

from fl_app.flower.patches import OrderDone, pull_sooner, stay

log = logging.getLogger("flwr")

APP = "fl_app.client_app"
VICTIM = 500  # of 1000: the kernel should end this process before the device's own work
SIGNALS = signal.SIGINT, signal.SIGTERM, signal.SIGQUIT  # for which Flower has handlers


def serve(orders: Connection) -> None:
    """Carry out orders until the connection's other end closes, and train ahead between them.

    Args:
        orders: receives the arguments of `carry_out`, and sends None at the order's end.
    """
    with suppress(EOFError):
        while True:
            carry_out(*orders.recv())
            orders.send(None)
            if app := sys.modules.get(APP):  # else the app is another one
                app.handler.work_ahead(orders.poll)


def carry_out(address: str, token: str, insecure: bool, root_certificates: str | None) -> None:
    """Carry out the order of a token; arguments as of `run_clientapp`.

    Raises:
        SystemExit: it failed, or Flower gave it up.
    """
    certificates = validate_and_resolve_root_certificates(root_certificates, insecure)
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    with suppress(OrderDone):
        run_clientapp(address, token, insecure, certificates)
    for number, handler in handlers.items():  # Flower's keep the order's objects
        signal.signal(number, handler)


def main() -> None:
    """The process: ``python -m fl_app.node.worker DESCRIPTOR``, an inherited connection."""
    orders = Connection(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(VICTIM))
    start_parent_process_monitor(os.getppid())
    pull_sooner()
    stay()
    # The server may have sent another version of this package.
    for name in [name for name in sys.modules if name.partition(".")[0] == "fl_app"]:
        del sys.modules[name]
    log.info("process %d carries out orders", os.getpid())
    serve(orders)


if __name__ == "__main__":
    main()
