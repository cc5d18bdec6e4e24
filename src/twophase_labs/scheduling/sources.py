"""What lab 4 says of other engines, and where it was read."""

from twophase_labs.machine.sources import Source

VLLM = "https://github.com/vllm-project/vllm/blob"
SGLANG = "https://github.com/sgl-project/sglang/blob"
TENSORRT_LLM = "https://nvidia.github.io/TensorRT-LLM"

SOURCES = (
    Source(
        url=f"{TENSORRT_LLM}/performance/performance-tuning-guide/useful-runtime-flags.html",
        product="TensorRT-LLM",
        version="documentation of 2026",
        says="the capacity scheduler's policies are GUARANTEED_NO_EVICT (default), MAX_UTILIZATION and STATIC_BATCH, a "
        "legacy mode not recommended for production",
    ),
    Source(
        url=f"{TENSORRT_LLM}/1.3.0rc27/llm-api/reference/SchedulerConfig.html",
        product="TensorRT-LLM",
        version="1.3.0rc27",
        says="capacity_scheduler_policy is GUARANTEED_NO_EVICT, waiting_queue_policy is FCFS by default",
    ),
    Source(
        url=f"{VLLM}/b4622cf924bc72504aed99e486062d6633fde39e/vllm/v1/core/sched/scheduler.py",
        product="vLLM",
        version="main, commit b4622cf",
        says="`schedule` gives each running request, in order, the tokens it lacks or what the budget leaves; without "
        "a block it preempts the last one, or by priority; then, if none was preempted, it admits waiting requests",
    ),
    Source(
        url=f"{VLLM}/00620f91ea186ca295a1eb69f4acba9d0efaaaaa/docs/configuration/optimization.md",
        product="vLLM",
        version="V1 engine, commit 00620f9",
        says="chunked prefill is always on by default; decodes first, prefills by what is left of "
        "max_num_batched_tokens; above 8192 is recommended for throughput, above all for small models on large GPUs",
    ),
    Source(
        url="https://docs.vllm.ai/en/v0.17.1/configuration/optimization/",
        product="vLLM",
        version="0.17.1",
        says="when there is too little space for K and V requests are preempted, and recomputed later",
    ),
    Source(
        url=f"{VLLM}/0328b592a3d35f9b4dc5549d2a3fb8d1531c8e5f/docs/design/metrics.md",
        product="vLLM",
        version="main, commit 0328b59",
        says="vllm:kv_cache_usage_perc, vllm:prefix_cache_queries and vllm:prefix_cache_hits, "
        "vllm:request_queue_time_seconds; the log has the hit rate over the latest 1,000 block queries",
    ),
    Source(
        url=f"{SGLANG}/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md",
        product="SGLang",
        version="commit 004813e",
        says="--enable-mixed-chunk is off; --schedule-policy is fcfs, of lpm, random, fcfs, dfs-weight, lof, priority, "
        "routing-key; --schedule-conservativeness is 1.0, more if requests are retracted often; "
        "--enable-priority-scheduling and --disable-overlap-schedule are off; --max-queued-requests is None",
    ),
    Source(
        url="https://docs.sglang.io/advanced_features/hyperparameter_tuning.html",
        product="SGLang",
        version="documentation of 2026",
        says="the log tells retracted requests and new_token_ratio; a server is too conservative when max_new_tokens "
        "is large and requests stop early; then --schedule-conservativeness may be 0.3",
    ),
    Source(
        url=f"{SGLANG}/fd3907ee4618e96b73ee94d9a836db78efb5d046/python/sglang/srt/managers/schedule_batch.py",
        product="SGLang",
        version="main, commit fd3907e",
        says="retract_decode takes the requests with the fewest output tokens first, of these the longest prompts",
    ),
    Source(
        url=f"{VLLM}/1f8758d584e8f599219d75adf658e182ed809a43/vllm/config/scheduler.py",
        product="vLLM",
        version="commit 1f8758d",
        says="policy is 'fcfs' or 'priority', by default fcfs; scheduler_cls takes a class, whose interface is not "
        "public; enable_chunked_prefill is True; without it max_num_batched_tokens below max_model_len is a ValueError",
    ),
    Source(
        url="https://github.com/vllm-project/vllm/pull/31998",
        product="vLLM",
        version="0.14.0",
        says="async scheduling, on by default since 0.14, is on with EAGLE and MTP drafts as well",
    ),
    Source(
        url=f"{VLLM}/def9ce85ba1079af970a58ed3d42dd861ae35d58/vllm/benchmarks/serve.py",
        product="vLLM",
        version="commit def9ce8",
        says="--request-rate, --percentile-metrics ttft,tpot,itl and --metric-percentiles 99 by default; --goodput "
        "takes KEY:VALUE pairs in milliseconds for ttft, tpot and e2el",
    ),
    Source(
        url="https://docs.vllm.ai/en/stable/features/per_request_metrics/",
        product="vLLM",
        version="stable documentation of 2026",
        says="with --enable-per-request-metrics: time_to_first_token_ms counts from when the request was scheduled; "
        "queue_time_ms is another field",
    ),
    Source(
        url=f"{SGLANG}/0229689b6730cccb5b7f0d4eeef06d7de423b6e1/docs/developer_guide/bench_serving.md",
        product="SGLang",
        version="commit 0229689",
        says="bench_serving prints TTFT, ITL and TPOT; --request-rate with Poisson arrivals",
    ),
    Source(
        url=f"{TENSORRT_LLM}/llm-api/reference/TorchLlmArgs.html",
        product="TensorRT-LLM",
        version="documentation of 2026",
        says="enable_chunked_prefill is False by default",
    ),
    Source(
        url=f"{TENSORRT_LLM}/features/paged-attention-ifb-scheduler.html",
        product="TensorRT-LLM",
        version="documentation of 2026",
        says="decodes are scheduled first; max_num_tokens is 8192; chunked context lets max_num_tokens be below the "
        "longest prompt, and is recommended always",
    ),
    Source(
        url=f"{TENSORRT_LLM}/features/overlap-scheduler.html",
        product="TensorRT-LLM",
        version="documentation of 2026",
        says="the CPU's work of a step overlaps the GPU's of the next; on by default",
    ),
    Source(
        url=f"{SGLANG}/d51c1c21d1ac07cd5d1de9ead6c99087d8428e79/python/sglang/srt/managers/scheduler.py",
        product="SGLang",
        version="commit d51c1c2",
        says="a step runs a new prefill batch if there is one, and decodes otherwise",
    ),
)
