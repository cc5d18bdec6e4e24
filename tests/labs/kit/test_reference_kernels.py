"""The solved kernels of labs 2 and 3 compile for GPUs that this machine does not have, in the tiles in which they are
launched there. A process of its own: this one may run the interpreter."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("triton", reason="not run here: no triton")

from ptx_emulator.targets import compiler_environment

COMPILE = """
import json, sys
from ptx_emulator.targets import CompileOnlyDriver, TARGETS
from twophase_kernels._triton import triton
from tests.kernels.production import AotConfig
from tests.kernels.aot import compile_configs
triton.runtime.driver.set_active(CompileOnlyDriver(TARGETS["sm_80"]))  # before anything asks for a GPU
import torch
from twophase_labs.decode.launch import launch_paged_decode, launch_paged_decode_split
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference
from twophase_labs.prefill import launch

prefill, decode = (run_reference(Workbook.find().lab(number)) for number in ("02", "03"))


def meta(*shape, dtype=torch.float32):
    return torch.empty(shape, dtype=dtype, device="meta")


def paged_prefill(dtype, block=32):
    cache, table = meta(64, 3, 16, 64, dtype=dtype), meta(4, 16, dtype=torch.int32)
    lens, bounds = meta(4, dtype=torch.int32), meta(5, dtype=torch.int32)
    launch.launch_paged_prefill(
        prefill["paged_prefill_kernel"], meta(500, 9, 64, dtype=dtype), cache, cache, table, lens, bounds, 0.125,
        max_query_len=200, block_m=block, block_n=block,
    )


def of_a_layer(dtype):
    head, new, cache = meta(500, 64, dtype=dtype), meta(500, 3, 64, dtype=dtype), meta(64, 3, 16, 64, dtype=dtype)
    launch.launch_flash_attention(prefill["flash_attention_kernel"], head, head, head, 0.125)
    launch.launch_kv_write(prefill["kv_write_kernel"], new, new, cache, cache, meta(500, dtype=torch.int64))
    x = meta(500, 576, dtype=dtype)
    launch.launch_add_rmsnorm(prefill["add_rmsnorm_kernel"], x, x, meta(576, dtype=dtype), 1e-5)


def of_a_decode(dtype, heads, kv_heads, head_dim):
    q, cache = meta(4, heads, head_dim, dtype=dtype), meta(64, kv_heads, 16, head_dim, dtype=dtype)
    inputs = q, cache, cache, meta(4, 16, dtype=torch.int32), meta(4, dtype=torch.int32), 0.1
    launch_paged_decode(decode["paged_decode_kernel"], *inputs)
    launch_paged_decode_split(decode["paged_decode_split_kernel"], *inputs, 5)


configs = [AotConfig("fp32 prefill of a check", lambda: paged_prefill(torch.float32, 16))]
for name, dtype in {"fp32": torch.float32, "bf16": torch.bfloat16}.items():
    configs += [AotConfig(f"{name} prefill", lambda dtype=dtype: paged_prefill(dtype))]
    configs += [AotConfig(f"{name} layer", lambda dtype=dtype: of_a_layer(dtype))]
    for model, shape in {"SmolLM2": (9, 3, 64), "Llama": (32, 8, 128), "odd": (5, 1, 80)}.items():
        run = lambda dtype=dtype, shape=shape: of_a_decode(dtype, *shape)
        configs.append(AotConfig(f"{name} {model}", run))
reports = [report for target in ("sm_80", "sm_90") for report in compile_configs(target, configs)]
print(json.dumps([[r.kernel, r.target, r.config, r.spill_bytes, r.kv_buffers] for r in reports]))
"""
KERNELS = {
    *("flash_attention_kernel", "paged_prefill_kernel", "kv_write_kernel", "add_rmsnorm_kernel"),
    *("paged_decode_kernel", "paged_decode_split_kernel"),
}


@pytest.mark.full
def test_reference_kernels_compile(tmp_path):
    command = [sys.executable, "-c", COMPILE]
    result = subprocess.run(command, env=compiler_environment(str(tmp_path)), capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    reports = json.loads(result.stdout.splitlines()[-1])
    assert {(kernel, target) for kernel, target, *_ in reports} == {(k, t) for k in KERNELS for t in ("sm_80", "sm_90")}
    # float32 has no matrix units, and a tile of a prefill in it more than four warps' registers hold.
    may_spill = ("fp32 prefill", "fp32 layer")
    assert [row for row in reports if row[3] and not row[2].startswith(may_spill)] == [], "a kernel spills registers"
    # Section 5 of lab 3 says that production keeps more tiles of K and V under way; test_aot.py has the other side.
    depths = {config: depth for kernel, _, config, _, depth in reports if kernel == "paged_decode_kernel"}
    assert depths["bf16 Llama"] == depths["bf16 SmolLM2"] == 1
