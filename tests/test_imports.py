"""The house has floors: Triton on a CPU, kernels, emulator, engine, features, server, tools, labs. No package imports one above it, and no two files import each other."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = (
    "triton_on_cpu",
    "twophase_kernels",
    "ptx_emulator",
    "twophase",
    "twophase_features",
    "twophase_server",
    "twophase_tools",
    "twophase_labs",
)


def modules() -> dict[str, Path]:
    found = {}
    for folder in (ROOT / "src", ROOT / "kernels"):
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imported_names(path: Path) -> set[str]:
    """What a file imports, wherever it does: in a function and for types alone, too. `module.name` of a name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def imports(path: Path) -> set[str]:
    """Modules of ours that a file imports."""
    names = imported_names(path)
    return {name if name in MODULES else name.rpartition(".")[0] for name in names} & set(MODULES)


@pytest.mark.parametrize("floor", FLOORS)
def test_no_package_imports_one_above_it(floor):
    above = FLOORS[FLOORS.index(floor) + 1 :]
    for module, path in MODULES.items():
        if module.partition(".")[0] == floor:
            wrong = {name for name in imports(path) if name.partition(".")[0] in above}
            assert not wrong, f"{module} imports {sorted(wrong)}"


def is_private(dotted: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in dotted.split("."))


@pytest.mark.parametrize("floor", ["twophase_server", "twophase_tools", "twophase_labs"])
def test_no_server_no_tool_and_no_lab_reaches_into_the_engine(floor):
    """Neither a private module of it, nor a private name of a public one."""
    for module, path in MODULES.items():
        if module.partition(".")[0] == floor:
            wrong = {
                name
                for name in imported_names(path)
                if name.startswith(("twophase.", "twophase_features.")) and is_private(name)
            }
            assert not wrong, f"{module} imports {sorted(wrong)}"


@pytest.mark.parametrize(
    "package",
    sorted(
        f"{house.name}.{path.parent.name}"
        for house in (ROOT / "src/twophase", ROOT / "src/twophase_features")
        for path in house.glob("*/__init__.py")
    ),
)
def test_a_package_says_what_is_public(package):
    modules = {name.removeprefix(f"{package}.") for name in MODULES if name.startswith(f"{package}.")}
    public = {name for name in modules if not is_private(name)}
    said = ast.get_docstring(ast.parse(MODULES[package].read_text(encoding="utf-8")))
    assert {name for name in public if f"`{name}`" not in said} == set(), "is public, and not listed"
    assert all(name.strip("`").partition(".")[0] in modules for name in re.findall("`[a-z_]+`", said)), said


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


def public(package: str) -> set[str]:
    """The modules that a package's `__init__` lists in `__all__`."""
    for node in ast.parse(MODULES[package].read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
            return {f"{package}.{name}" for name in ast.literal_eval(node.value)}
    return set()


def test_the_course_imports_what_the_tools_list_as_public():
    tools = {name for name, path in MODULES.items() if name.startswith("twophase_tools") and path.stem == "__init__"}
    listed = set().union(*map(public, tools))
    assert listed <= set(MODULES), f"listed, and not there: {listed - set(MODULES)}"
    notebooks = {path.stem: path for path in (ROOT / "labsolutions").glob("*.py")}
    course = {name: path for name, path in MODULES.items() if name.startswith("twophase_labs")} | notebooks
    for name, path in course.items():
        imported = {module for module in imports(path) if module.startswith("twophase_tools.")}
        assert imported <= listed, f"{name} imports {imported - listed}"


def test_the_files_are_found():
    assert {name.partition(".")[0] for name in MODULES} == set(FLOORS)
    assert "twophase.core.request" in imports(MODULES["twophase.scheduling.scheduler"])
