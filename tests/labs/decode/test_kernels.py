"""Lab 3's kernels, as solved in the notebook's source, compile for GPUs this machine does not have."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("triton")

from ptx_emulator.targets import compiler_environment

COMPILES = """
import json, sys, torch
from ptx_emulator.targets import require_compiler
from tests.kernels.production import AotConfig
from tests.kernels.aot import compile_configs
require_compiler()
from twophase_labs.machine.judge import run_cell
from twophase_labs.machine.kernels import tl, triton
from twophase_labs.machine.lab import Workbook
from twophase_labs.decode.attend_tiles import attend_tiles, fold_tile
from twophase_labs.decode.launch import launch_paged_decode, launch_paged_decode_split

cells = {"tl": tl, "triton": triton, "attend_tiles": attend_tiles, "fold_tile": fold_tile}
for exercise in ("3.6", "3.9"):
    run_cell(Workbook.find().lab("03").templates[exercise].filled(), cells, f"<reference {exercise}>")

def empty(*shape, dtype):
    return torch.empty(shape, dtype=dtype, device="meta")

def launch(dtype, heads, kv_heads, head_dim):
    q, cache = empty(4, heads, head_dim, dtype=dtype), empty(64, kv_heads, 16, head_dim, dtype=dtype)
    tables, lens = empty(4, 16, dtype=torch.int32), empty(4, dtype=torch.int32)
    inputs = q, cache, cache, tables, lens, 0.1
    launch_paged_decode(cells["paged_decode_kernel"], *inputs)
    launch_paged_decode_split(cells["paged_decode_split_kernel"], *inputs, 5)

shapes = {"SmolLM2": (9, 3, 64), "Llama": (32, 8, 128), "odd": (5, 1, 80)}
dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
configs = [
    AotConfig(f"{dtype} {shape}", lambda dtype=dtypes[dtype], shape=shapes[shape]: launch(dtype, *shape))
    for dtype in dtypes
    for shape in shapes
]
reports = compile_configs(sys.argv[1], configs)
print(json.dumps([[r.kernel, r.config, r.spill_bytes, r.kv_buffers] for r in reports]))
"""


@pytest.mark.full
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_reference_kernels_compile(target, tmp_path):
    result = subprocess.run(
        [sys.executable, "-c", COMPILES, target],
        env=compiler_environment(str(tmp_path)),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    reports = json.loads(result.stdout)
    names = {kernel for kernel, *_ in reports}
    assert names == {"paged_decode_kernel", "paged_decode_split_kernel"}
    assert [(kernel, config) for kernel, config, spill_bytes, _ in reports if spill_bytes] == []
    # Section 5 says that production keeps more tiles of K and V under way; test_aot.py has the other side.
    depths = {(kernel, config): depth for kernel, config, _, depth in reports}
    assert depths["paged_decode_kernel", "bf16 Llama"] == depths["paged_decode_kernel", "bf16 SmolLM2"] == 1
