"""Where the boxes of canaries, test-time scaling and the choice of a framework were read."""

from twophase_labs.machine.sources import Source

SOURCES = (
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
        url="https://github.com/OpenBMB/UltraRAG/pull/259",
        product="vLLM",
        version="release notes of 0.14.0, as quoted there",
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
        url="https://www.mintlify.com/NVIDIA/TensorRT-LLM/concepts/backends",
        product="TensorRT-LLM",
        version="read November 2026",
        says="the PyTorch backend is the default; TensorRT engines are legacy, AutoDeploy is beta",
    ),
    Source(
        url="https://huggingface.co/docs/text-generation-inference/en/index.md",
        product="TGI",
        version="read November 2026",
        says="TGI is in maintenance mode; vLLM, SGLang, and locally llama.cpp or MLX are recommended",
    ),
    Source(
        url="https://build.opensuse.org/package/show/science:machinelearning/llamacpp",
        product="llama.cpp",
        version="read November 2026",
        says="the project's goal: inference with minimal setup on a wide variety of hardware, locally and in the cloud",
    ),
)
