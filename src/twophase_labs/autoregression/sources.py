"""What lab 1 says of other engines and of prices, and where it was read."""

from twophase_labs.machine.sources import Source

VLLM = "https://github.com/vllm-project/vllm/blob"
SGLANG = "https://github.com/sgl-project/sglang/blob"

SOURCES = (
    Source(
        url=f"{VLLM}/00388f6573ccfcffad607b8c9ecdf341a4669ceb/vllm/sampling_params.py",
        product="vLLM",
        version="main, commit 00388f6",
        says="SamplingParams: temperature 1.0, top_p 1.0, top_k 0, min_p 0.0, seed None, max_tokens 16, "
        "prompt_logprobs None; temperature 0 means greedy",
    ),
    Source(
        url=f"{VLLM}/0052a5b818980ce8a0477706aaf9f75bd5af72cd/vllm/config/model.py",
        product="vLLM",
        version="main, commit 0052a5b",
        says="generation_config is 'auto' by default: taken from the model's own files; 'vllm' takes vLLM's defaults",
    ),
    Source(
        url=f"{VLLM}/002f10e0cfa1373a19a0d2756598a34b700d20e5/vllm/config/cache.py",
        product="vLLM",
        version="main, commit 002f10e",
        says="CacheConfig: 16 tokens per block, gpu_memory_utilization 0.92, cache_dtype 'auto' (the model's), fp8 "
        "types among the others; no setting that does without the cache",
    ),
    Source(
        url="https://docs.vllm.ai/en/latest/usage/reproducibility/",
        product="vLLM",
        version="latest, read November 2026",
        says="results are not guaranteed to be reproducible by default; batch invariance makes them so",
    ),
    Source(
        url="https://docs.vllm.ai/en/v0.32.0/features/batch_invariance/",
        product="vLLM",
        version="0.32.0",
        says="VLLM_BATCH_INVARIANT=1 makes outputs independent of the batch; in beta",
    ),
    Source(
        url=f"{SGLANG}/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md",
        product="SGLang",
        version="main, commit 004813e",
        says="--kv-cache-dtype auto; --mem-fraction-static: for weights and K/V pool together, None unless given; "
        "`--page-size 1`; --enable-deterministic-inference",
    ),
    Source(
        url="https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html",
        product="TensorRT-LLM",
        version="1.3.0rc27",
        says="KvCacheConfig: free_gpu_memory_fraction 0.9, tokens_per_block 32, dtype 'auto'",
    ),
    Source(
        url="https://arxiv.org/abs/2305.13245",
        product="GQA",
        version="v3, 2023",
        says="multi-query attention can lose quality; models trained on from the mean of their heads with 5 % of the "
        "original compute, with grouped queries, come close to multi-head attention",
    ),
    Source(
        url="https://raw.githubusercontent.com/api-evangelist/posts/main/_posts/"
        "2026-11-06-openai-api-pricing-what-every-model-costs-per-million-tokens.md",
        product="OpenAI",
        version="price list of 5 November 2026",
        says="output tokens cost between four and eight times as much as input tokens, depending on the model",
    ),
)
