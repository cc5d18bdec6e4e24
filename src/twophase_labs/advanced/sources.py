"""Where the boxes 'In production, 2026' were read, and the figures of this lab: product, version or date, address."""

from twophase_labs.machine.sources import sources

READ = "2026-11"
SOURCES = sources("""
vLLM, main, commit 002f10e: https://github.com/vllm-project/vllm/blob/002f10e0cfa1373a19a0d2756598a34b700d20e5/vllm/config/cache.py
vLLM, latest, 2026: https://docs.vllm.ai/en/latest/design/prefix_caching/
TensorRT-LLM, 1.3.0rc27: https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html
SGLang, main, commit 004813e: https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md
vLLM, latest, November 2026: https://docs.vllm.ai/en/latest/features/structured_outputs/
vLLM, latest, November 2026: https://docs.vllm.ai/en/latest/features/speculative_decoding/
vLLM, latest, 2026: https://docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager/
""")
