"""HTTP requests to a SuperLink or a SuperNode that do not need Flower's client."""

import ssl
from collections.abc import Mapping
from http import HTTPStatus

import httpx

from fl_app.field.kit import Kit

PATIENCE = 5.0  # seconds


def request(
    address: str,
    path: str,
    context: ssl.SSLContext | None,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
) -> httpx.Response:
    """Send a request without content and return the response, whatever its status.

    Args:
        address: host:port.
        path: such as ``/health``.
        context: the certificates to trust; None sends the request without TLS.
        method: of HTTP.
        headers: of the request.

    Raises:
        httpx.HTTPError: there is no HTTP response.
        httpx.InvalidURL: `address` is none.
    """
    # Devices connect directly, as SuperNodes do: proxies of the environment are not used.
    return httpx.request(
        method,
        f"{'http' if context is None else 'https'}://{address}{path}",
        headers=headers,
        verify=context or False,
        timeout=PATIENCE,
        trust_env=False,
    )


def ask(address: str, path: str, context: ssl.SSLContext | None) -> httpx.Response:
    """Send a GET request and return the response.

    Args:
        address: host:port.
        path: such as ``/health``.
        context: the certificates to trust; None sends the request without TLS.

    Raises:
        httpx.HTTPError: there is no HTTP response, or its status is not 200.
        httpx.InvalidURL: `address` is none.
    """
    response = request(address, path, context)
    if response.status_code != HTTPStatus.OK:
        raise httpx.HTTPStatusError(
            f"{path}: {response.status_code} {response.reason_phrase}",
            request=response.request,
            response=response,
        )
    return response


def healthy(kit: Kit) -> bool:
    """Return whether the SuperLink, the SuperNode or the helper of a folder answers."""
    node = kit.role == "node"
    address = f"127.0.0.1:{kit.settings['PORT']}" if node else kit.address
    try:
        ask(address, "/health", None if node else trusting(kit))
    except (OSError, httpx.HTTPError, httpx.InvalidURL):
        return False
    return True


def trusting(kit: Kit) -> ssl.SSLContext | None:
    """Return a context that trusts the kit's authority alone; None if the kit is insecure.

    A helper answers nobody without a certificate, so in its own folder it shows its own.

    Raises:
        OSError: a certificate cannot be read.
    """
    root = kit.root_certificate
    if root is None:
        return None
    context = ssl.create_default_context(cafile=root)
    if kit.role == "helper":
        context.load_cert_chain(kit.folder / "helper.crt", kit.folder / "helper.key")
    return context


def split(address: str) -> tuple[str, int]:
    """Return host (without the brackets of IPv6) and port of an address host:port."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def any_server() -> ssl.SSLContext:
    """Return a context that accepts every certificate.

    It serves to examine a server. Nothing secret may be sent with it.
    """
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
