"""AREA: the global model is the mean of every client's latest model, without memory on the server.

Iakovidou, Kim: "Asynchronous Federated Stochastic Optimization for Heterogeneous Objectives Under
Arbitrary Delays", arXiv:2405.10123 (asynchronous exact averaging).

Client, from the received w_o, with y_c = w_0 before its first upload:

    local SGD from w_o to w_end,    upload  r = w_end - y_c,    y_c <- w_end

Server, once K uploads have arrived:

    w_{t+1} = w_t + (1/N) sum_B r_i

so that w_t = (1/N) sum_c y_c.

Symbols: N num_clients, B the K uploads of an aggregation, y_c the last model of client c.

A refused or lost upload must not move y_c. So every order names the last upload of its client that
the server has accepted ("after"), and the client keeps the models of that upload and of the new
one. An accepted upload may still wait in the buffer; it will be aggregated before or with the next
one, so the next one is relative to it. A server that resumes from a checkpoint names an
earlier upload: orders also say which ones the two last checkpoints name ("checkpoint" and
"checkpoint_before"), and the client keeps these models, too.

A client that begins at version o has never seen w_0: it uploads w_end - w_o, and the server adds
(w_o - w_0) / N with a client's first upload. If uploads are compressed, y_c moves by what was sent;
what was not sent is part of the next upload.

Deviations: the paper's clients send whenever they like; here they have orders. A client that lost
its memory fails its orders, and its last model stays in the mean: no one else has that model. Its
uploads are a kind of their own, ``"residual"``, neither displacements nor gradients. Other
strategies refuse them, and a run with a norm bound of `fl_app.engine.guard` is refused.
"""

import math
from dataclasses import dataclass
from typing import Any

from fl_app.core.hyper import COUNT, bounded
from fl_app.core.types import RESIDUAL, Config, GlobalModel, Update, Updates, Vector
from fl_app.core.vector import weighted_sum
from fl_app.schedule import Schedule, k_async
from fl_app.strategy import AsyncStrategy

AFTER, NUMBER = "after", "upload"
CHECKPOINTS = ("checkpoint_before", "checkpoint")


@dataclass(kw_only=True)
class AREA(AsyncStrategy):
    """Adds 1 / N of what each client's model has changed by since its last upload.

    The server keeps w_0; every client keeps up to four models.

    Args:
        num_clients: N; further clients are refused.

    Examples:
        >>> model = GlobalModel(np.zeros(2, np.float32), version=0)
        >>> first = Update(1, 0, np.array([4, 8], np.float32), "residual", 10, 0.5)
        >>> AREA(num_clients=4).aggregate(model, [first]).tolist()
        [1.0, 2.0]
    """

    schedule = k_async(10)
    takes = ("delta", RESIDUAL)  # of which the trainer makes the other
    needs = "fl_app.algorithms.area.trainer.AREATrainer"
    looks_at = "changes of gradients, whose sums nobody has shown to hide uploads"
    first_state = {
        "first": None,  # w_0
        "accepted": {},  # client -> number of its last accepted upload
        "checkpointed": [],  # what that was at the last two checkpoints
        "aggregated": set(),  # clients whose first upload was aggregated
    }

    num_clients: int = bounded(10, COUNT, "the mean is over so many clients")

    def validate_run(self, num_versions: float, schedule: Schedule) -> None:
        if schedule.surveys:
            raise ValueError(
                "AREA cannot use algorithm/schedule=clustered_quorum: clusters are formed of "
                "gradients, which its uploads are not"
            )

    def dispatch(self, model: GlobalModel, client_id: int) -> tuple[Vector, Config]:
        self._know_first(model)
        after: int = self.state["accepted"].get(client_id, 0)
        saved = [marks.get(client_id, 0) for marks in self.state["checkpointed"]] or [after, after]
        return model.params, {AFTER: after, **dict(zip(CHECKPOINTS, saved, strict=True))}

    def admit(self, model: GlobalModel, update: Update) -> str | None:
        accepted: dict[int, int] = self.state["accepted"]
        if update.kind != RESIDUAL:
            return f"kind {update.kind!r} is not {RESIDUAL!r}, of which AREA's model is the mean"
        if update.client_id not in accepted and len(accepted) >= self.num_clients:
            return (
                f"strategy.num_clients={self.num_clients} other clients have uploaded, and the "
                "mean is over no more"
            )
        after, last = update.metrics.get(AFTER, 0), accepted.get(update.client_id, 0)
        if after != last:
            return f"it follows upload {after:g} of its client, and the last one was {last}"
        number = update.metrics.get(NUMBER, last + 1)
        if not (math.isfinite(number) and number > last):
            return f"it says that it is upload {number:g} of its client, and the last was {last}"
        # Nothing refuses an upload after this method, so it will be aggregated.
        accepted[update.client_id] = int(number)
        return None

    def aggregate(self, model: GlobalModel, updates: Updates) -> Vector:
        first, aggregated = self._know_first(model), self.state["aggregated"]
        moves, weights = [], []
        for update in updates:
            moves.append(update.vector)
            weights.append(1 / self.num_clients)
            if update.client_id not in aggregated:
                aggregated.add(update.client_id)
                if update.base_version > 0:
                    moves += [model.base(update), first]
                    weights += [1 / self.num_clients, -1 / self.num_clients]
        self.report["weight"] = [1 / self.num_clients] * len(updates)
        return model.params + weighted_sum(weights, moves)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds; also notes the uploads to which a resumed run will refer."""
        now = dict(self.state["accepted"])
        marks = self.state["checkpointed"]
        # Of the checkpoints of a run the last two are kept, as the last one may be torn.
        self.state = self.state | {"checkpointed": [marks[-1] if marks else now, now]}
        return super().state_dict()

    def _know_first(self, model: GlobalModel) -> Vector:
        """w_0, which is the model of the first order."""
        if self.state["first"] is None:
            self.state["first"] = model.history.get(0, model.params).copy()
        return self.state["first"]
