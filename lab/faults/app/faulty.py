"""The project's own ClientApp; in every order it waits for ``wait`` seconds (node config)."""

import time

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from fl_app.client_app import app as real

WAITED = "waited"  # for the share of an order that was done when its client paused

app = ClientApp()


@app.query()
def query(message: Message, context: Context) -> Message:
    """Answer as the real app."""
    return real(message, context)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train, and wait; before a pause, for the same share of the seconds as of the work."""
    reply = real(message, context)
    progress = float(str(reply.content["upload"]["progress"])) if reply.has_content() else 1.0
    previous = float(str(context.state[WAITED]["share"])) if WAITED in context.state else 0.0
    context.state[WAITED] = ConfigRecord({"share": progress % 1.0})
    time.sleep(float(str(context.node_config.get("wait", 0.0))) * (progress - previous))
    return reply
