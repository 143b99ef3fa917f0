"""What is refused before Ray tries for minutes."""

import socket

import pytest

from fl_app.cluster.connection import connect
from fl_app.core.errors import RunError


def test_an_address_where_nobody_listens_is_refused() -> None:
    pytest.importorskip("ray")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(RunError, match=rf"no Ray cluster answers at {address} .*--head"):
            connect(address, 1)
