"""Where the boxes 'In production, 2026' were read, and the figures of this lab: product, version or date, address."""

from twophase_labs.machine.sources import sources

READ = "2026-11"
SOURCES = sources("""
vLLM, main, commit 00388f6: https://github.com/vllm-project/vllm/blob/00388f6573ccfcffad607b8c9ecdf341a4669ceb/vllm/sampling_params.py
vLLM, main, commit 0052a5b: https://github.com/vllm-project/vllm/blob/0052a5b818980ce8a0477706aaf9f75bd5af72cd/vllm/config/model.py
vLLM, main, commit 002f10e: https://github.com/vllm-project/vllm/blob/002f10e0cfa1373a19a0d2756598a34b700d20e5/vllm/config/cache.py
vLLM, latest, read November 2026: https://docs.vllm.ai/en/latest/usage/reproducibility/
vLLM, 0.32.0: https://docs.vllm.ai/en/v0.32.0/features/batch_invariance/
SGLang, main, commit 004813e: https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md
TensorRT-LLM, 1.3.0rc27: https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html
GQA, v3, 2023: https://arxiv.org/abs/2305.13245
OpenAI, price list of 5 November 2026: https://raw.githubusercontent.com/api-evangelist/posts/main/_posts/2026-11-06-openai-api-pricing-what-every-model-costs-per-million-tokens.md
""")
