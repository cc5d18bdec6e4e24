"""Every way in which kernels cannot run has its own message. The mode is fixed per process, so each case is one."""

import functools
import json
import os
import subprocess
import sys
import sysconfig
import textwrap

import pytest
import torch

from twophase_kernels import KernelsUnavailableError, _triton
from twophase_kernels._triton import triton
from twophase_kernels.choice import Choice, choose

HIDE_TRITON = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""


# Each case is a fork of a process that has imported torch, which takes longer than most cases.
SERVER = """
import json, os, sys, tempfile, warnings
import torch
for line in sys.stdin:
    code, environment = json.loads(line)
    with tempfile.TemporaryFile("w+") as out:
        if (child := os.fork()) == 0:
            os.environ.clear()
            os.environ.update(environment)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            warnings.simplefilter("error")
            exec(code, {"__name__": "__main__"})
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        out.seek(0)
        print(json.dumps([status, out.read()]), flush=True)
"""


@functools.cache
def server():
    command, environment = [sys.executable, "-c", SERVER], os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.fixture(autouse=True, scope="module")
def end_of_server():
    yield
    server().communicate()
    server.cache_clear()


def run(code, **variables):
    """The lines a fresh process prints; without a GPU, and unless given without the variables that name a mode."""
    env = {name: value for name, value in os.environ.items() if name not in ("TRITON_INTERPRET", "TWOPHASE_KERNELS")}
    server().stdin.write(json.dumps([code, env | {"CUDA_VISIBLE_DEVICES": ""} | variables]) + "\n")
    server().stdin.flush()
    status, text = json.loads(server().stdout.readline())
    assert status == 0, text
    return text.splitlines()


def test_without_triton_modules_import_and_launching_says_so():
    code = """
    import importlib, pkgutil, torch, twophase_kernels
    for module in pkgutil.iter_modules(twophase_kernels.__path__):
        importlib.import_module(f"twophase_kernels.{module.name}")
    from twophase_kernels.quant import quantise_reference
    from twophase_kernels.silu_mul import silu_mul, silu_mul_reference
    x = torch.ones(2, 8)
    assert silu_mul_reference(x).shape == (2, 4) and quantise_reference(x, "int8")[0].dtype == torch.int8
    try:
        silu_mul(x)
    except twophase_kernels.KernelsUnavailableError as error:
        print(error)
    """
    (message,) = run(HIDE_TRITON + textwrap.dedent(code))
    assert message.startswith("Triton is not installed (No module named 'triton'")
    assert "pip install triton" in message
    assert "attention_backend='torch'" in message


SAY = """
from twophase_kernels import KernelsUnavailableError, mode
try:
    print(mode())
except KernelsUnavailableError as error:
    print(error)
"""


def ask(*values):
    """Code that sets TRITON_INTERPRET to each value in turn (None: not set) and prints what `mode` then says."""
    setting = "os.environ.pop('TRITON_INTERPRET', None)", "os.environ['TRITON_INTERPRET'] = {!r}"
    return "import os\n" + "".join(setting[value is not None].format(value) + SAY for value in values)


TOO_LATE = "Kernels are to be interpreted, because {}, but triton was imported before that was decided"
TOO_LATE_FOR_THE_CPU = "Kernels are to be compiled for the CPU, because there is no GPU, but triton was imported"
UNKNOWN = "TRITON_INTERPRET={!r} is a value that triton does not understand"
OTHER_DRIVER = """
import triton
from ptx_emulator.targets import TARGETS, CompileOnlyDriver
triton.runtime.driver.set_active(CompileOnlyDriver(TARGETS["sm_90"]))
"""
MODES = {
    "started without the interpreter": (
        ask(None, "", "0", "OFF", "1", "yes", "2"), {},
        ["cpu"] * 4 + [TOO_LATE.format(f"TRITON_INTERPRET={value}") for value in ("1", "yes")] + [UNKNOWN.format("2")],
    ),
    "started with the interpreter": (
        ask("true", "1", "ON", "y", "0", None, "ja", "t"), {"TRITON_INTERPRET": "true"},
        ["interpreted"] * 4 + [TOO_LATE_FOR_THE_CPU] * 2 + [UNKNOWN.format(value) for value in ("ja", "t")],
    ),
    # Triton's own functions are decorated one way, ours the other: neither value is right.
    "set between the imports of triton and of this package": (
        "import triton, os; os.environ['TRITON_INTERPRET'] = '1'\n" + ask("1", "0"), {},
        [TOO_LATE.format("TRITON_INTERPRET=1"), TOO_LATE_FOR_THE_CPU],
    ),
    "the other variable changed later": (
        f"{SAY}\nimport os; os.environ['TWOPHASE_KERNELS'] = 'interpreted'{SAY}", {},
        ["cpu", TOO_LATE.format("TWOPHASE_KERNELS=interpreted")],
    ),
    "a driver set by hand": (OTHER_DRIVER + SAY, {}, ["cuda"]),
    # What cannot be chosen is said when kernels are asked for, not at the import.
    "a GPU by name": (SAY, {"TWOPHASE_KERNELS": "cuda"}, ["No GPU that triton can use (0 active drivers"]),
    "a name that is none": (
        SAY, {"TWOPHASE_KERNELS": "gpu"}, ["TWOPHASE_KERNELS='gpu' is not a mode: set it to cuda, cpu or interpreted, or unset it."]
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MODES)
def test_mode(case):
    pytest.importorskip("triton", reason="not run here: no triton")
    code, environment, expected = MODES[case]
    for line, beginning in zip(run(code, **environment), expected, strict=True):
        assert line.startswith(beginning)
        assert "but triton was imported" not in line or "restart the kernel" in line


@pytest.mark.parametrize("value", [None, "", "0", "1", "yes"])
@pytest.mark.parametrize("named", ["cpu", "cuda", "interpreted"])
def test_two_variables(named, value):
    given = {"TWOPHASE_KERNELS": named} | ({} if value is None else {"TRITON_INTERPRET": value})
    if value in (None, "") or (value != "0") == (named == "interpreted"):
        assert choose(given, has_gpu=True, has_compiler=True) == Choice(named, f"because TWOPHASE_KERNELS={named}")
    else:
        with pytest.raises(ValueError, match=f"={named} and TRITON_INTERPRET={value} are both set, and contradict"):
            choose(given, has_gpu=True, has_compiler=True)


def test_without_a_compiler(tmp_path):
    """Interpreted, unless it is too late for that; a compiler that was named is not replaced."""
    pytest.importorskip("triton", reason="not run here: no triton")
    hidden = {"PATH": str(tmp_path)}
    because = "from twophase_kernels._triton import reason; print(reason())"
    again = "; from twophase_kernels.choice import choice_here; print(choice_here().reason)"  # as doctor asks
    no_compiler = "because there is neither a GPU nor a C compiler"
    assert run(SAY + because + again, **hidden) == ["interpreted", no_compiler, no_compiler]
    for code, environment, beginning in (
        ("import triton" + SAY, {}, f"Kernels are to be interpreted, {no_compiler}, but triton"),
        (SAY, {"TRITON_INTERPRET": "0"}, "There is no C compiler: no gcc or clang in PATH"),
        (SAY, {"CC": "no_such_compiler"}, "CC is 'no_such_compiler', but there is no program"),
    ):
        (line,) = run(code, **hidden, **environment)
        assert line.startswith(beginning)


def test_a_gpu_comes_first():
    assert choose({}, has_gpu=True, has_compiler=False) == Choice("cuda", "because there is a GPU")
    assert choose({}, has_gpu=False, has_compiler=True) == Choice("cpu", "because there is no GPU")
    assert choose({}, has_gpu=False, has_compiler=False).mode == "interpreted"
    assert choose({"TRITON_INTERPRET": "1"}, has_gpu=True, has_compiler=True).mode == "interpreted"
    assert choose({"TWOPHASE_KERNELS": "cpu"}, has_gpu=True, has_compiler=False).mode == "cpu"


@pytest.mark.skipif(torch.cuda.is_available(), reason="about a GPU that is not there")
@pytest.mark.parametrize("what", ["libcuda", "headers"])
def test_a_gpu_without_what_triton_builds_with(monkeypatch, tmp_path, what):
    """A process that sees a GPU, in which triton has still to build its helper, and lacks what it builds with."""
    pytest.importorskip("triton", reason="not run here: no triton")
    from triton.backends.nvidia import driver

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("_active", "_default"):
        monkeypatch.setattr(triton.runtime.driver, name, None)
    for found in (driver.libcuda_dirs, driver.library_dirs):  # what an earlier case has found
        getattr(found, "cache_clear", lambda: None)()
    expected = "AssertionError: libcuda"
    if what == "headers":
        expected = f"no Python.h in {tmp_path}"
        paths = sysconfig.get_paths() | {"include": str(tmp_path)}
        monkeypatch.setattr(sysconfig, "get_paths", lambda *args, **options: paths)
        monkeypatch.setenv("TRITON_LIBCUDA_PATH", str(tmp_path))
        monkeypatch.setenv("CC", "false")  # as gcc ends without them
    with pytest.raises(KernelsUnavailableError) as caught:
        _triton._require_driver()
    message = str(caught.value)
    assert message.startswith("There is a GPU, but Triton cannot build"), message
    assert f"({expected}" in message
    assert "apt install gcc python3-dev" in message
