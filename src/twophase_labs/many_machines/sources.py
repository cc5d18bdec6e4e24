"""Where the boxes 'In production, 2026' were read, and the figures of this lab."""

from twophase_labs.machine.sources import Source

VLLM = "https://docs.vllm.ai/en/latest"

SOURCES = (
    Source(
        url=f"{VLLM}/features/disagg_prefill/",
        product="vLLM",
        version="latest, read November 2026",
        says="disaggregated prefill is experimental, moves K/V through connectors, tunes TTFT and ITL separately, and "
        "does not improve throughput; chunked prefill can do the same if the right chunk size is found",
    ),
    Source(
        url="https://nvidia.github.io/srt-slurm/mooncake-kv-store/",
        product="SGLang",
        version="read November 2026",
        says="of SGLang's transfer backends for separate prefill and decode, Mooncake is the default; RDMA or TCP",
    ),
    Source(
        url="https://github.com/vllm-project/vllm/pull/19330",
        product="vLLM",
        version="merged September 2025",
        says="blocks that a connector failed to load are reported, and their requests recomputed from the valid prefix",
    ),
    Source(
        url=f"{VLLM}/examples/disaggregated/kv_load_failure_recovery_offline/",
        product="vLLM",
        version="latest, read November 2026",
        says="an example plants a failure to load K/V and compares the output with a run without it",
    ),
    Source(
        url=f"{VLLM}/serving/parallelism_scaling/",
        product="vLLM",
        version="latest, read November 2026",
        says="one GPU if the model fits; tensor parallelism in a server; with pipeline stages across servers, such as "
        "8 and 2 for two servers of eight GPUs",
    ),
    Source(
        url=f"{VLLM}/serving/expert_parallel_deployment/",
        product="vLLM",
        version="latest, read November 2026",
        says="--enable-expert-parallel; allgather_reducescatter is the default all2all backend; DeepEP for high "
        "throughput (prefill) and low latency (decode)",
    ),
    Source(
        url="https://docs.vllm.ai/en/v0.12.0/api/vllm/config/parallel/",
        product="vLLM",
        version="0.12.0",
        says="EPLB: window of 1,000 steps, rearranged every 3,000 steps, 0 redundant experts by default",
    ),
    Source(
        url="https://docs.sglang.io/advanced_features/expert_parallelism.html",
        product="SGLang",
        version="read November 2026",
        says="--moe-a2a-backend is none by default: all-reduce or all-gather in place of an all-to-all",
    ),
    Source(
        url="https://docs.gpustack.ai/gpustack-operator/main/docs/modules/model-deployment/routing/",
        product="vLLM router 0.1.15, SGLang gateway 0.3.1",
        version="read November 2026",
        says="both route by cache_aware: longest shared prefix above 0.3 of the prompt, least load beyond a "
        "difference of 64 requests and a ratio of 1.5",
    ),
    Source(
        url="https://docs.nvidia.com/dynamo/v1.1.0/components/router/llms.txt",
        product="NVIDIA Dynamo",
        version="1.1.0",
        says="--router-mode is round robin by default; kv weighs prefill against decode with a weight of 1.0",
    ),
    Source(
        url="https://docs.ray.io/en/latest/serve/llm/pd-dissagregation.html",
        product="Ray Serve LLM",
        version="latest, read November 2026",
        says="prefill and decode deployments are scaled independently and may use different node types",
    ),
    Source(
        url="https://k8s-schemas-3y7.pages.dev/keda.sh/scaledobject_v1alpha1.html",
        product="Kubernetes HorizontalPodAutoscaler",
        version="autoscaling/v2, read November 2026",
        says="scale-down looks back 300 s, scale-up 0 s; the tolerance is 10 % by default",
    ),
    Source(
        url="https://tencentcloud.com/ind/document/product/457/39126",
        product="Kubernetes HorizontalPodAutoscaler",
        version="read November 2026",
        says="replicas wanted = ceil(replicas * metric / target), unless the ratio is within 0.1 of 1; the highest of "
        "the last five minutes when shrinking",
    ),
)
