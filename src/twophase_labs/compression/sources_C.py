"""Where the boxes of sections 7 to 9 were read."""

from twophase_labs.machine.sources import Source

SOURCES_C = (
    Source(
        url="https://github.com/vllm-project/vllm/pull/3922",
        product="vLLM",
        version="merged April 2024",
        says="GPTQ checkpoints are repacked for the Marlin kernel; groups of 32, 64, 128 or a whole row",
    ),
    Source(
        url="https://github.com/vllm-project/vllm/pull/36799",
        product="vLLM",
        version="merged March 2026",
        says="kernels and integration of 2:4 sparsity removed: such models are not widely used",
    ),
    Source(
        url="https://github.com/NVlabs/Minitron",
        product="Minitron",
        version="read November 2026",
        says="8B and 4B models pruned and distilled from a 15B one, up to 40 times fewer training tokens per model",
    ),
    Source(
        url="https://nvidia.github.io/TensorRT-Model-Optimizer",
        product="NVIDIA Model Optimizer",
        version="read November 2026",
        says="guides for PTQ, QAT, pruning, distillation, sparsity",
    ),
)
