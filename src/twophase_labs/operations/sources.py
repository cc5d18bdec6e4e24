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
        url="https://livebook.manning.com/learn/concepts/sigterm--api-element/kubernetes-in-action-second-edition",
        product="Kubernetes",
        version="Kubernetes in Action, second edition, read November 2026",
        says="SIGTERM first; SIGKILL when the grace period, 30 seconds by default, has passed",
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
)
