"""The project's own ClientApp, which in every order waits for ``wait`` seconds of the node's."""

import time

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fl_app.client_app import app as real

WAITED = "waited"  # for this share of an order, before its client paused

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """As the real one."""
    return real(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train, and wait; up to a pause for a share of the seconds as large as that of the work."""
    reply = real(message, context)
    done = float(str(reply.content["upload"]["progress"])) if reply.has_content() else 1.0
    before = float(str(context.state[WAITED]["share"])) if WAITED in context.state else 0.0
    context.state[WAITED] = ConfigRecord({"share": done % 1.0})
    time.sleep(float(str(context.node_config.get("wait", 0.0))) * (done - before))
    return reply
