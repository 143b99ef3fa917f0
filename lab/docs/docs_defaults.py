"""An extension of Griffe: signatures show the default of a hyper-parameter, not its bound."""

from typing import Any

from griffe import Attribute, ExprCall, Extension


class Defaults(Extension):
    """`lr: float = bounded(0.2, ...)` is shown as `lr=0.2`."""

    def on_attribute_instance(self, *, attr: Attribute, **_: Any) -> None:
        """Called before the fields of dataclasses become parameters."""
        if isinstance(attr.value, ExprCall) and str(attr.value.function) == "bounded":
            attr.value = attr.value.arguments[0]
