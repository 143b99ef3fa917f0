"""The ClientApp: trains and evaluates as its messages ask.

Flower starts a process for every message. That process forwards messages to a resident process,
unless WARM=0 in the node's environment, ``resident=false`` in its own configuration, or too little
memory forbids it.
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_app.core.extras import told_beside_flower

with told_beside_flower():
    from fl_app.flower import names, wire
    from fl_app.node import resident
    from fl_app.node.handler import MessageHandler

app = ClientApp()
handler = MessageHandler()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Carry out one training order; errors are reported as in the other runtimes."""
    return _answer(message, context)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Metrics of a model on the client's own data."""
    return _answer(message, context)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Report the partition of this node, without loading it; or its number of examples."""
    if names.APP_CONFIG in wire.order_config(message):
        return _answer(message, context)
    return wire.pack_introduction(message, context)


def _answer(message: Message, context: Context) -> Message:
    # Where any node serves any client, no state stays on a node.
    if names.ANY_NODE not in wire.order_config(message) and resident.wanted(context):
        reply = resident.ask(message, context)
        if reply is not None:
            return reply
    return handler.handle(message, context)
