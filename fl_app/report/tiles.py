"""The most important numbers of a run, for the top of its page and for a notebook."""

from typing import NamedTuple

from fl_app.record.measures import mean_age
from fl_app.record.score import Score
from fl_app.record.targets import WINDOW
from fl_app.report.cells import Cell
from fl_app.report.series import client_metrics, seconds
from fl_app.report.table import Row, Table


class Tile(NamedTuple):
    """A number with its name, as texts."""

    label: str
    value: str
    remark: str = ""


def tiles_of(cell: Cell, table: Table) -> list[Tile]:
    """The most important numbers of a run, whose table has one row."""
    row, history, score = table.rows[0], cell.history, cell.score
    clock = "wall clock" if cell.on_wall_clock else "virtual"
    under_way = sum(not order.ended for order in history.orders)
    tiles = []
    if score is not None and row.final_score is not None and row.best_score is not None:
        best = f"best {score.form.format(row.best_score)}"
        tiles.append(Tile(score.name, score.form.format(row.final_score), best))
    tiles += _of_clients(cell)
    if table.has("seconds_to_target"):
        tiles += _of_target(row, f"{table.target_accuracy:.0%}")
    tiles += [
        Tile("versions", f"{history.version:,}"),
        Tile("client updates", f"{history.client_updates:,}", f"{under_way:,} more under way"),
        Tile("time", seconds(cell.until), clock),
    ]
    if history.ages:
        oldest = f"at most {max(history.ages)}"
        tiles.append(Tile("mean staleness", f"{mean_age(history.ages):.1f}", oldest))
    if row.mb_up is not None and row.mb_down is not None:
        both = f"{row.mb_up + row.mb_down:,.1f} MB"
        tiles.append(Tile("traffic", both, f"{row.mb_up:,.1f} MB up"))
    if history.server_seconds and history.t > 0:
        most, of = max((value, what) for what, value in history.server_seconds.items())
        share = sum(history.server_seconds.values()) / history.t
        tiles.append(Tile("server at work", f"{share:.0%}", f"{most / history.t:.0%} for {of}"))
    rejected = f"{history.rejected:,} replies rejected"
    if history.benched:
        clients = ", ".join(map(str, sorted(history.benched)))
        rejected += f"; benched: client {clients}"
    tiles.append(Tile("failures", f"{history.failures:,}", rejected))
    return tiles


def _of_clients(cell: Cell) -> list[Tile]:
    """The last evaluation on clients, if there is one."""
    metrics = client_metrics([cell])
    if not metrics:
        return []
    last = cell.history.client_evaluations[-1]
    form = Score(metrics[0]).form
    mean, _, worst = last.of(metrics[0])
    remark = f"worst decile {form.format(worst)}, {last.clients:,} clients"
    return [Tile(f"{metrics[0]} on clients", form.format(mean), remark)]


def _of_target(row: Row, target: str) -> list[Tile]:
    reached, stays = row.seconds_to_target, row.seconds_to_stay_at_target
    updates = "" if reached is None else f"{row.updates_to_target:,.0f} client updates"
    return [
        Tile(f"first at {target}", "never" if reached is None else seconds(reached), updates),
        Tile(
            f"stays at {target}",
            "never" if stays is None else f"from {seconds(stays)}",
            f"mean of {WINDOW} evaluations",
        ),
    ]
