"""Where the boxes 'In production, 2026' were read, and the figures of this lab: product, version or date, address."""

from twophase_labs.machine.sources import sources

READ = "2026-11"
SOURCES = sources("""
NVIDIA Model Optimizer, read November 2026: https://nvidia.github.io/Model-Optimizer/guides/_choosing_quant_methods.html
ZenDNN (vLLM on AMD's CPUs), 6.0.0: https://docs.amd.com/r/en-US/57300-ZenDNN-user-guide/LLM-Compressed-Models?contentId=GU0vJngdbHEFBmdi1UBVSA
vLLM, latest, read November 2026: https://docs.vllm.ai/en/latest/features/quantization/gguf/
vLLM, main, read November 2026: https://raw.githubusercontent.com/vllm-project/vllm/main/docs/features/quantization/gguf.md
vLLM, latest, read November 2026: https://docs.vllm.ai/en/latest/features/quantization/int8/
NVIDIA Model Optimizer, read November 2026: https://nvidia.github.io/Model-Optimizer/guides/0_support_matrix.html
llm-compressor, 0.11.0: https://docs.vllm.ai/projects/llm-compressor/en/0.11.0/examples/awq/
vLLM, latest, read November 2026: https://docs.vllm.ai/en/latest/api/vllm/model_executor/layers/quantization/awq_marlin/
SGLang, read November 2026: https://docs.sglang.io/advanced_features/quantization.html
llm-compressor, 0.11.0: https://docs.vllm.ai/projects/llm-compressor/en/0.11.0/api/llmcompressor/modifiers/gptq/
TensorRT-LLM, read November 2026: https://nvidia.github.io/TensorRT-LLM/features/quantization.html
vLLM, latest, read November 2026: https://docs.vllm.ai/en/latest/api/vllm/model_executor/layers/quantization/utils/marlin_utils/
vLLM, merged March 2026: https://github.com/vllm-project/vllm/pull/36799
Minitron, read November 2026: https://github.com/NVlabs/Minitron
NVIDIA Model Optimizer, read November 2026: https://nvidia.github.io/Model-Optimizer
NVIDIA Model Optimizer, read November 2026: https://nvidia.github.io/Model-Optimizer/reference/generated/modelopt.torch.quantization.model_quant.html
llama.cpp, merged January 2024: https://github.com/ggml-org/llama.cpp/pull/4872
""")
