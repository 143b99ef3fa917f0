"""A run in Flower's simulation engine: ``python tests/in_flower.py FOLDER NODES OVERRIDES ...``."""

import sys
from pathlib import Path

from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

from fl_app.cli import compose
from fl_app.client_app import app as client_app
from fl_app.runner.run import run
from fl_app.runner.validate import checked_cells

folder, nodes, *overrides = sys.argv[1:]
server_app = ServerApp()


@server_app.main()
def serve(grid, _):
    run(checked_cells(compose(overrides), overrides), overrides, Path(folder).resolve(), grid)


if __name__ == "__main__":
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=int(nodes),
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
