"""Changes the code in small ways and runs the tests that must notice: `make mutants`, described in CONTRIBUTING.md.

Each mutant is one change of one module, made in a copy of the sources and the tests. The copy is first on the path, so
that the processes that tests start have the mutant, too. `mutants.toml` lists the modules with their tests, and the
mutants that no test can tell from the code, each with the reason.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "onejob"
LIST = Path(__file__).with_suffix(".toml")
SWAPS: dict[type[ast.AST], type[Any]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr, ast.Break: ast.Continue, ast.Continue: ast.Break,
}  # fmt: skip
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}
NOTES = ("logger", "log_warning", "logging.", "TypeVar", "cast", "ContextVar")
"""How calls begin that are left alone: they are for readers of logs, and of types."""
Function = (ast.FunctionDef, ast.AsyncFunctionDef)


class Mutant(NamedTuple):
    """One change: where, the lines before and after, and the whole module with it."""

    module: str
    function: str
    line: int
    before: str
    after: str
    source: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What identifies it when lines have moved."""
        return self.module, self.function, self.before, self.after


def _changes(node: ast.AST) -> Iterator[ast.AST]:  # noqa: C901, PLR0912 - one case per kind of node
    """Yield what may stand in place of a node."""
    match node:
        case ast.Compare(left, [ast.Lt | ast.LtE | ast.Gt | ast.GtE as operator], right):
            yield ast.Compare(left, [SWAPS[type(operator)]()], right)
            yield ast.UnaryOp(ast.Not(), node)
        case ast.Compare(left, [operator], right):
            yield ast.Compare(left, [SWAPS[type(operator)]()], right)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(SWAPS[type(operator)](), values)
            for value in values:
                rest = [each for each in values if each is not value]
                yield ast.BoolOp(operator, rest) if len(rest) > 1 else rest[0]
        case ast.BinOp(left, operator, right) if type(operator) in SWAPS:
            yield ast.BinOp(left, SWAPS[type(operator)](), right)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(str() as value) if " " not in value:  # not the texts for people
            yield ast.Constant(f"{value}!")
        case ast.Name(name) if name in NAMES:
            yield ast.Name(NAMES[name])
        case ast.Call(function, args, keywords) if not ast.unparse(function).startswith(NOTES):
            for dropped in [each for each in keywords if each.arg != "strict"]:  # which no caller can break
                yield ast.Call(function, args, [each for each in keywords if each is not dropped])
            if args:
                yield ast.Call(function, args[:-1], keywords)
        case ast.Return(ast.expr() as value) if not isinstance(value, ast.Constant):
            yield ast.Return(ast.Constant(None))
        case ast.Raise() | ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield ast.Pass()
        case ast.Expr(ast.Call(function)) if not ast.unparse(function).startswith(NOTES):
            yield ast.Pass()
        case ast.Break() | ast.Continue():
            yield SWAPS[type(node)]()
        case ast.ExceptHandler(type=handled, name=name, body=body) if not isinstance(body[0], ast.Raise):
            yield ast.ExceptHandler(handled, name, [ast.Raise()])
        case ast.With(body=body):
            yield ast.With([ast.withitem(ast.Name("__import__('contextlib').nullcontext()"))], body)
    for condition in [node.test] if isinstance(node, ast.If | ast.While | ast.IfExp) else getattr(node, "ifs", []):
        if not isinstance(condition, ast.Compare | ast.UnaryOp):  # these have changes of their own
            negated = copy.copy(node)
            if hasattr(node, "test"):
                negated.test = ast.UnaryOp(ast.Not(), condition)  # type: ignore[attr-defined] # seen above
            else:
                others = [each for each in node.ifs if each is not condition]  # type: ignore[attr-defined] # as above
                negated.ifs = [*others, ast.UnaryOp(ast.Not(), condition)]  # type: ignore[attr-defined] # as above
            yield negated


def _sites(node: ast.AST, function: str = "") -> Iterator[tuple[str, ast.AST, str, int | None, ast.AST]]:
    """Yield each node that may change: in which function, its parent, field and index. Types are left alone."""
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "type_params"}:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _is_fixed(child):
                continue
            inner = f"{function}.{child.name}".strip(".") if isinstance(child, (*Function, ast.ClassDef)) else function
            yield inner, node, name, index, child
            yield from _sites(child, inner)


def _is_fixed(node: ast.AST) -> bool:
    """Return whether a node is a docstring, a text for people, or for type checkers only."""
    match node:
        case ast.Expr(ast.Constant()) | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(test=ast.Name("TYPE_CHECKING")) | ast.Assign(targets=[ast.Name("msg")]) | ast.AnnAssign(value=None):
            return True
        case ast.keyword("strict"):
            return True
        case ast.Call(function):
            return ast.unparse(function).startswith(NOTES)
        case _:
            return False


def mutants_of(module: str, functions: Container[str] | None = None) -> list[Mutant]:
    """Return all mutants of a module, or of some of its functions, each once."""
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    before = ast.unparse(tree)
    found: dict[str, Mutant] = {}
    for function, parent, field, index, child in _sites(tree):
        if functions is not None and function not in functions:
            continue
        old = getattr(parent, field)
        for change in _changes(child):
            if index is None:
                setattr(parent, field, change)
            else:
                setattr(parent, field, [*old[:index], change, *old[index + 1 :]])
            after = ast.unparse(ast.fix_missing_locations(tree))
            found.setdefault(after, Mutant(module, function, _line(child), *_difference(before, after), after))
            setattr(parent, field, old)
    return [each for source, each in found.items() if source != before]


def _line(node: ast.AST) -> int:
    return next((part.lineno for part in ast.walk(node) if hasattr(part, "lineno")), 0)


def _difference(before: str, after: str) -> tuple[str, str]:
    """Return the lines that one change has replaced, and those in their place, without what surrounds them."""
    old, new = before.splitlines(), after.splitlines()
    for _ in range(2):  # from the top, then from the bottom
        same = next((number for number, pair in enumerate(zip(old, new, strict=False)) if len({*pair}) > 1), None)
        same = min(len(old), len(new)) if same is None else same
        old, new = old[same:][::-1], new[same:][::-1]
    return "\n".join(line.strip() for line in old), "\n".join(line.strip() for line in new)


def read_list() -> tuple[dict[str, list[str]], dict[tuple[str, str, str, str], str]]:
    """Return the arguments of pytest by module, and the reasons of the equivalent mutants."""
    listed: dict[str, Any] = tomllib.loads(LIST.read_text(encoding="utf-8"))
    keys = ("module", "function", "before", "after")
    equivalent = {tuple(each[key] for key in keys): str(each["reason"]) for each in listed["equivalent"]}
    return {name: shlex.split(text) for name, text in listed["tests"].items()}, equivalent


class Bench:
    """Copies of the sources and the tests, one for each process, in which mutants are tested."""

    def __init__(self, folder: Path, processes: int, seconds: float) -> None:
        self._seconds = seconds
        self._copies = [folder / f"copy-{number}" for number in range(processes)]
        for each in self._copies:
            for name in ("src", "tests"):
                shutil.copytree(ROOT / name, each / name, ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copy(ROOT / "pyproject.toml", each)

    def test(self, module: str, source: str | None, arguments: Sequence[str]) -> tuple[str, str]:
        """Return "survived", "killed" or "timeout", and the end of the output. Without a source: the code as it is."""
        here = self._copies.pop()
        target = here / "src" / "onejob" / module
        original = target.read_text(encoding="utf-8")
        try:
            target.write_text(source or original, encoding="utf-8")
            return self._run(here, [*arguments, "--failed-first", "-o", f"cache_dir={here / 'cache'}"])
        finally:
            target.write_text(original, encoding="utf-8")
            self._copies.append(here)

    def _run(self, here: Path, arguments: Sequence[str]) -> tuple[str, str]:
        """Run pytest; what failed last runs first, since mutants of one line fail by the same test."""
        command = [sys.executable, "-m", "pytest", "-qx", "--tb=line", "-m", "not deep", "--timeout=60", *arguments]
        environment = os.environ | {"PYTHONPATH": str(here / "src")}
        with (here / "output").open("w+", encoding="utf-8") as output:
            process = subprocess.Popen(
                command, cwd=here, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            try:
                code = process.wait(self._seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # its servers and workers end with it
                process.wait()
                return "timeout", ""
            output.seek(0)
            return "killed" if code else "survived", output.read()[-2000:]


def main() -> int:
    """Test the mutants that the arguments choose, and print those that survive; 1 if there are any."""
    tests, equivalent = read_list()
    parser = argparse.ArgumentParser(prog="make mutants", description="Change the code, and see whether tests notice.")
    parser.add_argument("modules", nargs="*", help=f"some of {', '.join(tests)} (default: all)")
    parser.add_argument("--sample", type=int, default=20, help="how many of each module; 0: all (default: 20)")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="makes a sample again")
    parser.add_argument("--line", help="only these lines, such as 40-60")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300.0, help="what the tests of one mutant may take")
    parser.add_argument("--verbose", action="store_true", help="print the killed ones, too, and by which test")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    with tempfile.TemporaryDirectory(prefix="onejob-mutants-") as folder:
        bench = Bench(Path(folder), options.processes, options.seconds)
        return max([_test_module(bench, name, tests[name], equivalent, options) for name in options.modules or tests])


def _test_module(
    bench: Bench, module: str, arguments: Sequence[str], equivalent: dict[tuple[str, str, str, str], str], options: Any
) -> int:
    answer, output = bench.test(module, None, arguments)
    if answer != "survived":
        print(f"{module}: its tests do not pass without a change\n{output}")
        return 2
    begin = time.monotonic()
    every = mutants_of(module)
    chosen = [each for each in every if each.key not in equivalent]
    if options.line:
        first, _, last = options.line.partition("-")
        chosen = [each for each in chosen if int(first) <= each.line <= int(last or first)]
    if 0 < options.sample < len(chosen):
        chosen = random.Random(options.seed).sample(chosen, options.sample)
    counts: Counter[str] = Counter()
    with ThreadPoolExecutor(options.processes) as pool:
        results = pool.map(partial(bench.test, module, arguments=arguments), [each.source for each in chosen])
        for mutant, (outcome, output) in zip(chosen, results, strict=True):
            counts[outcome] += 1
            if outcome == "survived" or options.verbose:
                _print(mutant, outcome, output)
    took, left_out = time.monotonic() - begin, sum(each.key in equivalent for each in every)
    print(f"{module}: {dict(counts)} of {len(every)} mutants ({left_out} equivalent), in {took:.0f} s", flush=True)
    return int(counts["survived"] > 0)


def _print(mutant: Mutant, outcome: str, output: str) -> None:
    by = next((line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
    print(f"src/onejob/{mutant.module}:{mutant.line} {mutant.function} {outcome} {by[:150]}".rstrip())
    for sign, text in (("-", mutant.before), ("+", mutant.after)):
        print("\n".join(f"  {sign} {line}" for line in text.splitlines()), flush=True)


if __name__ == "__main__":
    sys.exit(main())
