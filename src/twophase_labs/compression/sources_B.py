"""Where the boxes of sections 4 to 6 were read."""

from twophase_labs.machine.sources import Source

SOURCES = (
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
        url="https://huggingface.co/neuralmagic-ent/Llama-3.2-3B-quantized.w8a8/blame/main/recipe.yaml",
        product="llm-compressor",
        version="read November 2026",
        says="a recipe: SmoothQuant with strength 0.7, input_layernorm to Q, K, V, post_attention_layernorm to gate "
        "and up, up_proj to down_proj; then GPTQ, W8A8",
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
)
