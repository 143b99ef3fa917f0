"""Boards and a server with the seconds of a device file; and devices by configuration."""

import json
import math
import re
from dataclasses import fields
from functools import partial
from statistics import fmean, pstdev
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import make_config

from fl_app.cli import CONF
from fl_app.devices.compute import (
    Boards,
    Exponential,
    LogNormal,
    MeasuredPhones,
    OverlapCompute,
    TwoSpeed,
    UniformRatio,
)
from fl_app.devices.fleet import Arrivals, Churn, Energy, Fleet, MeasuredServer, Traces
from fl_app.devices.network import BoardLinks, Link, MeasuredLinks, OverlapNetwork, Queue, Relative
from fl_app.devices.table import read_table
from fl_app.runner.components import build_components
from fl_app.runner.validate import validate_config

KINDS = {
    "fast": {
        "seconds": 10.0,
        "spread": 0.2,
        "first": 30.0,
        "examples": 100,
        "network": {"down": 1000.0, "up": 500.0, "latency": 0.5},
    },
    "slow": {"seconds": [40.0, 50.0]},
}


def write(tmp_path, **changes):
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"kinds": KINDS, "boards": {"fast": 1, "slow": 1}} | changes))
    return str(path)


def boards(table, counts, sizes):
    return Boards(num_clients=len(sizes), num_examples=sizes, table=table, boards=counts, seed=3)


def test_clients_are_boards_in_the_order_of_the_kinds(tmp_path):
    devices = boards(write(tmp_path), {"slow": 3, "fast": 2}, [100, 1, 7, 100, 50])
    assert devices.kinds == ["slow", "slow", "slow", "fast", "fast"]
    assert devices.mean_seconds == [40.0, 50.0, 40.0, 10.0, 5.0]
    assert devices.seconds(0, 0, 0.0) == devices.seconds(0, 5, 9.0) == 40.0


def test_orders_have_the_spread_and_first_ones_the_extra(tmp_path):
    fleet = boards(write(tmp_path), None, [100, 100])
    seconds = [fleet.seconds(0, sequence, 0.0) for sequence in range(1, 3001)]
    assert min(seconds) > 0
    assert fmean(seconds) == pytest.approx(10.0, rel=0.01)
    assert pstdev(seconds) == pytest.approx(2.0, rel=0.05)
    narrow = Fleet(fleet)
    narrow.entries = [0.5, 1.0]
    assert narrow.parts(0, 0, 0.0).seconds == pytest.approx(30 + fleet.seconds(0, 0, 0.0) / 2)
    assert fleet.seconds(0, 7, 1.0) == boards(write(tmp_path), None, [100, 9]).seconds(0, 7, 2.0)


def test_a_kind_has_its_own_link(tmp_path):
    links = BoardLinks(
        num_bytes=2000, num_clients=2, table=write(tmp_path), download_share=2.0, upload_share=0.5
    )
    assert (links.download(0, 1), links.upload(0, 1)) == (4.5, 2.5)
    assert (links.download(1, 1), links.upload(1, 1)) == (0.0, 0.0)


def test_a_servers_seconds_are_the_files_unless_they_are_given(tmp_path):
    table = write(tmp_path, server={"receipt": 2.0, "evaluation": 7.0, "orders": 3})
    server = MeasuredServer(table=table, receipt=0.0, dispatch=1.0)
    assert server.work("evaluation", 0.0) == 7.0
    assert server.receive(9.0) == 9.0
    assert server.work("dispatch", 9.0) == 10.0
    assert MeasuredServer().receive(4.0) == 4.0


@pytest.mark.parametrize(
    ("counts", "clients", "message"),
    [
        ({"fast": 2}, 3, r"devices\.boards=.*must be num_clients=3 boards"),
        ({"rpi5": 3}, 3, r"devices\.boards=rpi5 must be of fast, slow"),
        ({"fast": 2.5}, 3, r"devices\.boards=.*2\.5.* must be kinds with numbers"),
        (3, 3, r"devices\.boards=3 must be kinds with numbers such as"),
    ],
)
def test_bad_boards_are_refused(tmp_path, counts, clients, message):
    with pytest.raises(ValueError, match=message):
        boards(write(tmp_path), counts, [1] * clients)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "KeyError: 'kinds'"),
        ('{"kinds": {"a": {}}}', "kinds.a: seconds=() must be a number > 0"),
        ('{"kinds": {"a": {"seconds": 0}}}', "kinds.a: seconds=(0,) must be a number > 0"),
        (
            '{"kinds": {"a": {"seconds": 1, "network": {"down": 5}}}}',
            "kinds.a: network.up=0.0 must be a finite number above 0",
        ),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^devices\.table=.*bad\.json is no device file") as error:
        read_table(str(path))
    assert message in str(error.value)


# -- configurations of devices --------------------------------------------------------------------

PROFILES = sorted(path.stem for path in (CONF / "devices").glob("*.yaml"))
FOUR = ["devices.boards={rpi5:3,rpi4:1}"]


def configuration(*overrides):
    return make_config("num_clients=4", *overrides)


@pytest.mark.parametrize("name", [name for name in PROFILES if name != "overlap"])
def test_every_profile_gives_times(name):
    config = configuration(f"devices={name}", *(FOUR if name == "boards" else []))
    fleet = build_components(config).devices
    assert isinstance(fleet, Fleet)
    assert all(0.0 < fleet.parts(client, 0, 0.0).seconds < 1e4 for client in range(4))


def test_random_k_has_times_of_its_own():
    random_k = "algorithm=fedavg_k algorithm/schedule=random_k algorithm.schedule.buffer_size=2"
    config = configuration(*random_k.split())
    validate_config(config)
    assert build_components(config).devices is None
    with pytest.raises(ValueError, match=r"leave it out with '~devices/availability'"):
        validate_config(configuration(*random_k.split(), "devices/availability=churn"))


# -- times of training -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("devices", "total"),
    [
        (UniformRatio(ratio=5, num_clients=7, seed=3), 70.60966637664839),
        (TwoSpeed(slow_share=0.3, num_clients=7, seed=3), 35.37833720666147),
        (LogNormal(num_clients=7, seed=3), 26.344380680940898),
        (Exponential(base_seconds=3.0, num_clients=7, seed=3), 64.00589215960031),
        (
            OverlapCompute(num_bytes=796_840, num_examples=[1, 5, 7, 3, 4, 5, 6], epochs=2),
            204.42285714285717,
        ),
        (MeasuredPhones(num_clients=7, seed=3), 27.4544055420801),
        (Relative(mean_seconds=[1.0, 2.0, 7.0], slowdown=50), 93.33333333333331),
        (Link(num_bytes=12_345, seed=1, upload_share=0.3), 3.2330966310700324),
        (MeasuredLinks(num_bytes=12_345, slowdown=3.0, num_clients=7, seed=3), 0.6169851020834717),
        (Churn(seed=2), 1149.664314635567),
    ],
    ids=lambda devices: type(devices).__name__,
)
def test_seconds_of_every_kind_do_not_change(devices, total):
    """Published runs name a seed, so the seconds of their devices must not change."""
    orders = [(client_id, number) for client_id in range(7) for number in range(4)]
    if hasattr(devices, "seconds"):
        seconds = [devices.seconds(*order, 0.0) for order in orders]
    elif hasattr(devices, "stay"):
        seconds = [devices.stay(*order) for order in orders]
    else:
        seconds = [devices.download(*order) + devices.upload(*order) for order in orders]
    assert sum(seconds) == pytest.approx(total, rel=1e-9)


def test_overlaps_table_by_number_of_parameters():
    # VGG_R: 49.33 s of five epochs on the largest client, 64.40 - 49.33 = 15.07 s of communication.
    network = OverlapNetwork(num_bytes=4 * 2_440_394)
    assert network.download(0, 0) + network.upload(0, 0) == pytest.approx(64.40 - 49.33)
    compute = OverlapCompute(num_bytes=4 * 2_440_394, num_examples=[100, 400, 200])
    assert [compute.seconds(c, 0, 0.0) for c in range(3)] == pytest.approx(
        [49.33 / 4, 49.33, 49.33 / 2]
    )
    with pytest.raises(ValueError, match=r"number of parameters=10 must be one of 199210, "):
        OverlapNetwork(num_bytes=40)


@pytest.mark.parametrize(
    "network",
    [
        partial(Relative, mean_seconds=[1.0, 2.0]),
        partial(Link, num_bytes=1000, latency=0.0),
        partial(MeasuredLinks, num_bytes=1000, num_clients=2),
        partial(OverlapNetwork, num_bytes=4 * 199_210),
    ],
)
def test_transfers_take_seconds_in_proportion_to_bytes(network):
    plain, more = network(), network(download_share=3.0, upload_share=0.5)
    assert more.download(1, 4) == pytest.approx(3.0 * plain.download(1, 4))
    assert more.upload(1, 4) == pytest.approx(0.5 * plain.upload(1, 4))


@pytest.mark.parametrize(
    ("elapsed", "joules"),
    [
        (0.0, 0.0),
        (2.0, 2 * 1.0),  # downloading
        (5.0, 3 * 1.0 + 2 * 5.0),  # training
        (14.0, 4 * 1.0 + 10 * 5.0),  # uploading
        (17.0, 7 * 1.0 + 10 * 5.0),
        (math.inf, 7 * 1.0 + 10 * 5.0),
    ],
)
def test_joules_of_the_first_seconds_of_an_order(elapsed, joules):
    """Three seconds down, ten of training, four up."""
    energy = Energy(compute_watts=5.0, radio_watts=1.0)
    assert energy.joules((3.0, 10.0, 4.0), elapsed=elapsed) == pytest.approx(joules)


def test_a_wait_in_a_queue_draws_no_power():
    compute = SimpleNamespace(seconds=lambda *_: np.float32(10.0), start_up=lambda *_: 0.0)
    fleet = Fleet(compute, Queue(), Energy(compute_watts=5.0))
    parts = fleet.parts(0, 0, 0.0)
    assert parts.download > 0.0
    assert type(parts.training) is float  # else nothing could log it
    assert fleet.joules(*parts.logged) == 50.0
    assert Fleet(compute, Queue()).joules is None  # unknown
    for name, seconds in {"seconds": math.nan, "download": -1.0, "upload": -1.0}.items():
        own = SimpleNamespace(**dict.fromkeys(("download", "upload"), compute.start_up))
        vars(own).update(vars(compute) | {name: lambda *_, seconds=seconds: seconds})
        with pytest.raises(ValueError, match="must be seconds >= 0: time would run backwards"):
            Fleet(own, own).parts(0, 1, 0.0)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (UniformRatio, {"ratio": 0.5}, "devices.ratio=0.5 must be a finite number >= 1"),
        (Link, {"jitter": 1.0}, "devices.network.jitter=1.0 must be in [0, 1)"),
        (Energy, {"radio_watts": -1.0}, "devices.energy.radio_watts=-1.0"),
        (Churn, {"mean_online": 0.0}, "devices.availability.mean_online=0.0"),
        (Traces, {}, "devices.availability.path=None must be a JSON file of recorded users"),
    ],
)
def test_bad_values_are_refused(kind, values, message):
    facts = {"num_clients": 10, "num_bytes": 4, "mean_seconds": [1.0]}
    names = {field.name for field in fields(kind)}
    with pytest.raises(ValueError, match=re.escape(message)):
        kind(**{key: fact for key, fact in facts.items() if key in names}, **values)


# -- when clients are online -----------------------------------------------------------------------


def test_clients_join_late_and_leave_for_good():
    arrivals = Arrivals(late=0.25, spread=40.0, mean_stay=10.0, seed=3)
    late = [client for client in range(4000) if not arrivals.starts_online(client)]
    assert len(late) / 4000 == pytest.approx(0.25, abs=0.02)
    joins = [arrivals.stay(client, 0) for client in late]
    assert all(0 < second <= 40 for second in joins)
    assert fmean(joins) == pytest.approx(20, rel=0.05)
    stays = [arrivals.stay(client, int(client in late)) for client in range(4000)]
    assert [fmean(stays), pstdev(stays)] == pytest.approx([10.0, 10.0], rel=0.05)
    assert {arrivals.stay(client, 2) for client in late} == {math.inf}
    assert Arrivals(mean_stay=None, seed=3).stay(late[0], 1) == math.inf


def phones(tmp_path, users):
    path = tmp_path / "traces.json"
    path.write_text(json.dumps(users))
    return str(path)


def trace(start, end, *ready):
    return {"isSuccess": True, "trace_start": start, "trace_end": end, "ready_time": [*ready]}


def stays_of(path, client=0, number=6, seed=0):
    traces = Traces(path=path, seed=seed)
    return traces.starts_online(client), [traces.stay(client, each) for each in range(number)]


def flash(*messages):
    """A user with messages (second, state) in FLASH's format; second 0 is midnight."""
    times = [f"2020-01-02 00:{second // 60:02}:{second % 60:02}" for second, _ in messages]
    lines = [f"{time}\t{state}" for time, (_, state) in zip(times, messages, strict=True)]
    return {"guid": "x", "model": "y", "messages": "\n".join(lines) + "\n"}


@pytest.mark.parametrize(
    ("user", "online", "stays"),
    [
        # A trace of 100 s from second 0, ready from 10 to 30 and from 50 to 60.
        (trace(0, 100, [10, 30], [50, 60]), False, [10, 20, 20, 10, 50, 20]),
        # From second 230 on: second 0 is 300 modulo 100. Ready until 320, 240 to 260, from 290.
        (trace(230, 330, [240, 260], [290, 320]), True, [20, 20, 20, 30, 30, 20]),
        # A stay that ends as the next one begins is one, also over the end of the trace.
        (trace(0, 100, [0, 20], [60, 70], [70, 70], [70, 100]), True, [20, 40, 60, 40, 60, 40]),
        # Ready in second 0, which is the first, and for the whole of a trace.
        (trace(100, 200, [100, 110]), True, [10, 90, 10, 90, 10, 90]),
        (trace(7, 9, [7, 9]), True, [math.inf]),
    ],
)
def test_a_trace_repeats_from_flashs_midnight_on(tmp_path, user, online, stays):
    assert stays_of(phones(tmp_path, {"a": user}), number=len(stays)) == (online, stays)


def test_flashs_messages_say_when_a_phone_charges_locked_on_wifi(tmp_path):
    """All three hold from 20 to 40 s and from 45 to 70 s; the lock at 90 s has no end. 100 s."""
    user = flash(
        *((0, "WIFI"), (0, "battery_charged_on"), (10, "87.0%"), (20, "screen_lock")),
        *((30, "wifi"), (40, "4G"), (45, "wifi"), (60, "screen_off"), (70, "screen_unlock")),
        *((90, "screen_lock"), (100, "screen_on")),
    )
    assert stays_of(phones(tmp_path, {"a": user})) == (False, [20, 20, 5, 25, 50, 20])
    never = {"b": flash((3, "wifi")), "c": trace(None, None), "d": trace(0, 9, [4, 4])}
    never["e"] = {"messages": "\n"}
    same = stays_of(phones(tmp_path, never | {"a": user}), client=5)
    assert same == (False, [20, 20, 5, 25, 50, 20])


def test_the_seed_deals_the_recorded_users_in_turn(tmp_path):
    path = phones(tmp_path, {name: trace(0, 100, [name, 99]) for name in range(1, 31)})
    first = [[Traces(path=path, seed=seed).stay(i, 0) for i in range(60)] for seed in (0, 0, 1)]
    assert sorted(first[0][:30]) == [*range(1, 31)]
    assert first[0][:30] == first[0][30:] == first[1][:30]
    assert first[0] != first[2] != sorted(first[2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "traces.json: AttributeError: 'list' object"),
        ('{"a": 1}', "user a: TypeError"),
        ('{"a": {}}', "user a: KeyError: 'trace_start'"),
        ("{", "traces.json: JSONDecodeError: Expecting property name"),
        (json.dumps({"a": trace(0, 9, [1, 3], [2, 4])}), "ready_time=[(3, 2)] must be pairs of"),
        (json.dumps({"a": trace(0, 9, [1, 10])}), "ready_time=[(10, 9)] must be pairs of asc"),
        (json.dumps({"a": trace(4, 4, [4, 4])}), "ready_time=(4, 4) must be pairs of ascending"),
        (json.dumps({"a": flash((3, "wifi"), (4, "phone_off"))}), "user a: message 2="),
        (json.dumps({"a": flash((3, "wifi"), (2, "3g"))}), "must be a time, none before the last"),
        ('{"a": {"messages": "2020-13-01 00:00:00\\twifi"}}', "user a: message 1="),
        ("{}", "traces.json must be a file with a user that was ready: when clients are online"),
    ],
)
def test_bad_traces_are_refused_by_user(tmp_path, text, message):
    path = tmp_path / "traces.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^devices\.availability\.path=.*traces\.json") as error:
        Traces(path=str(path))
    assert message in str(error.value)
