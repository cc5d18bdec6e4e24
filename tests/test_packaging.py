"""What `pip install .` brings: what the engine and the tools import, and nothing of the course or of the checks."""

import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_imports import MODULES, ROOT, imported_names
from twophase_labs.commands import grade, labs
from twophase_tools import extras
from twophase_tools.cli.main import main
from twophase_tools.extras import MissingPackagesError, check_installed

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
HOOK = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["requirements_txt"]
PACKAGE_OF = {"yaml": "pyyaml", "nbformat": "jupyter", "nbclient": "jupyter", "IPython": "jupyter"}  # of a module
# Parts of a tool that work only with a package of the course: they ask for it, and it is imported in a function.
ASKED_FOR = {"load.pictures": "matplotlib"}


def lines_of(file: str) -> list[str]:
    lines = (line.partition("#")[0].strip() for line in (ROOT / file).read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def packages_in(files: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for file in files for line in lines_of(file)}


ENGINE = packages_in(HOOK["files"])
SERVER = packages_in(HOOK["optional-dependencies"]["server"])
LABS = packages_in(HOOK["optional-dependencies"]["labs"])
DEV = packages_in(HOOK["optional-dependencies"]["dev"])


def third_party(path: Path) -> set[str]:
    """Packages of others that a file imports, wherever it does."""
    found = {name.partition(".")[0] for name in imported_names(path)}
    ours = {module.partition(".")[0] for module in MODULES}
    return {canonicalize_name(PACKAGE_OF.get(name, name)) for name in found - ours - sys.stdlib_module_names}


def imported_by(*packages: str) -> dict[str, set[str]]:
    return {module: third_party(path) for module, path in MODULES.items() if module.partition(".")[0] in packages}


def test_the_engine_and_its_kernels_need_no_extra():
    for module, names in imported_by("twophase", "twophase_features", "twophase_kernels").items():
        assert names <= ENGINE, f"{module} imports {names - ENGINE}: src/twophase/requirements.txt does not bring it"


def test_a_tool_that_needs_a_package_of_the_course_asks_for_it():
    for module, names in imported_by("twophase_tools").items():
        asked_for = {ASKED_FOR.get(module.removeprefix("twophase_tools."))} - {None}
        assert names - ENGINE == asked_for, f"{module} imports {names - ENGINE}, and asks for {asked_for}"


def test_the_server_has_what_it_imports_and_nothing_in_vain():
    named = set().union(*imported_by("twophase_server").values())
    assert named - ENGINE == SERVER


@pytest.mark.parametrize("module", ["twophase_server.settings", "twophase_server.metric_families"])
def test_what_tools_read_of_the_server_needs_no_extra(module):
    assert third_party(MODULES[module]) <= ENGINE
    assert third_party(MODULES["twophase_server"]) == set()


def test_the_course_has_what_it_imports():
    assert LABS > SERVER
    for module, names in imported_by("twophase_labs").items():
        assert names <= ENGINE | LABS, f"{module} imports {names - ENGINE - LABS}"


def test_nothing_is_brought_in_vain():
    used = set().union(*imported_by("twophase", "twophase_features", "twophase_kernels", "twophase_tools").values())
    assert used >= ENGINE, f"nothing imports {ENGINE - used}"


def test_each_pin_stands_once_and_requirements_txt_has_all():
    extras = (file for files in HOOK["optional-dependencies"].values() for file in files)
    parts = [*HOOK["files"], *dict.fromkeys(extras)]  # the course brings the server as well
    assert lines_of("requirements.txt") == [f"-r {file}" for file in parts]
    assert len(ENGINE) + len(LABS) + len(DEV) == len(ENGINE | LABS | DEV) == sum(len(lines_of(file)) for file in parts)
    assert all("==" in line for file in parts for line in lines_of(file))


# -- a command of the course without the course -----------------------------------------------------------------------

WHEEL = ["torch==2.13.0", "jupyter==1.1.1; extra == 'labs'", "jupytext==9; sys_platform == 'plan9' and extra == 'labs'"]
WHEEL += ["no-such-package==1; extra == 'labs'", "pytest==9.2.0; extra == 'dev'"]


@pytest.fixture
def bare(monkeypatch):
    """An installation without extras."""
    monkeypatch.setattr(extras.metadata, "requires", lambda name: WHEEL)
    monkeypatch.setattr(extras, "is_installed", lambda name: name in {"torch"})


@pytest.mark.usefixtures("bare")
def test_the_message_names_what_is_missing_and_the_extra():
    check_installed("this", "torch")
    with pytest.raises(
        MissingPackagesError,
        match=r"^this needs jupyter, no-such-package, .* extra twophase\[labs\]: pip install '\.\[la",
    ):
        check_installed("this")


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("command", "needs"), [("bench engine", "transformers"), ("serve", "starlette, uvicorn")])
def test_tools_ask_before_they_begin(capsys, command, needs):
    assert main(command.split()) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"needs {needs}" in err
    assert "install the extra twophase[" in err


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize(("command", "words"), [(grade, ["labs"]), (labs, ["list"])])
def test_commands_of_the_course_ask_before_they_begin(command, words):
    with pytest.raises(MissingPackagesError, match=r"^twophase (grade|labs) needs jupyter, .*twophase\[labs\]"):
        command.main(words)
