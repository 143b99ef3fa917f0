"""What becomes of an order: an update in the buffer, a pause, or nothing."""

import math
from collections.abc import Mapping
from dataclasses import replace

from fl_app.core.errors import Stalled
from fl_app.core.events import Arrived, Benched, Failed, Paused, Refreshed
from fl_app.core.types import NO_EXTRA, Order, Reply, Update, Upload
from fl_app.engine.checks import diverged, likely_cause, malformed, order_extra, require_vector
from fl_app.engine.clock import NO_VECTOR
from fl_app.engine.federation import Federation
from fl_app.engine.guard import MALFORMED
from fl_app.engine.mistakes import Mistakes


class Arrivals:
    """Handles the ends of orders.

    Args:
        federation: whose orders they are.
        tolerates: see `Engine`.
        upload_bytes: see `Engine`.
        learning_rates: rates by key; a message about divergence names them.
    """

    def __init__(
        self,
        federation: Federation,
        tolerates: bool,
        upload_bytes: int,
        learning_rates: Mapping[str, float],
    ) -> None:
        self._fed = federation
        self._mistakes = Mistakes(tolerates)
        self._upload_bytes = upload_bytes
        self._learning_rates = learning_rates

    def take(self, order: Order, reply: Reply) -> bool:
        """Handle a reply that came in time; returns whether it brought an update."""
        fed = self._fed
        client_id, upload = order.client_id, reply.upload
        if order.evaluates:
            fed.becomes_idle(client_id)
            if problem := fed.on_clients.take(order, reply):
                self.lose(order, problem, reply.traceback)
            return False
        if upload is not None:
            fed.orders.keep(client_id, upload.state)
            if not upload.done and 0 < upload.progress < 1:
                self._refresh(order, upload)
                return False
        del fed.orders.busy[client_id]
        fed.becomes_idle(client_id)
        if upload is None:
            self.lose(order, reply.error, reply.traceback)
            return False
        return self._arrive(order, upload)

    def _refresh(self, order: Order, upload: Upload) -> None:
        """Answer a client that paused, with a fresh model if there is a newer version."""
        fed = self._fed
        model, now = fed.versions.model, fed.clock.now
        client_id, base_version = order.client_id, order.base_version
        fed.emit(Paused(now, client_id, order.number, base_version, upload.progress))
        fed.clock.work("dispatch")
        vector, config, extra = NO_VECTOR, {**order.config, "continues": True}, NO_EXTRA
        if fed.version > base_version:
            seconds = now - order.sent_at
            paused = Update.of(upload, client_id, base_version, order.number, seconds)
            vector, more = fed.strategy.refresh(model, paused)
            require_vector(fed.strategy, "refresh", vector, model.params.size)
            config |= {**more, "fresh_version": fed.version}
            extra = order_extra(fed.strategy, model, client_id)
            sent = vector.nbytes * (1 + len(extra))
            fed.emit(Refreshed(fed.clock.now, client_id, order.number, fed.version, sent))
        order = replace(order, vector=vector, config=config, state=upload.state, extra=extra)
        fed.orders.busy[client_id] = order
        fed.clock.continue_order(order, upload.progress)

    def _arrive(self, order: Order, upload: Upload) -> bool:
        """Let an upload into the buffer, or refuse it; returns whether it came in."""
        fed = self._fed
        base_version = order.base_version
        if upload.base_version is not None:
            base_version = upload.base_version
        seconds = fed.clock.now - order.sent_at
        update = Update.of(upload, order.client_id, base_version, order.number, seconds)
        model = fed.versions.model
        reason = (
            malformed(fed.strategy, model, order, upload)
            or fed.intake.refuse(model, update)
            or fed.guard.refuse(model, update, fed.clock.now)
            or fed.strategy.admit(model, update)
        )
        if reason:
            self.lose(order, reason, refused=True)
            return False
        fed.failures_in_a_row = 0
        fed.guard.count_accepted(order.client_id)
        fed.versions.cite(base_version)
        fed.versions.release(order.base_version)
        fed.updates += 1
        fed.emit(
            Arrived(
                fed.clock.now,
                order.client_id,
                order.number,
                base_version,
                age=model.age(update),
                loss=update.loss if math.isfinite(update.loss) else None,
                bytes=self._upload_bytes,
            )
        )
        fed.buffer.append(update)
        if fed.schedule.surveys:
            # Stored as a gradient: its base version may be forgotten before the survey.
            gradient = model.gradient(update)
            fed.latest[update.client_id] = replace(update, vector=gradient, kind="gradient")
        return True

    def lose(self, order: Order, why: str, traceback: str = "", *, refused: bool = False) -> None:
        """An order ends without an update, or without scores.

        Args:
            order: the order.
            why: the reason.
            traceback: of an error in the client's code, if that is the reason.
            refused: whether there was an upload, which is not let in; else the client failed.
        """
        fed = self._fed
        if order.evaluates:
            fed.on_clients.end(order)
            why = f"evaluation: {why}"
        else:
            fed.versions.release(order.base_version)
            fed.failures_in_a_row += 1
        client_id, now, raised = order.client_id, fed.clock.now, bool(traceback)
        if refused:
            fed.reject(order, why)
        else:
            fed.emit(Failed(now, client_id, order.number, order.base_version, why, raised))
        if traceback:
            self._mistakes.tell(order, why, traceback)
        if order.evaluates:
            fed.on_clients.tell()
            return
        counts = refused or why.startswith(MALFORMED)
        if counts and (uploads := fed.guard.count_refused(client_id, why)):
            fed.leaves(client_id)
            fed.emit(Benched(now, client_id, uploads, why))
        if fed.failures_in_a_row > 100 + 10 * fed.orders.known:
            cause = likely_cause(self._learning_rates) if refused and diverged(why) else ""
            raise Stalled(
                f"{fed.failures_in_a_row} orders in a row brought nothing usable, "
                f"the last one: {why}{cause}"
            )
