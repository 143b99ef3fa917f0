"""Mutation tests: of small faults that are put in at random, how many do a room's tests notice?

    python -m lab.mutation [--mutants 60] [--seed 0] [room ...]

A fault is another comparison, operator, number or truth value, or a statement that is left out. In
a copy of the project, the room's fast tests run until one fails. Some faults change no behaviour.
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
COPIED = ("fl_app", "conf", "docs", "examples", "tests", "pyproject.toml", "README.md")
TESTS = {  # of each room, the quickest first
    "core": ["unit/core", "contract/test_reductions.py", "golden"],
    "engine": ["unit/engine"],
    "algorithms": ["golden", "contract/test_reductions.py", "contract/test_algorithms.py"],
    "client": ["unit/client", "golden/test_fedper.py"],
    "flower": ["unit/flower"],
}
PATIENCE = 3.0  # times as long as without a fault; whoever takes longer has noticed it

PAIRS = [
    *((ast.Lt, ast.LtE), (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.Is, ast.IsNot)),
    *((ast.In, ast.NotIn), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.And, ast.Or)),
]
ANOTHER: dict[type[ast.AST], type[Any]] = dict(PAIRS) | {other: one for one, other in PAIRS}


def fault(node: ast.AST) -> ast.AST | None:
    """The node with a fault, if it is of a kind that can have one."""
    match node:
        case ast.Compare(left, [op], right) if type(op) in ANOTHER:
            return ast.Compare(left, [ANOTHER[type(op)]()], right)
        case ast.BinOp(left, op, right) if type(op) in ANOTHER:
            return ast.BinOp(left, ANOTHER[type(op)](), right)
        case ast.BoolOp(op, values):
            return ast.BoolOp(ANOTHER[type(op)](), values)
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
    """Puts in the fault of a number, and counts those that could be put in."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.count = 0
        self.told = ""

    def visit(self, node: Any) -> Any:
        changed = fault(node)
        self.count += changed is not None
        if changed is not None and self.count == self._number:
            self.told = f"line {node.lineno}: {ast.unparse(node)} -> {ast.unparse(changed)}"
            return changed
        return self.generic_visit(node)


def passes(folder: Path, tests: Sequence[str], seconds: float | None) -> bool:
    python = ["env", f"PYTHONPATH={folder}", sys.executable, "-B"]  # before what is installed
    command = [*python, "-m", "pytest", "-qx", "-m", "not slow", *(f"tests/{n}" for n in tests)]
    try:
        done = subprocess.run(command, cwd=folder, timeout=seconds, capture_output=True)
        return done.returncode == 0
    except subprocess.TimeoutExpired:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m lab.mutation", description=__doc__)
    parser.add_argument("rooms", nargs="*", default=[*TESTS], help="without: all")
    parser.add_argument("--mutants", type=int, default=60, help="in all rooms together")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part in COPIED:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, folder / part)
        for room in given.rooms:
            began = time.monotonic()
            if not passes(folder, TESTS[room], None):
                sys.exit(f"error: the tests of {room} fail without a fault")
            seconds = 30.0 + PATIENCE * (time.monotonic() - began)
            sites = []
            for path in sorted((folder / "fl_app" / room).rglob("*.py")):
                (counter := Mutator(0)).visit(ast.parse(path.read_text()))
                sites += [(path, number + 1) for number in range(counter.count)]
            drawn = random.Random(given.seed).sample(sites, given.mutants // len(given.rooms))
            missed = 0
            for path, number in drawn:
                source = path.read_text()
                mutator = Mutator(number)
                path.write_text(ast.unparse(mutator.visit(ast.parse(source))))
                if passes(folder, TESTS[room], seconds):
                    missed += 1
                    print(f"  {path.relative_to(folder)}, {mutator.told}", flush=True)
                path.write_text(source)
            print(f"{room}: {len(drawn) - missed} of {len(drawn)} faults noticed", flush=True)


if __name__ == "__main__":
    main()
