"""Where the boxes 'In production, 2026' of incidents, memory, degrading and costs were read. (`sources` joins them.)"""

from twophase_labs.machine.sources import Source

SOURCES = (
    Source(
        url="https://docs.vllm.ai/en/stable/usage/metrics/",
        product="vLLM",
        version="stable, read November 2026",
        says="kv_cache_usage_perc, num_preemptions, inter_token_latency_seconds, and the histogram "
        "iteration_tokens_total of tokens per engine step",
    ),
    Source(
        url="https://docs.vllm.ai/en/v0.17.1/configuration/optimization/",
        product="vLLM",
        version="0.17.1",
        says="against preemptions: raise gpu_memory_utilization, lower max_num_seqs or max_num_batched_tokens, raise "
        "tensor_parallel_size",
    ),
    Source(
        url="https://docs.sglang.io/references/faq.html",
        product="SGLang",
        version="read November 2026",
        says="out of memory in prefill: smaller --chunked-prefill-size; in decode: fewer --max-running-requests; both: "
        "smaller --mem-fraction-static",
    ),
    Source(
        url="https://docs.ray.io/en/master/serve/api/doc/ray.serve.config.BackpressureConfig.html",
        product="Ray Serve",
        version="master, read November 2026",
        says="beyond max_queued_requests a request is refused with 503 or 429, and Retry-After if it is configured",
    ),
    Source(
        url="https://raw.githubusercontent.com/smg-project/smg-docs/main/src/lib/content/concepts/reliability/"
        "overload-protection.md",
        product="SMG, a gateway for LLM engines",
        version="main, read November 2026",
        says="a worker at its ceiling of queued requests or K/V use leaves routing; if all are, 503 with Retry-After; "
        "opt-in",
    ),
    Source(
        url="https://raw.githubusercontent.com/api-evangelist/posts/main/_posts/"
        "2026-11-06-openai-api-pricing-what-every-model-costs-per-million-tokens.md",
        product="OpenAI's price list, as an article read it",
        version="November 2026",
        says="output costs four to eight times as much as input; cached input a tenth of it on the newest models",
    ),
)
