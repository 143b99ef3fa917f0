"""The code of the classes that a configuration names."""

import ast
import hashlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def sources(config: DictConfig) -> list[str]:
    """Hashes of the code of the modules whose classes and functions a ``_target_`` names.

    Of a package all files count. Comments, docstrings and layout do not. Modules without a file
    that can be read are left out.
    """
    targets = sorted(set(_targets(OmegaConf.to_container(config, resolve=True))))
    files = {path for target in targets for path in _files(target)}
    return sorted(_hash(path) for path in files)


def _targets(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key == "_target_":
                yield str(value)
            yield from _targets(value)
    elif isinstance(node, list):
        for value in node:
            yield from _targets(value)


def _files(target: str) -> list[Path]:
    module = target
    while module := module.rpartition(".")[0]:  # a target may be a method of a class
        try:
            spec = find_spec(module)
        except ModuleNotFoundError:
            continue
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            path = Path(spec.origin)
            return sorted(path.parent.glob("*.py")) if path.name == "__init__.py" else [path]
    return []


def _hash(path: Path) -> str:
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, WITH_DOCSTRING) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()
