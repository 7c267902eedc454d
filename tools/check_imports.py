#!/usr/bin/env python3
"""Fails when an import of the Python package points up: every floor may use only the floors that the table below gives it, no module may use
private modules of another package, and no modules may import each other in a circle. check_includes.py does the same for C++.

A floor is a module or a folder of python/penstock. Imports inside functions count too, and so do those for type checking, except in circles,
because they never run. Usage: check_imports.py [repository root]
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Bottom to top, and what each floor may use besides itself and the native module. "penstock" is the package's own public names
# (penstock.open and others): importing any module imports them first.
FLOORS = {
    "_startup": set(),  # runs before the package is imported, or without it
    "_core": set(),
    "kv": {"_core"},
    "pipe": {"_core"},
    "_tensors": {"_core", "pipe"},
    "_holding": {"_core", "_tensors"},
    "_patch": {"_startup", "_core", "_tensors"},
    "_cufile": {"_core", "penstock"},
    # For programs, one package for each audience.
    "gguf": {"_core", "_tensors"},
    "safetensors": {"_core", "_tensors", "_patch"},
    "weights_cache": {"_core", "_tensors", "_holding"},
    "torch": {"_core", "_tensors", "weights_cache"},
    "weights": {"_core", "_tensors", "_holding", "pipe"},
    "zarr": {"_core", "penstock"},
    "cuda_bindings": {"_core", "_cufile"},
    "cufile": {"_core", "_cufile", "cuda_bindings", "penstock"},
    "gds": {"_core", "_cufile", "penstock"},
    "kvikio": {"_core", "_cufile", "_patch", "cufile", "zarr", "penstock"},
    # Plug-ins for engines.
    "fastsafetensors": {"_core", "_tensors", "_patch"},
    "lmcache": {"_core", "kv"},
    "lmcache_connector": {"_core", "kv"},
    "sglang": {"_core", "kv"},
    "vllm": {"_core", "_tensors", "_holding", "_patch", "kv", "safetensors", "weights_cache"},
    "vllm_weights": {"_core", "weights"},
    # penstock.load() and penstock.save() choose the package for a file.
    "_files": {"_core", "_tensors", "gguf", "safetensors", "torch"},
    "__main__": set(),
}
# Folders that are private to the package as a whole: every floor above may use their modules.
SHARED = {floor for floor in FLOORS if floor.startswith("_")}

# Imports that the rules forbid and that have a reason: (module, what it imports).
ALLOWED = {
    ("_core.pickling", "penstock"),  # a pickled file is opened again with penstock.open(), as the program opened it
}


class Import(NamedTuple):
    file: Path
    line: int
    module: str  # the importing module, without "penstock."; "penstock" for the package's __init__
    target: str  # the imported module, in the same form
    runs: bool  # False: for type checking only


def name_of(file: Path, package: Path) -> str:
    """Returns the name of the module in a file: "_core.errors". A package has the name of its folder."""
    parts = file.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts) or "penstock"


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "_TYPE_CHECKING")


def import_nodes(tree: ast.AST, runs: bool = True) -> Iterator[tuple[ast.Import | ast.ImportFrom, bool]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node, runs
        elif is_for_types(node):
            for each in node.body:
                yield from import_nodes(ast.Module([each], []), False)
            for each in node.orelse:
                yield from import_nodes(ast.Module([each], []), runs)
        else:
            yield from import_nodes(node, runs)


def targets(node: ast.Import | ast.ImportFrom, package: str, modules: set[str]) -> set[str]:
    """Returns the modules of penstock that a statement imports. `package`: the package that contains it: "penstock.torch"."""
    if isinstance(node, ast.Import):
        names = [each.name for each in node.names]
        return {name.partition(".")[2] or "penstock" for name in names if name.split(".")[0] == "penstock"}
    if node.level:
        parts = package.split(".")
        base = ".".join(parts[: len(parts) - node.level + 1] + ([node.module] if node.module else []))
    else:
        base = node.module or ""
    if base.split(".")[0] != "penstock":
        return set()
    base = base.partition(".")[2]
    found = set()
    for each in node.names:
        full = f"{base}.{each.name}" if base else each.name
        found.add(full if full in modules else base or "penstock")
    return found


def all_imports(root: Path) -> list[Import]:
    package = root / "python/penstock"
    files = {name_of(file, package): file for file in sorted(package.rglob("*.py"))}
    modules = {*files, "_native"}
    found = []
    for module, file in files.items():
        inside = "penstock" if module == "penstock" else f"penstock.{module}"
        if file.name != "__init__.py":
            inside = inside.rpartition(".")[0]
        for node, runs in import_nodes(ast.parse(file.read_text(encoding="utf-8"))):
            for target in sorted(targets(node, inside, modules)):
                found.append(Import(file.relative_to(root), node.lineno, module, target, runs))
    return found


def problem_of(each: Import):
    """Returns why the import is forbidden, or None if it is allowed."""
    floor, above = each.target.split(".")[0], each.module.split(".")[0]
    if above == "penstock" or floor in ("_native", above) or (each.module, each.target) in ALLOWED:
        return None  # the package's __init__ stands above everything
    if above not in FLOORS:
        return f"{above} is not a floor of the package: add it to the table in tools/check_imports.py"
    if floor not in FLOORS[above]:
        return f"{above} may not use {floor}; it may use {', '.join(sorted(FLOORS[above])) or 'the native module'}"
    if floor not in SHARED and any(part.startswith("_") for part in each.target.split(".")):
        return f"{each.target} is private to {floor}"
    return None


def circles(imports: list[Import]) -> list[list[str]]:
    """Returns the circles of imports, except those through the package's __init__, which is imported first."""
    uses: dict[str, set[str]] = {}
    for each in imports:
        if each.runs and "penstock" not in (each.module, each.target) and each.module != each.target:
            uses.setdefault(each.module, set()).add(each.target)
    found = []
    done = set()

    def walk(module: str, way: list[str]) -> None:
        if module in way:
            found.append([*way[way.index(module) :], module])
        elif module not in done:
            for target in sorted(uses.get(module, ())):
                walk(target, [*way, module])
            done.add(module)

    for module in sorted(uses):
        walk(module, [])
    return found


def order_problems() -> list[str]:
    """Reports floors that use a floor above them in the table."""
    order = list(FLOORS)
    return [
        f"the table has {floor} below {used}, which it uses"
        for floor, uses in FLOORS.items()
        for used in sorted(uses - {"penstock"})
        if used not in order or order.index(used) > order.index(floor)
    ]


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    if not (root / "python/penstock").is_dir():
        print(f"check_imports: {root} has no python/penstock: not the root of the repository", file=sys.stderr)
        return 2
    imports = all_imports(root)
    problems = order_problems()
    for each in imports:
        reason = problem_of(each)
        if reason:
            problems.append(f"{each.file}:{each.line}: imports {each.target}: {reason}")
    problems += ["in a circle: " + " -> ".join(circle) for circle in circles(imports)]
    for problem in problems:
        print(problem)
    if problems:
        print(f"check_imports: {len(problems)} import(s) point up")
        return 1
    print("check_imports: every import of the Python package points down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
