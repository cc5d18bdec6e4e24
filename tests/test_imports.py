"""The house has floors: engine, tools, labs. No package imports one above it, and no two files import each other."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = ("twophase_kernels", "twophase", "twophase_tools", "twophase_labs")  # from the ground up
WIRING = ("twophase.assembly", "twophase.parallel")  # the only ones that know of several processes


def modules() -> dict[str, Path]:
    found = {}
    for folder in (ROOT / "src", ROOT / "kernels"):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(path: Path) -> set[str]:
    """Modules of ours that a file imports, wherever it does: in a function and for types alone, too."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
    return {name for name in found if name in MODULES}


@pytest.mark.parametrize("floor", FLOORS)
def test_no_package_imports_one_above_it(floor):
    above = FLOORS[FLOORS.index(floor) + 1 :]
    for module, path in MODULES.items():
        if module.partition(".")[0] == floor:
            wrong = {name for name in imports(path) if name.partition(".")[0] in above}
            assert not wrong, f"{module} imports {sorted(wrong)}"


def test_only_the_assembly_knows_of_several_processes():
    for module, path in MODULES.items():
        if module.startswith("twophase.") and not module.startswith(WIRING):
            wrong = {name for name in imports(path) if name.startswith("twophase.parallel")}
            assert not wrong, f"{module} imports {sorted(wrong)}"


def test_there_is_no_circle():
    graph = {module: imports(path) - {module} for module, path in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for name in sorted(graph[module]):
                visit(name, (*path, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def test_the_files_are_found():
    assert {name.partition(".")[0] for name in MODULES} == set(FLOORS)
    assert "twophase.core.request" in imports(MODULES["twophase.scheduling.scheduler"])
