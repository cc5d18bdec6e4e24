"""Where the boxes 'In production, 2026' were read."""

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
    Source(
        url="https://docs.vllm.ai/en/latest/features/quantization/int8/",
        product="vLLM",
        version="latest, read November 2026",
        says="int8 W8A8 by llm-compressor, activations with a scale per token at run time; compute capability above "
        "7.5 and below 10.0: on Blackwell use FP8",
    ),
    Source(
        url="https://nvidia.github.io/Model-Optimizer/guides/0_support_matrix.html",
        product="NVIDIA Model Optimizer",
        version="read November 2026",
        says="INT8: weights per channel, activations per tensor, by SmoothQuant; W4A16 by AWQ, in blocks",
    ),
    Source(
        url="https://docs.vllm.ai/projects/llm-compressor/en/0.11.0/examples/awq/",
        product="llm-compressor",
        version="0.11.0",
        says="AWQModifier adjusts scales before QuantizationModifier rounds; mappings for Llama, v_proj to o_proj too",
    ),
    Source(
        url="https://docs.vllm.ai/en/latest/api/vllm/model_executor/layers/quantization/awq_marlin/",
        product="vLLM",
        version="latest, read November 2026",
        says="AWQ checkpoints on Marlin kernels: 4 bits, zero point",
    ),
    Source(
        url="https://docs.sglang.io/advanced_features/quantization.html",
        product="SGLang",
        version="read November 2026",
        says="offline quantisation is recommended, and required for GPTQ and AWQ, which need calibration data",
    ),
    Source(
        url="https://docs.vllm.ai/projects/llm-compressor/en/0.11.0/api/llmcompressor/modifiers/gptq/",
        product="llm-compressor",
        version="0.11.0",
        says="GPTQModifier: columns in blocks (128 in the example), dampening_frac, actorder static by default",
    ),
    Source(
        url="https://nvidia.github.io/TensorRT-LLM/features/quantization.html",
        product="TensorRT-LLM",
        version="read November 2026",
        says="recipes W4A16 and W4A8, by GPTQ and by AWQ",
    ),
    Source(
        url="https://docs.vllm.ai/en/latest/api/vllm/model_executor/layers/quantization/utils/marlin_utils/",
        product="vLLM",
        version="latest, read November 2026",
        says="packed weights in GPTQ's layout are repacked for Marlin, whose tiles take multiples of 64 and 128; other "
        "shapes are padded with zeros",
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
        url="https://nvidia.github.io/Model-Optimizer",
        product="NVIDIA Model Optimizer",
        version="read November 2026",
        says="guides for PTQ, QAT, pruning, distillation, sparsity",
    ),
    Source(
        url="https://nvidia.github.io/Model-Optimizer/reference/generated/modelopt.torch.quantization.model_quant.html",
        product="NVIDIA Model Optimizer",
        version="read November 2026",
        says="auto_quantize searches the best format per layer by sensitivity scores, under constraints such as "
        "effective_bits 4.8; lm_head and output layers are switched off in its formats",
    ),
    Source(
        url="https://github.com/ggml-org/llama.cpp/pull/4872",
        product="llama.cpp",
        version="merged January 2024",
        says="k-quants, the _M variants in particular, use more bits for some of the tensors, ffn_down most of all",
    ),
)
