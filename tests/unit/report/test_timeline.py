from run_folders import history_of

from fl_app.report.cells import Cell, Mark, Wait
from fl_app.report.timeline import timeline


def cell(orders, *, real=False, marks=(), waits=(), aggregations=()):
    """Orders are (client, start, end)."""
    return Cell(
        name="x",
        algorithm="fedbuff",
        on_wall_clock=real,
        summary={},
        history=history_of(orders),
        marks=list(marks),
        waits=list(waits),
        aggregations=list(aggregations),
    )


def spans(shown):
    return [(order.client, order.start) for order in shown.orders]


def test_small_cell_is_shown_whole():
    shown = timeline(
        cell(
            [(7, 0.0, 9.0), (3, 0.0, 1.0)],
            marks=[Mark("pause", 1.0, 7, "")],
            waits=[Wait(3, 1.0, 9.0)],
            aggregations=[9.0],
        )
    )
    assert (shown.clients, shown.num_clients) == ([3, 7], 2)  # fast to slow
    assert (shown.since, shown.until, shown.whole) == (0.0, 100.0, True)
    assert (len(shown.orders), len(shown.waits), len(shown.marks)) == (2, 1, 1)
    assert (shown.versions, shown.every) == ([9.0], 1)


def test_many_clients_are_thinned_evenly_with_all_that_is_theirs():
    """Client c takes c + 1 seconds; of 0 ... 4, three are 0, 2 and 4."""
    shown = timeline(
        cell(
            [(client, 0.0, client + 1.0) for client in range(5)],
            marks=[Mark("pause", 0.5, client, "") for client in range(5)]
            + [Mark("checkpoint", 3.0, None, "")],
            waits=[Wait(1, 2.0, 4.0), Wait(2, 3.0, 4.0)],
        ),
        max_clients=3,
    )
    assert (shown.clients, shown.num_clients) == ([0, 2, 4], 5)
    assert spans(shown) == [(0, 0.0), (2, 0.0), (4, 0.0)]
    assert [mark.client for mark in shown.marks] == [0, 2, 4, None]
    assert shown.waits == [Wait(2, 3.0, 4.0)]


def test_first_orders_are_shown_of_virtual_time():
    """Ten orders of ten seconds each; the first three end where the fourth starts, at 30 s."""
    orders = [(0, 10.0 * n, 10.0 * n + 10.0) for n in range(10)]
    shown = timeline(cell(orders, aggregations=range(0, 100, 20)), max_orders=3)
    assert spans(shown) == [(0, 0.0), (0, 10.0), (0, 20.0)]
    assert (shown.since, shown.until, shown.whole) == (0.0, 30.0, False)
    assert shown.versions == [0, 20]


def test_last_orders_are_shown_of_the_wall_clock():
    orders = [(0, 10.0 * n, 10.0 * n + 10.0) for n in range(10)]
    shown = timeline(cell(orders, real=True, aggregations=range(0, 101, 20)), max_orders=3)
    assert spans(shown) == [(0, 70.0), (0, 80.0), (0, 90.0)]
    assert (shown.since, shown.until, shown.whole) == (80.0, 100.0, False)
    assert shown.versions == [80, 100]


def test_span_shows_what_was_under_way_in_it():
    orders = [(0, 10.0 * n, 10.0 * n + 9.0) for n in range(10)]
    shown = timeline(cell(orders, marks=[Mark("pause", 50.0, 0, "")]), (15.0, 35.0))
    assert spans(shown) == [(0, 10.0), (0, 20.0), (0, 30.0)]
    assert shown.marks == []
    assert not shown.whole


def test_many_versions_are_thinned():
    shown = timeline(cell([(0, 0.0, 1.0)], aggregations=range(100)), max_versions=30)
    assert (shown.every, shown.versions) == (4, list(range(0, 100, 4)))
