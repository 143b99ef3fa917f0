"""How versions are made of the updates in the buffer, and evaluated."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fl_app.core.events import Aggregated, Clustered, Evaluated, Recalled, Rejected
from fl_app.core.types import Update
from fl_app.engine import checks
from fl_app.engine.arrivals import Arrivals
from fl_app.engine.evaluation import Evaluate, Outbox
from fl_app.engine.limits import Outcome, Stop


@dataclass(kw_only=True, eq=False)
class Versions(Arrivals):
    """The part of the `Engine` that aggregates and evaluates."""

    stop: Stop
    evaluate: Evaluate | None = None
    eval_every: int = 1

    outcome: Outcome = field(init=False)
    _outbox: Outbox = field(init=False)

    def _settle(self) -> bool:
        """Aggregate what the schedule takes, or form clusters; returns whether it did anything."""
        fed, acted = self._fed, False
        while not self.outcome.stopped:
            if self.schedule.survey(fed.version, fed.buffer):
                self._cluster()
            elif taken := self.schedule.take(self.intake.eligible(fed.buffer)):
                self._aggregate(taken)
            else:
                break
            acted = True
        return acted

    def _cluster(self) -> None:
        """Let the strategy put the present clients into clusters; this makes no version."""
        fed = self._fed
        present = sorted(fed.latest.keys() & fed.online)
        fed.latest = {client_id: fed.latest[client_id] for client_id in present}
        clusters = self.strategy.cluster(fed.model, list(fed.latest.values()))
        if clusters.keys() != fed.latest.keys():
            raise ValueError(
                f"cluster() must put each of the {len(present)} clients that it is shown into one "
                f"cluster, and no others: {sorted(clusters.keys() ^ fed.latest.keys())}"
            )
        dropped = self.schedule.regroup(clusters, fed.buffer)
        if not self.schedule.surveys:
            fed.latest = {}
        fed.take_out(dropped)
        self._emit(
            Clustered(
                self.clock.now,
                fed.version,
                client=list(clusters),
                cluster=list(clusters.values()),
                dropped=[update.client_id for update in dropped],
                order=[update.order for update in dropped],
            )
        )

    def _aggregate(self, updates: Sequence[Update]) -> None:
        """Make the next version of these updates."""
        fed, strategy, clock = self._fed, self.strategy, self.clock
        model = fed.model
        opened = self.intake.open(model, updates)
        if opened.faults:
            fed.take_out([updates[place] for place in opened.faults])
            for place, why in sorted(opened.faults.items()):
                lost = updates[place]
                about = (lost.client_id, lost.order, lost.base_version)
                self._emit(Rejected(clock.now, *about, why))
            return
        strategy.report = {}
        params = strategy.aggregate(model, opened.updates)
        self.intake.complete(strategy.report, opened)
        checks.require_version(strategy, params, model, len(updates))
        ages = [model.age(update) for update in updates]
        # The order of these steps matters: Ctrl-C between any two must leave an existing version.
        fed.take_out(updates)
        fed.publish(clock.share(params))
        clock.work("aggregation")
        now = clock.now
        self._emit(
            Aggregated(
                now,
                fed.version,
                client=[update.client_id for update in updates],
                order=[update.order for update in updates],
                age=ages,
                busy=clock.busy,
                report=strategy.report,
            )
        )
        for client_id in self.schedule.recall(fed.busy, fed.version):
            order = fed.busy[client_id]
            if clock.recall(order):
                self._emit(Recalled(now, client_id, order.number, fed.version))
        if fed.version % self.eval_every == 0:
            self._evaluate_on_server()
        if self.client_evaluation.is_due(fed.version):
            self._evaluate_on_clients()
        if fed.version >= self.stop.num_versions:
            self._end("num_versions")

    def _evaluate_on_server(self, *, final: bool = False) -> None:
        fed, clock = self._fed, self.clock
        if self.evaluate is None:
            return
        self._outbox.settle()  # the process that measures begins one version at a time
        metrics = self.evaluate(fed.version, self.strategy.to_evaluate(fed.model))
        fed.evaluated = fed.version
        if not final:  # the last one comes after the run's end
            clock.work("evaluation")
        if not isinstance(metrics, Mapping):
            if self.stop.target_accuracy == math.inf:
                self._outbox.emit_later(clock.now, fed.version, metrics)
                return
            metrics = metrics.result()  # which may end the run
        self._emit(Evaluated(clock.now, fed.version, metrics))
        self._look_at(metrics.get("accuracy"))

    def _evaluate_on_clients(self) -> None:
        """Choose the clients that measure the current version; they do so when they are free."""
        fed = self._fed
        vector = self.strategy.to_evaluate(fed.model)
        checks.require_vector(self.strategy, "to_evaluate", vector, fed.model.params.size)
        self.client_evaluation.plan(vector)

    def _told_by_clients(self, metrics: Mapping[str, float]) -> None:
        """End the run at the accuracy on clients, if the server measures none."""
        if self.evaluate is None:
            self._look_at(metrics.get("accuracy_mean"))

    def _look_at(self, accuracy: float | None) -> None:
        if accuracy is not None and accuracy >= self.stop.target_accuracy:
            self._end("target_accuracy")

    def _end(self, limit: str) -> None:
        """End the run, unless another limit has ended it."""
        self.outcome.stopped = self.outcome.stopped or limit
