"""The code of the classes that a configuration names."""

import ast
import hashlib
import inspect
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def sources(config: DictConfig) -> dict[str, str]:
    """Hashes of the code of what a ``_target_`` names, by the module that defines it.

    All code of a module counts, but for comments, docstrings and layout. Modules that it imports do
    not, and neither do modules without a file that can be read.
    """
    hashes = {}
    for target in sorted(set(_targets(OmegaConf.to_container(config, resolve=True)))):
        named = get_object(target)
        with suppress(TypeError, OSError):  # built in, or without a file
            code = Path(inspect.getsourcefile(named) or "").read_bytes()
            hashes[named.__module__] = _hash(code)
    return hashes


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "_target_":
                yield str(value)
            yield from _targets(value)
    elif isinstance(node, list):
        for value in node:
            yield from _targets(value)


@cache
def _hash(code: bytes) -> str:
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()
