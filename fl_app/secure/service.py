"""The helper as a process: HTTPS, with a record that outlives it."""

import ssl
from http import HTTPStatus
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fl_app.secure.folder import RECORD, RegisteredDevices
from fl_app.secure.helper import Helper
from fl_app.secure.ledger import Ledger
from fl_app.secure.remote import HEALTH, SUM
from fl_app.secure.request import Refused, Request

LARGEST_REQUEST = 16 << 20  # bytes; 10,000 members take 6 MB


def configured(folder: Path, host: str, port: int, min_devices: int) -> uvicorn.Config:
    """A server for the helper of a folder of the kit: ``POST /sum`` and ``GET /health``.

    It answers only a server with a certificate of the kit's authority.

    Args:
        folder: of the kit, with certificates, ``helper.db`` and ``keys/``.
        host: to listen on.
        port: to listen on.
        min_devices: T, fewest different devices of a sum.

    Raises:
        ValueError: a file is missing, or an argument is out of its bounds.
    """
    ledger, devices = Ledger(folder / RECORD), RegisteredDevices(folder / "keys")
    helper = Helper(ledger.private_key, devices.find, ledger, min_devices)

    async def post_sum(http: HttpRequest) -> Response:
        body = b""
        try:
            async for chunk in http.stream():
                body += chunk
                if len(body) > LARGEST_REQUEST:
                    raise ValueError(f"the request is longer than {LARGEST_REQUEST} bytes")
            request = Request.of(body)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            return JSONResponse({"reason": str(error)}, HTTPStatus.BAD_REQUEST)
        try:
            total = await run_in_threadpool(helper.sum, request)
        except Refused as error:
            content = {"reason": str(error), "members": error.members}
            return JSONResponse(content, HTTPStatus.CONFLICT)
        return Response(total.astype("<u4", copy=False).tobytes())

    health = Route(HEALTH, lambda http: Response())
    return uvicorn.Config(
        Starlette(routes=[Route(SUM, post_sum, methods=["POST"]), health]),
        host=host,
        port=port,
        ws="none",
        lifespan="off",
        log_level="warning",
        ssl_certfile=folder / "helper.crt",
        ssl_keyfile=folder / "helper.key",
        ssl_ca_certs=str(folder / "ca.crt"),
        ssl_cert_reqs=ssl.CERT_REQUIRED,
    )
