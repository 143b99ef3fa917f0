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

from fl_app.secure.errors import Refused
from fl_app.secure.folder import RECORD, RegisteredDevices
from fl_app.secure.helper import Helper
from fl_app.secure.ledger import Ledger
from fl_app.secure.remote import HEALTH, SUM
from fl_app.secure.request import Request

LARGEST_REQUEST = 16 << 20  # bytes; 10,000 members take 6 MB


def application(helper: Helper) -> Starlette:
    """The helper's HTTP interface: ``POST /sum`` and ``GET /health``."""

    async def tell_sum(http: HttpRequest) -> Response:
        body = b""
        async for chunk in http.stream():
            body += chunk
            if len(body) > LARGEST_REQUEST:
                return _bad(f"the request is longer than {LARGEST_REQUEST} bytes")
        try:
            request = Request.of(body)
        except (ValueError, TypeError, AttributeError) as error:
            return _bad(f"{error}")
        try:
            total = await run_in_threadpool(helper.sum, request)
        except Refused as error:
            return JSONResponse(
                {"reason": str(error), "members": error.members}, HTTPStatus.CONFLICT
            )
        return Response(total.astype("<u4", copy=False).tobytes())

    async def tell_health(http: HttpRequest) -> Response:
        del http
        return JSONResponse({"fl_app": "helper"})

    return Starlette(
        routes=[
            Route(SUM, tell_sum, methods=["POST"]),
            Route(HEALTH, tell_health, methods=["GET"]),
        ]
    )


def open_helper(folder: Path, least: int) -> Helper:
    """The helper of a folder of the kit.

    Args:
        folder: with ``helper.db`` and ``keys/``.
        least: T, fewest different devices of a sum.

    Raises:
        ValueError: a file is missing, or `least` is out of its bounds.
    """
    ledger = Ledger(folder / RECORD)
    return Helper(ledger.private_key, RegisteredDevices(folder / "keys"), ledger, least)


def serve(folder: Path, host: str, port: int, least: int) -> None:
    """Serve until SIGTERM or SIGINT.

    Only a server with a certificate of the kit's authority is answered.

    Args:
        folder: of the kit, with certificates.
        host: to listen on.
        port: to listen on.
        least: T.

    Raises:
        ValueError: as of `open_helper`.
    """
    uvicorn.run(
        application(open_helper(folder, least)),
        host=host,
        port=port,
        log_level="warning",
        ssl_certfile=folder / "helper.crt",
        ssl_keyfile=folder / "helper.key",
        ssl_ca_certs=str(folder / "ca.crt"),
        ssl_cert_reqs=ssl.CERT_REQUIRED,
    )


def _bad(reason: str) -> Response:
    return JSONResponse({"reason": reason}, HTTPStatus.BAD_REQUEST)
