"""Where the boxes of sections 1 to 3 were read."""

from twophase_labs.machine.sources import Source

SOURCES = (
    Source(
        url="https://nvidia.github.io/Model-Optimizer/guides/_choosing_quant_methods.html",
        product="NVIDIA Model Optimizer",
        version="read November 2026",
        says="up to a batch of 4 inference is memory-bound and weight-only methods (INT4 AWQ) serve best; from 16 on, "
        "weights and activations, FP8 first",
    ),
    Source(
        url="https://docs.sglang.io/advanced_features/quantization.html",
        product="SGLang",
        version="read November 2026",
        says="a model quantised offline is loaded without --quantization, its method is parsed from its configuration; "
        "offline is recommended over online; --quantization fp8 rounds a 16-bit model online",
    ),
    Source(
        url="https://docs.amd.com/r/en-US/57300-ZenDNN-user-guide/LLM-Compressed-Models?contentId=GU0vJngdbHEFBmdi1UBVSA",
        product="ZenDNN (vLLM on AMD's CPUs)",
        version="6.0.0",
        says="models of llm-compressor in W8A8 and W4A16, asymmetric per group; a group size of 128 is recommended",
    ),
    Source(
        url="https://docs.vllm.ai/en/latest/features/quantization/gguf/",
        product="vLLM",
        version="latest, read November 2026",
        says="GGUF support is highly experimental and under-optimised; a way to reduce the memory footprint",
    ),
    Source(
        url="https://raw.githubusercontent.com/vllm-project/vllm/main/docs/features/quantization/gguf.md",
        product="vLLM",
        version="main, read November 2026",
        says="GGUF support has migrated to the out-of-tree vllm-gguf-plugin, which must be installed",
    ),
)
