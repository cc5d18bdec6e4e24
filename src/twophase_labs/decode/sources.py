"""Where the boxes 'In production, 2026' were read, and the figures of this lab: product, version or date, address."""

from twophase_labs.machine.sources import sources

READ = "2026-11"
SOURCES = sources("""
vLLM, main, commit 002f10e: https://github.com/vllm-project/vllm/blob/002f10e0cfa1373a19a0d2756598a34b700d20e5/vllm/config/cache.py
vLLM, 0.25.0: https://docs.vllm.ai/en/v0.25.0/features/quantization/quantized_kvcache/
vLLM, latest, read for main at commit 0045689: https://docs.vllm.ai/en/latest/design/cuda_graphs/
vLLM, 0.30.0: https://docs.vllm.ai/en/v0.30.0/api/vllm/v1/attention/backends/flash_attn/
SGLang, main, commit 004813e: https://docs.sglang.io/advanced_features/server_arguments.html
TensorRT-LLM, 1.3.0rc27: https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html
TensorRT-LLM, 1.3.0rc27: https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/DecodeCudaGraphConfig.html
""")
