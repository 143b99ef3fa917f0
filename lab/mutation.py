"""Mutation tests: how many small faults, injected at random, do a package's tests notice?

    python -m lab.mutation [--mutants 60] [--seed 0] [room ...]

A fault is another comparison, operator, number or truth value, or a removed statement. In a copy of
the project, the package's fast tests run until one fails. Some faults change no behaviour.
"""

import argparse
import ast
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PATHS = ("fl_app", "conf", "docs", "examples", "tests", "pyproject.toml", "README.md")
TESTS = {  # of each package, the fastest first
    "core": ["unit/core", "contract/test_reductions.py", "golden"],
    "engine": ["unit/engine"],
    "algorithms": ["golden", "contract/test_reductions.py", "contract/test_algorithms.py"],
    "client": ["unit/client", "golden/test_clients.py"],
    "flower": ["unit/flower"],
}
PATIENCE = 3.0  # times as long as without a fault; tests that take longer have noticed it

PAIRS = [
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
    *((ast.In, ast.NotIn), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or)),
]
REPLACEMENTS: dict[type[ast.AST], type[Any]] = dict(PAIRS) | {other: one for one, other in PAIRS}


def fault(node: ast.AST) -> ast.AST | None:
    """The node with a fault, if it is of a kind that can have one."""
    match node:
        case ast.Compare(left, [op], right) if type(op) in REPLACEMENTS:
            return ast.Compare(left, [REPLACEMENTS[type(op)]()], right)
        case ast.BinOp(left, op, right) if type(op) in REPLACEMENTS:
            return ast.BinOp(left, REPLACEMENTS[type(op)](), right)
        case ast.BoolOp(op, values):
            return ast.BoolOp(REPLACEMENTS[type(op)](), values)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return operand
        case ast.Constant(value=bool(value)):
            return ast.Constant(not value)
        case ast.Constant(value=int(number) | float(number)):
            return ast.Constant(number + 1)
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise():
            return ast.Pass()
    return None


class Mutator(ast.NodeTransformer):
    """Injects the fault with a number, and counts the possible faults."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.count = 0
        self.change = ""

    def visit(self, node: Any) -> Any:
        mutant = fault(node)
        self.count += mutant is not None
        if mutant is not None and self.count == self._number:
            self.change = f"line {node.lineno}: {ast.unparse(node)} -> {ast.unparse(mutant)}"
            return mutant
        return self.generic_visit(node)


def passes(folder: Path, tests: Sequence[str], seconds: float | None) -> bool:
    python = ["env", f"PYTHONPATH={folder}", sys.executable, "-B"]  # before the installed package
    command = [*python, "-m", "pytest", "-qx", "-m", "not slow", *(f"tests/{n}" for n in tests)]
    try:
        process = subprocess.run(command, cwd=folder, timeout=seconds, capture_output=True)
        return process.returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.mutation", description=__doc__)
    parser.add_argument("rooms", nargs="*", default=[*TESTS], help="without: all")
    parser.add_argument("--mutants", type=int, default=60, help="in all rooms together")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for entry in PATHS:
            copy = shutil.copytree if (ROOT / entry).is_dir() else shutil.copy
            copy(ROOT / entry, folder / entry)
        for room in args.rooms:
            began = time.monotonic()
            if not passes(folder, TESTS[room], None):
                sys.exit(f"error: the tests of {room} fail without a fault")
            seconds = 30.0 + PATIENCE * (time.monotonic() - began)
            sites = []
            for path in sorted((folder / "fl_app" / room).rglob("*.py")):
                (counter := Mutator(0)).visit(ast.parse(path.read_text()))
                sites += [(path, number + 1) for number in range(counter.count)]
            sample = random.Random(args.seed).sample(sites, args.mutants // len(args.rooms))
            survivors = 0
            for path, number in sample:
                source = path.read_text()
                mutator = Mutator(number)
                path.write_text(ast.unparse(mutator.visit(ast.parse(source))))
                if passes(folder, TESTS[room], seconds):
                    survivors += 1
                    print(f"  {path.relative_to(folder)}, {mutator.change}", flush=True)
                path.write_text(source)
            print(f"{room}: {len(sample) - survivors} of {len(sample)} faults noticed", flush=True)


if __name__ == "__main__":
    main()
