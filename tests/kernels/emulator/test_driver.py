"""From a kernel's launch to its PTX: targets, arguments, and the process that compiles."""

import _thread
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from ptx_emulator import CompilingProcess, MemoryFault, emulate, emulated
from ptx_emulator.targets import compiler_environment
from twophase_kernels._triton import mode, tl, triton

pytest.importorskip("triton", reason="not run here: no triton")


@triton.jit
def scale_kernel(x_ptr, y_ptr, factor, shift, BLOCK: tl.constexpr):
    offs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if y_ptr is not None:
        tl.store(y_ptr + offs, tl.load(x_ptr + offs) * factor + shift)


def check_arguments(target):
    x, y = torch.arange(256, dtype=torch.float32), torch.zeros(256)
    machine = emulate(scale_kernel, (1, 2), (x, y, 0.3, -7), target, BLOCK=128)
    torch.testing.assert_close(y, x * 0.3 - 7)
    assert machine.executed["ret"] == 2 * 4, "two blocks of four warps"
    emulate(scale_kernel, (1, 2), (x, y, 2.0, 1 << 40), target, BLOCK=128, num_warps=2)
    assert torch.equal(y, x * 2 + 2.0**40)
    emulate(scale_kernel, (1, 1), (x, None, 2.0, 5), target, BLOCK=128)
    with pytest.raises(ValueError, match="y_ptr: the emulator takes tensors on the CPU"):
        emulate(scale_kernel, (1, 2), (x, y.to("meta"), 0.3, -7), target, BLOCK=128)
    with pytest.raises(MemoryFault, match=r"byte 512 of y_ptr, which has 512 at test_driver\.py:"):
        emulate(scale_kernel, (1, 2), (x, y[:128].clone(), 0.3, -7), target, BLOCK=128)


def test_arguments(compiling):
    compiling.call(check_arguments, "sm_89")


def check_edit():
    x, y = torch.ones(128), torch.zeros(128)
    seen = []
    with emulated("sm_80", lambda ptx: seen.append(ptx) or re.sub(r"st\.global\S* .*;", "", ptx)) as driver:
        scale_kernel[(1, 1)](x, y, 2.0, 1, BLOCK=128)
        assert driver.launches == 1
        assert list(driver.launched) == ["scale_kernel"]
    assert ".target sm_80" in seen[0]
    assert not y.any(), "the store was taken out"
    assert mode() == "cpu"  # and outside all is as it was


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_edited_ptx_runs_instead(compiling):
    compiling.call(check_edit)


def check_unwritten():
    """torch.empty holds what nobody wrote, until torch or a kernel does."""
    with emulated("sm_90"):
        y = torch.empty(2, 64)
        for x in (torch.empty(130)[2:], torch.empty_like(y), y.new_empty(128)):
            with pytest.raises(MemoryFault, match=r"that nobody wrote, at byte \d+ of x_ptr, .*test_driver\.py:"):
                scale_kernel[(1, 1)](x, y, 2.0, 1, BLOCK=128)
            x.view(-1)[:127].fill_(3)
            with pytest.raises(MemoryFault, match=r"that nobody wrote, at byte (508|516) of x_ptr"):
                scale_kernel[(1, 1)](x, y, 2.0, 1, BLOCK=128)
            torch.add(x.view(-1)[:1], 3, out=x.view(-1)[127:])
            scale_kernel[(1, 1)](x, y, 2.0, 1, BLOCK=128)
        scale_kernel[(1, 1)](y, x, 2.0, 1, BLOCK=128)  # the kernel has written y


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_reading_what_nobody_wrote(compiling):
    compiling.call(check_unwritten)


# -- the process ------------------------------------------------------------------------------------------------------


def pid_and_mode(number):
    return os.getpid(), os.environ["TRITON_INTERPRET"], number + 1


def fail(error):
    raise error


def fail_unportably():
    class Local(Exception):
        pass

    raise Local("of a kind that stays there")


def die():
    os._exit(3)


def test_calls_travel_both_ways(compiling):
    pid, value, number = compiling.call(pid_and_mode, number=4)
    assert (value, number) == ("0", 5)
    assert pid not in (os.getpid(), None)
    assert compiling.call(pid_and_mode, 1)[0] == pid, "one process for all"
    with pytest.raises(MemoryFault, match=r"too far at a.py:3  \[ld\]") as caught:
        compiling.call(fail, MemoryFault("too far", "a.py:3", "ld"))
    assert caught.value.source == "a.py:3"
    assert "in fail" in caught.value.__notes__[0], "where it was raised"
    with pytest.raises(RuntimeError, match="Local: of a kind that stays there"):
        compiling.call(fail_unportably)
    assert compiling.call(pid_and_mode, 1)[0] == pid, "an error is not its end"


def sleep_and_answer(seconds):
    time.sleep(seconds)
    return "too late"


@pytest.mark.full  # two more processes, of seconds each
def test_calls_that_end_early():
    """A process that dies is replaced; an interrupted call is not answered later."""
    with CompilingProcess() as process:
        with pytest.raises(RuntimeError, match="ended with exit status 3"):
            process.call(die)
        assert process.call(len, "1234") == 4
        timer = threading.Timer(0.5, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            process.call(sleep_and_answer, 30)
        timer.join()
        assert process.call(len, "12345") == 5


def test_refusals(compiling, monkeypatch):
    with pytest.raises(ValueError, match="covers sm_80, sm_86, sm_89, sm_90; got 'sm_100'"), emulated("sm_100"):
        pass
    monkeypatch.setattr(die, "__module__", "__main__")
    with pytest.raises(ValueError, match="is defined in __main__"):
        compiling.call(die)


def test_the_example_of_the_docs(tmp_path):
    text = (Path(__file__).parents[3] / "docs" / "emulator.md").read_text()
    example = tmp_path / "example.py"
    example.write_text(re.search(r"```python\n(.*?)```", text, re.DOTALL)[1])
    environment = compiler_environment(str(tmp_path / "cache")) | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, example], env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    counts, error = result.stdout.splitlines()
    assert counts.startswith("[(")
    assert re.fullmatch(
        r"read of \d+ bytes at byte 4,000 of x_ptr, which has 4,000 at example.py:11  \[.*ld\.global.*\]", error
    )
