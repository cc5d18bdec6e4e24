"""Every way in which kernels cannot run has its own message. The mode is fixed per process, so each case is one."""

import functools
import os
import subprocess
import sys
import sysconfig
import textwrap

import pytest
import torch

from tests.mutation import KillTable, Mutant
from twophase_kernels import KernelsUnavailableError, _triton
from twophase_kernels._triton import cdiv, check_devices, mode, next_power_of_2, tl, triton
from twophase_kernels.rmsnorm_residual import rmsnorm_residual
from twophase_kernels.rope_kv_write import rope_kv_write
from twophase_kernels.silu_mul import silu_mul

HIDE_TRITON = """
import sys
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "triton":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hide())
"""


def run(code, interpret=None):
    """The lines a fresh process prints; by default without TRITON_INTERPRET and without a GPU."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    env |= {"CUDA_VISIBLE_DEVICES": ""} | ({} if interpret is None else {"TRITON_INTERPRET": interpret})
    command = [sys.executable, "-W", "error", "-c", code]
    result = subprocess.run(command, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


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


def ask(*values):
    """Code that sets TRITON_INTERPRET to each value in turn (None: not set) and prints what `mode` then says."""
    return f"""
import os
from twophase_kernels import KernelsUnavailableError, mode
for value in {values!r}:
    os.environ.pop("TRITON_INTERPRET", None)
    if value is not None:
        os.environ["TRITON_INTERPRET"] = value
    try:
        print(mode())
    except KernelsUnavailableError as error:
        print(error)
"""


def test_process_started_without_the_interpreter():
    pytest.importorskip("triton", reason="not run here: no triton")
    lines = run(ask(None, "", "0", "OFF", "1", "yes", "2"))
    for line in lines[:4]:
        assert line.startswith("No GPU that triton can use (0 active drivers")
        assert "set TRITON_INTERPRET=1 before the first import of triton" in line
    for line, value in zip(lines[4:6], ("1", "yes"), strict=True):
        assert line.startswith(f"TRITON_INTERPRET was changed to {value!r} after triton was imported")
        assert "restart the kernel and set it in the first cell" in line
    assert lines[6].startswith("TRITON_INTERPRET='2' is a value that triton does not understand")


def test_process_started_with_the_interpreter():
    pytest.importorskip("triton", reason="not run here: no triton")
    lines = run(ask("true", "1", "ON", "y", "0", None, "ja", "t"), interpret="true")
    assert lines[:4] == ["interpreted"] * 4
    assert lines[4].startswith("TRITON_INTERPRET was changed to '0' after triton")
    assert lines[5].startswith("TRITON_INTERPRET was changed to '' after triton")
    assert lines[6].startswith("TRITON_INTERPRET='ja' is a value that triton does not understand")
    assert lines[7].startswith("TRITON_INTERPRET='t' is a value that triton does not understand")


def test_set_between_the_imports_of_triton_and_of_this_package():
    """triton's own functions are decorated one way, ours the other: neither value is right."""
    pytest.importorskip("triton", reason="not run here: no triton")
    lines = run("import triton, os; os.environ['TRITON_INTERPRET'] = '1'" + ask("1", "0"))
    assert all(line.startswith("TRITON_INTERPRET was changed to ") for line in lines)


def test_a_driver_set_by_hand_counts():
    pytest.importorskip("triton", reason="not run here: no triton")
    code = """
import triton
from ptx_emulator.targets import TARGETS, CompileOnlyDriver
triton.runtime.driver.set_active(CompileOnlyDriver(TARGETS["sm_90"]))
"""
    assert run(code + ask(None)) == ["cuda"]


def test_chosen_by_the_environment(monkeypatch):
    """TWOPHASE_KERNELS=cpu; and what cannot be chosen is said when kernels are asked for, not at the import."""
    pytest.importorskip("triton", reason="not run here: no triton")
    monkeypatch.setenv("TWOPHASE_KERNELS", "cpu")
    assert run(ask(None)) == ["cpu"]
    code = "import torch; from twophase_kernels.silu_mul import silu_mul as f; print(f(torch.ones(1, 2).bfloat16()).tolist())"
    assert run(code) == [str(torch.nn.functional.silu(torch.ones(1, 1)).bfloat16().tolist())]
    (line,) = run(ask("1"), interpret="1")
    assert line == "TWOPHASE_KERNELS=cpu and TRITON_INTERPRET=1 are both set: unset one, and start Python again."
    monkeypatch.setenv("CC", "no_such_compiler")
    (line,) = run(ask(None))
    assert line.startswith("CC is 'no_such_compiler', but there is no program")
    monkeypatch.setenv("TWOPHASE_KERNELS", "gpu")
    (line,) = run(ask(None))
    assert line == "TWOPHASE_KERNELS='gpu' is not a mode that can be chosen: set it to cpu, or unset it."


interpreter_only = pytest.mark.skipif(torch.cuda.is_available(), reason="about the interpreter")


@pytest.fixture
def gpu_without_a_helper(monkeypatch, tmp_path):
    """A process that sees a GPU, in which triton has still to build its helper, with nothing in its cache."""
    pytest.importorskip("triton", reason="not run here: no triton")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("_active", "_default"):
        monkeypatch.setattr(triton.runtime.driver, name, None)


def check_missing_tools(module, monkeypatch, tmp_path, what):
    """Each thing that triton builds with, missing in turn: one message, with what to install."""
    from triton.backends.nvidia import driver

    with monkeypatch.context() as patch:
        expected = {
            "libcuda": "AssertionError: libcuda",
            "compiler": "no gcc or clang in PATH",
            "headers": f"no Python.h in {tmp_path}",
        }[what]
        for found in (driver.libcuda_dirs, driver.library_dirs):  # what an earlier case has found
            getattr(found, "cache_clear", lambda: None)()
        if what != "libcuda":
            patch.setenv("TRITON_LIBCUDA_PATH", str(tmp_path))
        if what == "compiler":
            patch.setenv("PATH", str(tmp_path))
            patch.delenv("CC", raising=False)
        elif what == "headers":
            paths = sysconfig.get_paths() | {"include": str(tmp_path)}
            patch.setattr(sysconfig, "get_paths", lambda *args, **options: paths)
            patch.setenv("CC", "false")  # as gcc ends without them
        with pytest.raises(module.KernelsUnavailableError) as caught:
            module._require_driver()
    message = str(caught.value)
    assert message.startswith("There is a GPU, but Triton cannot build"), message
    assert f"({expected}" in message, message
    assert "apt install gcc python3-dev" in message


@interpreter_only
@pytest.mark.parametrize("what", ["libcuda", "compiler", "headers"])
def test_a_gpu_without_what_triton_builds_with(gpu_without_a_helper, monkeypatch, tmp_path, what):
    check_missing_tools(_triton, monkeypatch, tmp_path, what)


@pytest.mark.mutants
@interpreter_only
@pytest.mark.parametrize("what", ["libcuda", "headers"])
def test_a_mutant_that_expects_one_kind_of_error_is_killed(gpu_without_a_helper, monkeypatch, tmp_path, what):
    check = functools.partial(check_missing_tools, monkeypatch=monkeypatch, tmp_path=tmp_path, what=what)
    KillTable.record(
        Mutant(
            f"only RuntimeError, no {what}",
            "twophase_kernels._triton",
            "except Exception as error",
            "except RuntimeError as error",
        ),
        check,
    )


def write(x, cache):
    """`rope_kv_write` of x [2, 1, 16] as q, k and v into a cache."""
    cos, index = torch.ones(1, 8), torch.zeros(2, dtype=torch.int64)
    return rope_kv_write(x, x, x, cos, cos, index, index, cache, cache)


@interpreter_only
@pytest.mark.parametrize(
    "launch",
    [
        lambda x: mode(x.dtype),
        lambda x: silu_mul(x[:, 0]),
        lambda x: rmsnorm_residual(x[:, 0], None, x[0, 0], 1e-5),
        lambda x: rmsnorm_residual(x[:, 0].float(), None, x[0, 0], 1e-5),
        lambda x: write(x, x[None].float()),
        lambda x: write(x.float(), x[None]),
    ],
    ids=["mode", "silu_mul", "rmsnorm", "rmsnorm weight", "rope_kv_write", "rope_kv_write cache"],
)
def test_bfloat16_is_refused_in_the_interpreter(launch):
    pytest.importorskip("triton", reason="not run here: no triton")
    with pytest.raises(KernelsUnavailableError, match="interpreter computes garbage in bfloat16"):
        launch(torch.ones(2, 1, 16, dtype=torch.bfloat16))
    assert mode(torch.float16) == mode(torch.float32) == mode(torch.int8) == "interpreted"


@triton.jit
def _add(x_ptr, out_ptr):
    x = tl.load(x_ptr + tl.arange(0, 16))
    tl.store(out_ptr + tl.arange(0, 16), x + x)


@interpreter_only
@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_the_interpreter_still_computes_garbage_in_bfloat16():
    """Why it is refused. The day this fails, the refusal can go."""
    pytest.importorskip("triton", reason="not run here: no triton")
    for dtype, is_right in ((torch.float16, True), (torch.bfloat16, False)):
        x, out = torch.full((16,), 1.5, dtype=dtype), torch.zeros(16, dtype=dtype)
        _add[(1,)](x, out)
        assert torch.equal(out, x + x) == is_right


def test_mode_agrees_with_this_machine():
    pytest.importorskip("triton", reason="not run here: no triton")
    assert mode() == ("cuda" if torch.cuda.is_available() else "interpreted")


def test_check_devices():
    pytest.importorskip("triton", reason="not run here: no triton")
    here = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.zeros(1, device=here)
    check_devices(x=x, nothing=None, y=x)
    with pytest.raises(ValueError, match=f"y must be where x is \\({here}"):
        check_devices(x=x, y=torch.zeros(1, device="meta"))
    with pytest.raises(ValueError, match="put every tensor on the"):
        check_devices(x=torch.zeros(1, device="cpu" if here == "cuda" else "meta"))


def test_error_is_a_runtime_error():
    assert issubclass(KernelsUnavailableError, RuntimeError)


def test_integer_helpers():
    assert [cdiv(n, 4) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert [next_power_of_2(n) for n in (1, 2, 3, 64, 65)] == [1, 2, 4, 64, 128]
