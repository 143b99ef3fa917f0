"""The helper as a process of a kit: TLS, and a server that waits for it."""

import ssl
import subprocess
import sys

import httpx
import numpy as np
import pytest
from kit_processes import free_ports
from secure_world import TERMS, masked, request, vectors

from fl_app.core.errors import RunError
from fl_app.field.make import add_helper, new_kit
from fl_app.secure.folder import _keys_in, server_context
from fl_app.secure.remote import RemoteHelper

pytestmark = pytest.mark.slow


@pytest.fixture
def kit(tmp_path):
    new_kit(tmp_path / "kit", nodes=5, hosts=["localhost"])
    return tmp_path / "kit"


@pytest.fixture
def port(kit):
    """Of the helper."""
    (port,) = free_ports(1)
    add_helper(kit, ["localhost"], port=port, least=3)
    words = ["helper", "--host", "127.0.0.1", "--port", str(port), "--min-clients", "3"]
    process = subprocess.Popen([sys.executable, "-m", "fl_app.field", *words, str(kit / "helper")])
    yield port
    process.kill()
    process.wait()


def test_it_answers_its_server_and_no_stranger_and_no_nonsense(kit, port):
    def keys(client):
        return _keys_in.__wrapped__(kit / f"node-{client}")

    context = server_context(kit / "server")
    plain = vectors(5)
    mine = [masked(vector, i, keys=keys) for i, vector in enumerate(plain)]
    masks = RemoteHelper(f"localhost:{port}", context=context, patience=50.0).sum(request(mine))
    total = sum(update.vector.view(np.uint32) for update in mine)
    opened = (total - masks).view(np.int32) / TERMS.scale
    assert np.abs(opened - sum(plain)).max() < 5 / TERMS.scale

    url = f"https://localhost:{port}"
    stranger = ssl.create_default_context(cafile=kit / "ca" / "ca.crt")
    with pytest.raises(httpx.TransportError):
        httpx.get(f"{url}/health", verify=stranger, trust_env=False)
    for body in (b"", b"[]", b"\xff", b'{"terms": 1, "version": 1, "weighting": 1, "members": 1}'):
        answer = httpx.post(f"{url}/sum", content=body, verify=context, trust_env=False)
        assert answer.status_code == 400
    assert httpx.get(f"{url}/health", verify=context, trust_env=False).status_code == 200


def test_a_server_waits_for_its_patience_and_no_longer():
    context = ssl.create_default_context()
    nowhere = RemoteHelper(f"localhost:{free_ports(1)[0]}", context=context, patience=1.0)
    mine = [masked(vector, i) for i, vector in enumerate(vectors(5))]
    with pytest.raises(RunError, match=r"has not answered for 2 s, and .*patience=1"):
        nowhere.sum(request(mine))
