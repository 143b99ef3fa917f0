"""What becomes of the buffer: aggregations, and clusters of clients."""

from collections.abc import Mapping, Sequence

from fl_app.core.errors import Diverged
from fl_app.core.events import Aggregated, Clustered, Recalled, Rejected
from fl_app.core.types import Update
from fl_app.core.vector import all_finite
from fl_app.engine.checks import likely_cause, require_vector, require_weights
from fl_app.engine.evaluation import Evaluation
from fl_app.engine.federation import Federation


class Aggregation:
    """Publishes versions of the model.

    Args:
        federation: whose model it is.
        evaluation: of the versions.
        learning_rates: rates by key; a message about divergence names them.
    """

    def __init__(
        self, federation: Federation, evaluation: Evaluation, learning_rates: Mapping[str, float]
    ) -> None:
        self._fed = federation
        self._evaluation = evaluation
        self._learning_rates = learning_rates

    def settle(self) -> bool:
        """Aggregate what the schedule takes, or form clusters; returns whether it did anything."""
        fed = self._fed
        acted = False
        while not fed.outcome.stopped:
            if fed.schedule.survey(fed.version, fed.buffer):
                self._cluster()
            elif taken := fed.schedule.take(fed.intake.eligible(fed.buffer)):
                self._aggregate(taken)
            else:
                break
            acted = True
        return acted

    def _cluster(self) -> None:
        """Let the strategy put the present clients into clusters; this makes no version."""
        fed = self._fed
        orders = fed.orders
        online = {*orders.idle, *orders.busy, *fed.on_clients.orders}
        present = sorted(fed.latest.keys() & online)
        fed.latest = {client_id: fed.latest[client_id] for client_id in present}
        clusters = fed.strategy.cluster(fed.versions.model, list(fed.latest.values()))
        if clusters.keys() != fed.latest.keys():
            raise ValueError(
                f"cluster() must put each of the {len(present)} clients that it is shown into one "
                f"cluster, and no others: {sorted(clusters.keys() ^ fed.latest.keys())}"
            )
        dropped = fed.schedule.regroup(clusters, fed.buffer)
        if not fed.schedule.surveys:
            fed.latest = {}
        fed.take_out(dropped)
        fed.emit(
            Clustered(
                fed.clock.now,
                fed.version,
                client=list(clusters),
                cluster=list(clusters.values()),
                dropped=[update.client_id for update in dropped],
                order=[update.order for update in dropped],
            )
        )

    def _aggregate(self, updates: Sequence[Update]) -> None:
        fed = self._fed
        model = fed.versions.model
        opened = fed.intake.open(model, updates)
        if opened.faults:
            fed.take_out([updates[place] for place in opened.faults])
            for place, why in sorted(opened.faults.items()):
                lost = updates[place]
                client_id, version = lost.client_id, lost.base_version
                fed.emit(Rejected(fed.clock.now, client_id, lost.order, version, why))
            return
        fed.strategy.report = {}
        params = fed.strategy.aggregate(model, opened.updates)
        fed.intake.complete(fed.strategy.report, opened)
        require_vector(fed.strategy, "aggregate", params, model.params.size)
        if not all_finite([params]):
            cause = likely_cause(self._learning_rates)
            raise Diverged(f"version {fed.version + 1} is not finite{cause}")
        require_weights(fed.strategy.report, len(updates), fed.version + 1)
        ages = [model.age(update) for update in updates]
        # The order of these steps matters: Ctrl-C between any two must leave an existing version.
        fed.take_out(updates)
        fed.versions.publish(fed.clock.share(params))
        fed.clock.work("aggregation")
        now = fed.clock.now
        fed.emit(
            Aggregated(
                now,
                fed.version,
                client=[update.client_id for update in updates],
                order=[update.order for update in updates],
                age=ages,
                busy=fed.clock.busy,
                report=fed.strategy.report,
            )
        )
        for client_id in fed.schedule.recall(fed.orders.busy, fed.version):
            order = fed.orders.busy[client_id]
            if fed.clock.recall(order):
                fed.emit(Recalled(now, client_id, order.number, fed.version))
        self._evaluation.published()
        if fed.version >= fed.stop.num_versions:
            fed.end("num_versions")
