"""Where the box of section 10 was read."""

from twophase_labs.machine.sources import Source

SOURCES = (
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
