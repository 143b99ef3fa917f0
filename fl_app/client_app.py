"""The ClientApp: trains and evaluates as its messages ask.

Flower starts a process for every message. A warm node (`fl_app.node.warm`) has one that stays, so
that `handler` keeps what it has loaded.
"""

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fl_app.core.extras import explaining_app_imports

with explaining_app_imports():
    from fl_app.flower import names
    from fl_app.node.handler import MessageHandler

app = ClientApp()
handler = MessageHandler()


@app.train()
@app.evaluate()
def carry_out(message: Message, context: Context) -> Message:
    """Train, or measure a model on the client's own data; errors are reported as elsewhere."""
    return handler.handle(message, context)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Introduce this node by its partition, if it has one, without loading it."""
    partition = context.node_config.get(names.PARTITION_ID)
    numbers = MetricRecord()
    if partition is not None:
        numbers[names.PARTITION_ID] = int(partition)
    return Message(RecordDict({names.METRICS: numbers}), reply_to=message)
