"""The project's own ClientApp, which in every order waits for ``wait`` seconds of the node's."""

import time

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_app.client_app import app as real

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """As the real one."""
    return real(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Wait, then train."""
    time.sleep(float(str(context.node_config.get("wait", 0.0))))
    return real(message, context)
