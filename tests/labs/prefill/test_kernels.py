"""The reference kernels of lab 2 compile for GPUs, in the tiles in which they are launched there.

A process of its own: this one may run the interpreter. What is compiled are the solved cells of the lab's source.
"""

import json
import subprocess
import sys

import pytest

from ptx_emulator.targets import compiler_environment

pytest.importorskip("triton", reason="not run here: no triton")

COMPILE = """
import dataclasses, json, sys
from pathlib import Path
from ptx_emulator.targets import CompileOnlyDriver, TARGETS
from twophase_kernels._triton import triton
from tests.kernels.production import AotConfig
from tests.kernels.aot import compile_configs
triton.runtime.driver.set_active(CompileOnlyDriver(TARGETS["sm_80"]))  # before anything asks for a GPU
import torch
from twophase_labs.machine.lab import Workbook
from twophase_labs.prefill import launch
from twophase_labs.machine.solved import run_reference

cells = run_reference(Workbook(Path(sys.argv[1])).lab("02"))


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def paged_prefill(dtype, block_m, block_n):
    cache, table = meta(64, 3, 16, 64, dtype=dtype), meta(4, 16, dtype=torch.int32)
    lens, bounds = meta(4, dtype=torch.int32), meta(5, dtype=torch.int32)
    launch.launch_paged_prefill(
        cells["paged_prefill_kernel"], meta(500, 9, 64, dtype=dtype), cache, cache, table, lens, bounds, 0.125,
        max_query_len=200, block_m=block_m, block_n=block_n,
    )


def flash(dtype):
    head = meta(500, 64, dtype=dtype)
    launch.launch_flash_attention(cells["flash_attention_kernel"], head, head, head, 0.125)


def kv_write(dtype):
    new, cache = meta(500, 3, 64, dtype=dtype), meta(64, 3, 16, 64, dtype=dtype)
    launch.launch_kv_write(cells["kv_write_kernel"], new, new, cache, cache, meta(500, dtype=torch.int64))


def add_norm(dtype):
    x = meta(500, 576, dtype=dtype)
    launch.launch_add_rmsnorm(cells["add_rmsnorm_kernel"], x, x, meta(576, dtype=dtype), 1e-5)


configs = []
for dtype in (torch.float32, torch.bfloat16):
    configs += [
        AotConfig(f"prefill {dtype}", lambda d=dtype: paged_prefill(d, 32, 32)),
        AotConfig(f"flash {dtype}", lambda d=dtype: flash(d)),
        AotConfig(f"write {dtype}", lambda d=dtype: kv_write(d)),
        AotConfig(f"norm {dtype}", lambda d=dtype: add_norm(d)),
    ]
configs.append(AotConfig("prefill of a check", lambda: paged_prefill(torch.float32, 16, 16)))
reports = [report for target in ("sm_80", "sm_90") for report in compile_configs(target, configs)]
print(json.dumps([[r.kernel, r.target, r.spill_bytes, r.config] for r in reports]))
"""


@pytest.mark.full
def test_reference_kernels_compile(tmp_path):
    root = __file__.rpartition("/tests/")[0]
    command = [sys.executable, "-c", COMPILE, root]
    result = subprocess.run(command, env=compiler_environment(str(tmp_path)), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    compiled = json.loads(result.stdout.splitlines()[-1])
    kernels = {"flash_attention_kernel", "paged_prefill_kernel", "kv_write_kernel", "add_rmsnorm_kernel"}
    assert {(kernel, target) for kernel, target, *_ in compiled} == {
        (k, t) for k in kernels for t in ("sm_80", "sm_90")
    }
    # float32 has no matrix units, and a tile of it more than four warps' registers hold.
    spilling = [(config, target) for _, target, spill_bytes, config in compiled if spill_bytes and "bf" in config]
    assert spilling == [], "a kernel spills registers"
