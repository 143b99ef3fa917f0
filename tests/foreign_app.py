"""A ClientApp that does not use fl_app, and the programs of docs/flower.md.

The app follows Flower's quickstart-pytorch example. Every client fits y = 2 x + 1 on its own
interval of x.
"""

import re
from pathlib import Path

import torch
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

app = ClientApp()


class Net(nn.Module):
    """One weight, one bias, and a counter of batches like BatchNorm's."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(1, 1)
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x):
        self.num_batches_tracked += 1
        return self.fc(x)


def load_data(partition_id):
    x = torch.linspace(-1.0, 1.0, 8 + partition_id).unsqueeze(1)
    return x, 2.0 * x + 1.0


@app.train()
def train(msg, context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    x, y = load_data(context.node_config["partition-id"])
    optimizer = torch.optim.SGD(model.parameters(), lr=msg.content["config"]["lr"])
    total = 0.0
    for _ in range(5):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    model_record = ArrayRecord(model.state_dict())
    metrics = {"train_loss": total / 5, "num-examples": len(x)}
    content = RecordDict({"arrays": model_record, "metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


@app.evaluate()
def evaluate(msg, context):
    model = Net()
    model.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    x, y = load_data(context.node_config["partition-id"])
    with torch.no_grad():
        error = (model(x) - y).abs()
    close = (error < msg.content["config"]["tolerance"]).float().mean().item()
    metrics = {"eval_loss": error.square().mean().item(), "eval_acc": close, "num-examples": len(x)}
    content = RecordDict({"metrics": MetricRecord(metrics)})
    return Message(content=content, reply_to=msg)


# -- the programs of docs/flower.md ---------------------------------------------------------------

PAGE = (Path(__file__).parents[1] / "docs/flower.md").read_text()
BLOCKS = re.findall(r"^`{3}(\w+)\n(.*?)^`{3}$", PAGE, re.MULTILINE | re.DOTALL)
PYTHON = [code for language, code in BLOCKS if language == "python"]
(CLIENT,) = (code for code in PYTHON if "ClientApp()" in code)
(SIMULATE,) = (code for code in PYTHON if "run_simulation" in code)
SERVERS = [code for code in PYTHON if "ServerApp()" in code]
PROJECT = next(code for language, code in BLOCKS if language == "toml" and "serverapp" in code)


def write_app(folder: Path, server: str) -> Path:
    """Write the page's app with one of its ServerApps; return the folder."""
    files = {"client_app.py": CLIENT, "server_app.py": server, "simulate.py": SIMULATE}
    for name, text in {**files, "pyproject.toml": PROJECT}.items():
        (folder / name).write_text(text)
    return folder


def read_fit(printed: str) -> list[float]:
    """Read weight and bias from the output of a program of the page."""
    (line,) = re.findall(r"weight and bias: \[(\S+)\] \[(\S+)\]", printed)
    return [float(number) for number in line]
