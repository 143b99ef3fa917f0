"""The real server."""

from fl_app.server_app import app

__all__ = ["app"]
