"""How updates become the next global model."""

from fl_app.strategy.strategy import AsyncStrategy as AsyncStrategy
