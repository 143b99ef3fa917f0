"""Sums that the server opens, what it can learn of uploads, and the helper's service."""

import math
import ssl
import subprocess
import sys
from dataclasses import replace
from functools import partial

import httpx
import numpy as np
import pytest
from kit_processes import free_ports
from secure_world import CLIENTS, SIZE, TERMS, masked, request, server, vectors

from fl_app.core.errors import RunError
from fl_app.core.types import GlobalModel, Order, Upload
from fl_app.field.make import add_helper, new_kit
from fl_app.secure.folder import KIT, keys_of_device, server_context
from fl_app.secure.integers import integer_weights
from fl_app.secure.masked import Masked
from fl_app.secure.remote import ask_helper
from fl_app.secure.request import Refused
from fl_app.secure.simulated import keys as simulated_keys

MODEL = GlobalModel(np.zeros(SIZE, np.float32), 5)


def test_the_opened_mean_is_that_of_the_uploads_to_the_bound():
    plain = vectors()
    mine = [masked(v, i, base_version=i) for i, v in enumerate(plain)]
    result = server(function="polynomial", exponent=0.5).open(MODEL, mine)
    weights = integer_weights((6.0 - np.arange(CLIENTS)) ** -0.5)
    exact = np.average(np.stack(plain).astype(float), axis=0, weights=weights)
    bound = 1 / TERMS.scale + 2.0**-24
    for update in result.updates:
        assert np.abs(update.vector - exact).max() < bound
        assert update.seal == b""
    assert result.report["quantisation_error"] == 1 / TERMS.scale
    assert math.isclose(sum(result.shares), 1.0)


def test_a_capped_update_never_counts_more_than_the_heaviest():
    """Rounding 15.4 sixteenths down leaves the others more than their share, unless capped."""
    exact = np.array([1.0, 1.0, 0.965, 0.965])
    examples = (1000 * exact).astype(int).tolist()
    mine = [masked(v, i, examples=examples[i]) for i, v in enumerate(vectors(4))]
    result = server(members=4, by_examples=True, capped=True).open(MODEL, mine)
    assert max(result.shares) * exact.sum() <= 1.0 + 1e-12


def test_uploads_that_are_not_masked_are_refused():
    intake = server()
    update = masked(vectors(1)[0], 0)
    assert intake.refuse(MODEL, update) == ""
    bare = replace(update, seal=b"")
    assert intake.refuse(MODEL, bare).startswith("the upload is not masked")
    other = replace(update, kind="pseudo")
    assert "kind 'pseudo' must be 'delta'" in intake.refuse(MODEL, other)


def test_faults_of_single_uploads_are_reported_and_others_end_the_run():
    mine = [masked(v, i) for i, v in enumerate(vectors(4))]
    lie = replace(mine[2], num_examples=99)
    result = server(members=4).open(MODEL, [*mine[:2], lie, mine[3]])
    assert list(result.faults) == [2]
    assert result.updates == ()
    with pytest.raises(RunError, match="the helper refuses an aggregation: no"):
        server(refusal, members=4).open(MODEL, mine)
    with pytest.raises(
        RunError, match=r"an aggregation of 2 updates must have .*buffer_size=6: fewer"
    ):
        server().open(MODEL, mine[:2])


def refusal(request):
    raise Refused("no")


def test_a_client_may_keep_its_loss_to_itself():
    order = Order(0, 0, 0, 0, vectors(1)[0], {}, 0.0)
    for losses in (True, False):
        mask = Masked(TERMS, seed=0, losses=losses, keys=partial(simulated_keys, 0))
        upload = mask.send(order, Upload(vectors(1)[0], "delta", 10, 0.5))
        assert math.isnan(upload.loss) != losses


def test_a_pause_and_another_kind_are_refused():
    order = Order(0, 0, 0, 0, vectors(1)[0], {}, 0.0)
    for changes, text in (({"done": False}, "paused"), ({"kind": "model"}, "is a model")):
        upload = replace(Upload(vectors(1)[0], "delta", 10, 0.5), **changes)
        with pytest.raises(ValueError, match=text):
            Masked(TERMS, seed=0, keys=partial(simulated_keys, 0)).send(order, upload)


# -- the transcript -------------------------------------------------------------------------------


def sigmas_apart(mine, one, other):
    """Evidence, in sigmas, that the first two uploads are (one, other) and not (other, one)."""
    first, second = (u.vector.view(np.uint32).view(np.int32).astype(float) for u in mine[:2])
    difference, guess = first - second, (one - other).astype(float)
    return float(difference @ guess / (np.linalg.norm(guess) * difference.std()))


def test_the_server_cannot_tell_two_clients_uploads_apart():
    """Two runs in which two clients have exchanged their uploads show the same sum.

    Whoever knows both uploads exactly guesses their owners from masked ones by chance alone, and
    surely from uploads that are not masked.
    """
    size = 40_000
    big = replace(TERMS, size=size)
    rng = np.random.default_rng(0)
    plain = [rng.standard_normal(size).astype(np.float32) / 100 for _ in range(4)]
    swapped = [plain[1], plain[0], *plain[2:]]

    def transcript(order, bare):
        return [masked(v, i, bare=bare, terms=big) for i, v in enumerate(order)]

    for bare, lower, upper in ((False, -4.5, 4.5), (True, 150.0, 400.0)):
        for order, sign in ((plain, 1), (swapped, -1)):
            assert lower < sign * sigmas_apart(transcript(order, bare), plain[0], plain[1]) < upper


# -- the helper's service --------------------------------------------------------------------------

pytestmark = pytest.mark.slow


@pytest.fixture
def kit(tmp_path):
    new_kit(tmp_path / "kit", nodes=5, hosts=["localhost"])
    return tmp_path / "kit"


@pytest.fixture
def port(kit):
    """The port of a running helper."""
    (port,) = free_ports(1)
    add_helper(kit, ["localhost"], port=port, min_clients=3)
    flags = ["helper", "--host", "127.0.0.1", "--port", str(port), "--min-clients", "3"]
    process = subprocess.Popen([sys.executable, "-m", "fl_app.field", *flags, str(kit / "helper")])
    yield port
    process.kill()
    process.wait()


def test_it_answers_its_server_and_no_stranger_and_no_nonsense(kit, port, monkeypatch):
    def keys(client):
        monkeypatch.setenv(KIT, f"{kit}/node-{client}")
        return keys_of_device(client)

    context = server_context(kit / "server")
    plain = vectors(5)
    mine = [masked(vector, i, keys=keys) for i, vector in enumerate(plain)]
    ask = partial(ask_helper, f"localhost:{port}", context, request(mine))
    key = kit / "helper" / "keys" / "node-4.pub"
    text = key.read_text()
    key.write_text("")  # a copy that is not yet complete
    with pytest.raises(Refused, match="client 4: its device is not registered"):
        ask()
    key.write_text(text)
    masks = ask()
    total = sum(update.vector.view(np.uint32) for update in mine)
    plain_sum = (total - masks).view(np.int32) / TERMS.scale
    assert np.abs(plain_sum - sum(plain)).max() < 5 / TERMS.scale

    key.unlink()
    with pytest.raises(Refused, match="client 4: its device is not registered"):
        ask()

    url = f"https://localhost:{port}"
    stranger = ssl.create_default_context(cafile=kit / "ca" / "ca.crt")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health", verify=stranger, trust_env=False)
    for body in (b"", b"[]", b"\xff", b'{"terms": 1, "version": 1, "weighting": 1, "members": 1}'):
        answer = httpx.post(f"{url}/sum", content=body, verify=context, trust_env=False)
        assert answer.status_code == 400
    assert httpx.get(f"{url}/health", verify=context, trust_env=False).status_code == 200


def test_a_server_waits_for_its_patience_and_no_longer(monkeypatch):
    monkeypatch.setattr("fl_app.secure.remote.PATIENCE", 1.0)
    context = ssl.create_default_context()
    mine = [masked(vector, i) for i, vector in enumerate(vectors(5))]
    with pytest.raises(RunError, match=r"has not answered for 2 s: .*resume=auto goes on"):
        ask_helper(f"localhost:{free_ports(1)[0]}", context, request(mine))
