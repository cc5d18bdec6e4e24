"""Where the boxes 'In production, 2026' were read, and the figures of this lab."""

from twophase_labs.machine.sources import Source

VLLM = "https://docs.vllm.ai/en"

SOURCES = (
    Source(
        url="https://github.com/vllm-project/vllm/pull/32442",
        product="vLLM",
        version="January 2026",
        says="a request whose client disconnects is aborted, inside the generator that AsyncLLM.generate returns",
    ),
    Source(
        url="https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination-flow",
        product="Kubernetes",
        version="its source, read November 2026",
        says="preStop, then SIGTERM; SIGKILL when the grace period, 30 seconds by default and preStop included, has "
        "passed; endpoints are taken out at the same time as the shutdown starts",
    ),
    Source(
        url=f"{VLLM}/v0.32.0/usage/metrics/",
        product="vLLM",
        version="0.32.0",
        says="the metrics behind /metrics, names beginning with vllm:",
    ),
    Source(
        url=f"{VLLM}/stable/features/per_request_metrics/",
        product="vLLM",
        version="stable, read November 2026",
        says="--enable-per-request-metrics adds queue_time_ms and time_to_first_token_ms, the latter counted from when "
        "the request was scheduled",
    ),
    Source(
        url=f"{VLLM}/v0.20.2/api/vllm/v1/structured_output/",
        product="vLLM",
        version="0.20.2",
        says="grammars are compiled asynchronously, in other threads; the request waits in a state of its own",
    ),
    Source(
        url="https://docs.sglang.io/docs/references/production_metrics",
        product="SGLang",
        version="read November 2026",
        says="metrics only with --enable-metrics; sglang:time_to_first_token_seconds, sglang:token_usage",
    ),
    Source(
        url="https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/",
        product="Prometheus",
        version="latest, read November 2026",
        says="`for`, `keep_firing_for`, pending and firing; keep_firing_for against flapping and missing data",
    ),
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
        url="https://docs.sglang.io/advanced_features/sgl_model_gateway.html",
        product="SGLang Model Gateway",
        version="its source, read November 2026",
        says="requests beyond --max-concurrent-requests wait in a queue; 429 when it is full, 408 when "
        "--queue-timeout-secs have passed",
    ),
    Source(
        url="https://raw.githubusercontent.com/api-evangelist/posts/main/_posts/"
        "2026-11-06-openai-api-pricing-what-every-model-costs-per-million-tokens.md",
        product="OpenAI's price list, as an article read it",
        version="November 2026",
        says="output costs four to eight times as much as input; cached input a tenth of it on the newest models",
    ),
    Source(
        url="https://istio.io/docs/tasks/traffic-management/mirroring",
        product="Istio",
        version="read November 2026",
        says="mirroring, also called shadowing, copies live traffic to another service outside the request path",
    ),
    Source(
        url="https://www.nginx.org/docs/http/ngx_http_split_clients_module.html",
        product="nginx",
        version="read November 2026",
        says="split_clients hashes a string (MurmurHash2, 32 bits) into ranges given in per cent",
    ),
    Source(
        url="https://argoproj.github.io/argo-rollouts/features/analysis/",
        product="Argo Rollouts",
        version="read November 2026",
        says="an AnalysisRun ends Successful, Failed or Inconclusive; the rollout continues, aborts or pauses",
    ),
    Source(
        url="https://docs.vllm.ai/en/v0.15.0/api/vllm/sampling_params/",
        product="vLLM",
        version="0.15.0",
        says="SamplingParams.n; BeamSearchParams has beam_width, max_tokens, length_penalty, temperature 0",
    ),
    Source(
        url="https://docs.vllm.ai/en/stable/usage/v1_guide/",
        product="vLLM",
        version="stable, read November 2026",
        says="V1 enables its optimisations, prefix caching among them, by default; best_of is among what it gave up",
    ),
    Source(
        url="https://github.com/vllm-project/vllm/pull/27614",
        product="vLLM",
        version="0.14.0, whose release notes name this change",
        says="async scheduling is on by default; --no-async-scheduling turns it off",
    ),
    Source(
        url="https://docs.sglang.io/advanced_features/server_arguments.html",
        product="SGLang",
        version="read November 2026",
        says="--quantization fp8, --kv-cache-dtype fp8_e5m2 or fp8_e4m3, --disable-radix-cache, "
        "--disable-overlap-schedule",
    ),
    Source(
        url="https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html",
        product="TensorRT-LLM",
        version="read November 2026",
        says="enable_block_reuse is True, free_gpu_memory_fraction 0.9, dtype 'auto'",
    ),
    Source(
        url="https://nvidia.github.io/TensorRT-LLM/legacy/tensorrt-backend-removal.html",
        product="TensorRT-LLM",
        version="read November 2026",
        says="the TensorRT engine backend has been removed; PyTorch is the sole execution backend",
    ),
    Source(
        url="https://huggingface.co/docs/text-generation-inference/en/index.md",
        product="TGI",
        version="read November 2026",
        says="TGI is in maintenance mode; vLLM, SGLang, and locally llama.cpp or MLX are recommended",
    ),
    Source(
        url="https://github.com/ggml-org/llama.cpp",
        product="llama.cpp",
        version="its README, read November 2026",
        says="the project's goal: inference with minimal setup on a wide range of hardware, locally and in the cloud",
    ),
    Source(
        url="https://sre.google/workbook/alerting-on-slos/",
        product="Google's Site Reliability Workbook",
        version="chapter 5",
        says="alerts on the burn rate of the error budget, over a long and a short window",
    ),
)
