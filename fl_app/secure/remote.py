"""The connection of a server to the helper: HTTPS, each with a certificate of the kit.

It uses httpx and, on the helper's side, Starlette and uvicorn, which come with Flower. The answer
is as long as a model. gRPC would need a higher limit of message sizes; HTTP has none.
"""

import logging
import ssl
import time
from contextlib import suppress
from http import HTTPStatus

import httpx
import numpy as np

from fl_app.core.errors import RunError
from fl_app.secure.integers import Integers
from fl_app.secure.request import Refused, Request

log = logging.getLogger("flwr")

SUM, HEALTH = "/sum", "/health"
PAUSE = 2.0  # seconds between two attempts
ANSWER = 120.0  # seconds for one answer
PATIENCE = 600.0  # seconds that the server waits for a helper that does not answer


def ask_helper(address: str, context: ssl.SSLContext, request: Request) -> Integers:
    """The sum of `fl_app.secure.helper.Helper` in another process.

    While it does not answer, the server waits, and continues when the helper is back.

    Args:
        address: host:port.
        context: TLS (`fl_app.secure.folder.server_context`).
        request: for the sum.

    Raises:
        Refused: a check failed.
        RunError: the helper did not answer in time, or answered something else.
    """
    body, began = request.to_bytes(), time.monotonic()
    while True:
        try:
            response = httpx.post(
                f"https://{address}{SUM}",
                content=body,
                verify=context,
                timeout=ANSWER,
                trust_env=False,
            )
            if response.status_code < HTTPStatus.INTERNAL_SERVER_ERROR:
                return _sum_in(response, request)
            problem = f"status {response.status_code}"
        except (httpx.TransportError, ssl.SSLError) as error:
            problem = repr(error)
        waited = time.monotonic() - began
        if waited >= PATIENCE:
            raise RunError(
                f"the helper at {address} has not answered for {waited:.0f} s: "
                f"{problem}; resume=auto goes on when it is back"
            )
        log.warning("the helper at %s does not answer (%s)", address, problem)
        time.sleep(PAUSE)


def _sum_in(response: httpx.Response, request: Request) -> Integers:
    size = 4 * request.terms.size
    if response.status_code == HTTPStatus.CONFLICT:
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            content = response.json()
            members = {int(place): str(why) for place, why in content["members"].items()}
            if members.keys() <= set(range(len(request.members))):
                raise Refused(str(content["reason"]), members)
    elif response.status_code == HTTPStatus.OK and len(response.content) == size:
        return np.frombuffer(response.content, "<u4").astype(np.uint32, copy=False)
    raise RunError(
        f"the helper answered with status {response.status_code} and {len(response.content)} "
        f"bytes, expected 200 and {size}: {response.text[:200]!r}"
    )
