"""`pytest -p tests.kernels.cpu.plugin`: kernels of this session are compiled for the CPU, not interpreted."""

import os

os.environ["TRITON_INTERPRET"] = "0"  # before anything imports triton

import triton_on_cpu

triton_on_cpu.install(checked=os.environ.get("TRITON_ON_CPU_CHECKED") == "1")
