"""The helper as a process: HTTPS, with a record that outlives it."""

import ssl
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from fl_app.secure.folder import RECORD, RegisteredDevices, fingerprint
from fl_app.secure.helper import Helper
from fl_app.secure.ledger import Ledger
from fl_app.secure.remote import HEALTH, SUM
from fl_app.secure.request import Refused, Request

LARGEST_REQUEST = 16 << 20  # bytes; 10,000 members take 6 MB


def served(folder: Path, least: int, least_noise: float = 0.0) -> Starlette:
    """The HTTP interface of the helper of a folder of the kit: ``POST /sum`` and ``GET /health``.

    Args:
        folder: with ``helper.db`` and ``keys/``.
        least: T, fewest different devices of a sum.
        least_noise: smallest noise multiplier of a sum.

    Raises:
        ValueError: a file is missing, or an argument is out of its bounds.
    """
    ledger, devices = Ledger(folder / RECORD), RegisteredDevices(folder / "keys")
    key = ledger.private_key
    helper = Helper(key, devices, ledger, least, least_noise)

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
        about = {
            "fl_app": "helper",
            "key": fingerprint(key.public_key()),
            "devices": len(devices),
            "min_clients": least,
            "noise_multiplier": least_noise,
        }
        return JSONResponse(about)

    return Starlette(
        routes=[
            Route(SUM, tell_sum, methods=["POST"]),
            Route(HEALTH, tell_health, methods=["GET"]),
        ]
    )


def configured(
    folder: Path, host: str, port: int, least: int, least_noise: float = 0.0
) -> uvicorn.Config:
    """A server for the helper of a folder of the kit.

    Only a server with a certificate of the kit's authority is answered.

    Args:
        folder: of the kit, with certificates.
        host: to listen on.
        port: to listen on.
        least: T.
        least_noise: smallest noise multiplier of a sum.

    Raises:
        ValueError: as of `served`.
    """
    return uvicorn.Config(
        served(folder, least, least_noise),
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


def serve(folder: Path, host: str, port: int, least: int, least_noise: float = 0.0) -> None:
    """Serve until SIGTERM or SIGINT; arguments and errors as of `configured`."""
    server = uvicorn.Server(configured(folder, host, port, least, least_noise))
    with suppress(KeyboardInterrupt):  # after it has shut down
        server.run()


def _bad(reason: str) -> Response:
    return JSONResponse({"reason": reason}, HTTPStatus.BAD_REQUEST)
