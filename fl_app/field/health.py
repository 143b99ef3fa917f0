"""HTTP requests to a server, a SuperNode or a helper that do not need Flower's client."""

import ssl

import httpx

from fl_app.field.kit import Kit

PATIENCE = 5.0  # seconds


def request(
    address: str, path: str, context: ssl.SSLContext | None, method: str = "GET"
) -> httpx.Response:
    """Send a request without content and return the response, whatever its status.

    Args:
        address: host:port.
        path: such as ``/health``.
        context: the certificates to trust; None sends the request without TLS.
        method: of HTTP.

    Raises:
        httpx.HTTPError: there is no HTTP response.
        httpx.InvalidURL: `address` is none.
    """
    # Devices connect directly, as SuperNodes do: proxies of the environment are not used.
    return httpx.request(
        method,
        f"{'http' if context is None else 'https'}://{address}{path}",
        verify=context or False,
        timeout=PATIENCE,
        trust_env=False,
    )


def healthy(kit: Kit) -> bool:
    """Return whether the SuperLink, the SuperNode or the helper of a folder answers."""
    node = kit.role == "node"
    address = f"127.0.0.1:{kit.settings['PORT']}" if node else kit.address
    try:
        return request(address, "/health", None if node else trusting(kit)).is_success
    except (OSError, httpx.HTTPError, httpx.InvalidURL):
        return False


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
