"""Launches through Triton's own `run`: arguments, grids, devices, threads, caches, and other drivers beside ours."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import triton_on_cpu
from ptx_emulator import emulated
from tests.kernels.cpu import programs
from tests.kernels.cpu.programs import with_driver
from tests.kernels.planting import noticing
from tests.mutation import installed, is_killed
from twophase_kernels._triton import mode, triton

pytest.importorskip("triton", reason="not run here: no triton")


def check_arguments():
    """Each type of argument arrives, whatever the strides."""
    x = torch.arange(70, dtype=torch.float32).view(7, 10).T[::2]  # [5, 7], columns first
    codes = torch.arange(-3, 32, dtype=torch.int8).view(5, 7)
    cases = [(5, 0.3, True, None), (-(2**40), 2.0, False, codes), (2**63 + 8, -1.5, True, codes), (1, 1.0, False, None)]
    for dtype, (shift, scale, flag, extra) in zip(
        [torch.float32, torch.bfloat16, torch.int64, torch.float16], cases, strict=True
    ):
        out = torch.full((5, 9), -7, dtype=dtype)[:, 1:8]
        programs.mixed[(5,)](x, extra, out, shift, scale, flag, *x.stride(), *out.stride(), 7, BLOCK=8)
        want = x.double() * torch.tensor(scale).double() + (extra.double() if extra is not None else 0)
        want += shift % 2**20 + 100 * flag
        torch.testing.assert_close(
            out.double(), want.to(dtype).double(), rtol=0.01 if dtype.itemsize == 2 else 1e-6, atol=0.01
        )
        assert (out._base[:, [0, 8]] == -7).all()


def check_grids():
    """x is fastest; an empty grid launches nothing; impossible grids are refused."""
    out = torch.full((2, 3, 4), -1)
    for threads in (1, 3):
        triton_on_cpu.set_num_threads(threads)
        programs.number[(4, 3, 2)](out.fill_(-1))
        assert torch.equal(out.flatten(), torch.arange(24))
    for grid in ((0,), (3, 0), (3, 2, 0)):
        programs.number[grid](out.fill_(-1))
    assert (out == -1).all()
    for grid in ((2**31,), (2**16, 2**15, 2), (-1,), (-2, -3), (0, -1)):
        with pytest.raises(ValueError, match=r"number: the grid \(.*\) must have 0 to 2147483647 programs"):
            programs.number[grid](out)
    with pytest.raises(
        ValueError, match=r"number: the grid \(2\.0, 1, 1\) must be of integers: triton\.cdiv\(n, BLOCK\)"
    ):
        programs.number[(10 / 5,)](out)
    assert (out == -1).all()


def check_devices():
    x, out = torch.ones(128), torch.zeros(128)
    for args, name in (((x.to("meta"), out), "x_ptr"), ((x, out.to("meta")), "out_ptr")):
        with pytest.raises(ValueError, match=f"{name} of double must be a tensor on the CPU.*got a tensor on meta"):
            programs.double[(1,)](*args, 128, BLOCK=128)
    programs.double[(1,)](triton.reinterpret(x.view(torch.int32), triton.language.float32), out, 128, BLOCK=128)
    assert (out == 2).all()


def check_threads():
    assert triton_on_cpu.num_threads() == torch.get_num_threads()
    x = torch.randn(1000)
    outs = []
    for threads in (1, 2, 5, None):
        triton_on_cpu.set_num_threads(threads)
        assert triton_on_cpu.num_threads() == (threads or torch.get_num_threads())
        programs.double[(16,)](x, out := torch.zeros(1000), 1000, BLOCK=64)
        outs.append(out)
    assert all(torch.equal(out, x * 2) for out in outs)
    with pytest.raises(ValueError, match="at least one thread, got 0"):
        triton_on_cpu.set_num_threads(0)


def check_autotuning():
    x, out = torch.ones(100), torch.zeros(100)
    programs.tuned[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, out, 100)
    assert (out == 2).all()


def check_do_bench():
    """Triton's own timer, in milliseconds of the calls alone."""
    times = triton.testing.do_bench(lambda: time.sleep(0.02), warmup=1, rep=60, return_mode="all")
    assert 20 <= min(times) < 2000, times


def check_time_limits():
    """Only a positive number is a limit; a refused one changes nothing."""
    driver = triton_on_cpu.driver.active_driver()
    for limit in (0, -1, float("nan"), "3"):
        with pytest.raises(ValueError, match="time_limit_s must be a positive number of seconds; got"):
            triton_on_cpu.checked(time_limit_s=limit).__enter__()
        assert (driver.checked, driver.time_limit_s) == (False, 60)
    with triton_on_cpu.checked(time_limit_s=float("inf")):
        programs.double[(1,)](torch.ones(8), out := torch.zeros(8), 8, BLOCK=8)
    assert (out == 2).all()


def check_drivers_side_by_side():
    x, out = torch.ones(128), torch.zeros(128)
    programs.double[(1,)](x, out, 128, BLOCK=128)
    assert mode() == "cpu"
    with emulated("sm_80") as driver:
        assert mode() == "emulated"
        programs.double[(1,)](x, out, 128, BLOCK=128)
        assert driver.launches == 1
    programs.double[(1,)](x, out.zero_(), 128, BLOCK=128)
    assert (out == 2).all()
    assert driver.launches == 1
    triton_on_cpu.uninstall()
    with pytest.raises(triton_on_cpu.TritonOnCpuError, match=r"call triton_on_cpu\.install\(\) first"):
        triton_on_cpu.checked().__enter__()


def check_lost_files():
    """A library that no longer loads is said and removed; a folder that takes no files is said."""
    x, out = torch.ones(8), torch.zeros(8)
    kernel = programs.other.warmup(x, out, 8, grid=(1,), BLOCK=8)
    path = next(path for name, path in kernel.metadata_group.items() if name.endswith(".so"))
    Path(path).unlink()
    Path(path).write_bytes(b"\x7fELF, and then the power went")
    with pytest.raises(triton_on_cpu.CompilerError, match=r"other in Triton's cache does not load.*was removed"):
        programs.other[(1,)](x, out, 8, BLOCK=8)
    assert not Path(path).exists()
    programs.forget()
    programs.other[(1,)](x, out, 8, BLOCK=8)
    assert (out == 3).all()


CHECKS = [check_arguments, check_grids, check_devices, check_threads, check_autotuning, check_do_bench,
          check_time_limits, check_lost_files, check_drivers_side_by_side]  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_driver(compiling, check):
    compiling.call(with_driver, check)


def child(code, cache, **environment):
    environment = (
        os.environ
        | {"PYTHONPATH": os.pathsep.join(sys.path), "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(cache)}
        | environment
    )
    return subprocess.Popen(
        [sys.executable, "-c", code], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


RUN = """
import torch, triton_on_cpu
from tests.kernels.cpu import programs
triton_on_cpu.install()
programs.double[(1,)](torch.ones(8), out := torch.zeros(8), 8, BLOCK=8)
print(out.tolist())
"""


@pytest.mark.full
def test_two_processes_compile_the_same_kernel_at_once(tmp_path):
    children = [child(RUN, tmp_path / "cache") for _ in range(2)]
    assert [one.communicate() for one in children] == [(f"{[2.0] * 8}\n", "")] * 2


def test_a_cache_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    out, errors = child(RUN, tmp_path / "file" / "cache").communicate()
    assert out == f"{[2.0] * 8}\n"
    assert "does not take files" in errors
    assert "each process compiles its kernels anew" in errors


MUTANTS = {
    ("launch",): [
        ("unsigned as signed", ', "u64": "Q"}', "}", check_arguments),
        ("places of the signature without constants", "(source.fn.arg_names.index(name), kind.startswith(\"*\")) for name, kind in kinds.items()", "(i, kind.startswith(\"*\")) for i, kind in enumerate(kinds.values())", check_arguments),
        ("two negative extents", " or x < 0 or y < 0:", ":", check_grids),
        ("any number of programs", "0 < x * y * z <= MAX_PROGRAMS", "0 < x * y * z", check_grids),
        ("a grid's error as struct says it", "if not any(isinstance(size, float) for size in (x, y, z)):", "if True:", check_grids),
        ("devices not looked at", 'if not getattr(values[place], "is_cpu", False):', "if False:", check_devices),
        ("only the library is removed", "metadata.name, files.values())", "metadata.name, [])", check_lost_files),
    ],
    ("driver",): [
        ("NaN is a limit", "not time_limit_s > 0:", "time_limit_s <= 0:", check_time_limits),
    ],
    ("pool",): [
        ("torch's threads whatever is set", "return _num_threads or torch", "return torch", check_threads),
    ],
}  # fmt: skip


def noticed(mutant, check):
    """What a check says of a mutant of the launcher, in the child."""

    def with_module(module):
        """In place of the launcher; or of the public functions that are the module's."""
        public = [name for name in triton_on_cpu.__all__ if hasattr(module, name)]
        before = {name: getattr(triton_on_cpu, name) for name in public}
        vars(triton_on_cpu).update({name: getattr(module, name) for name in public})
        try:
            with installed(module):
                with_driver(check)
        finally:
            vars(triton_on_cpu).update(before)

    return is_killed(mutant, with_module)


test_mutants_are_killed = noticing(MUTANTS, "triton_on_cpu", noticed)
