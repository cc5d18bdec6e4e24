"""Where the boxes 'In production, 2026' were read, and the figures of this lab: product, version or date, address."""

from twophase_labs.machine.sources import sources

READ = "2026-11"
SOURCES = sources("""
TensorRT-LLM, documentation of 2026: https://nvidia.github.io/TensorRT-LLM/performance/performance-tuning-guide/useful-runtime-flags.html
TensorRT-LLM, 1.3.0rc27: https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/SchedulerConfig.html
vLLM, main, commit b4622cf: https://github.com/vllm-project/vllm/blob/b4622cf924bc72504aed99e486062d6633fde39e/vllm/v1/core/sched/scheduler.py
vLLM, stable documentation of November 2026: https://docs.vllm.ai/en/stable/api/vllm/config/scheduler/
vLLM, merged June 2026: https://github.com/vllm-project/vllm/pull/44594
vLLM, merged 2026: https://github.com/vllm-project/vllm/pull/37307
vLLM, 0.17.1: https://docs.vllm.ai/en/v0.17.1/configuration/optimization/
vLLM, main, commit 0328b59: https://github.com/vllm-project/vllm/blob/0328b592a3d35f9b4dc5549d2a3fb8d1531c8e5f/docs/design/metrics.md
SGLang, commit 004813e: https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md
SGLang, documentation of 2026: https://docs.sglang.io/advanced_features/hyperparameter_tuning.html
SGLang, main, commit fd3907e: https://github.com/sgl-project/sglang/blob/fd3907ee4618e96b73ee94d9a836db78efb5d046/python/sglang/srt/managers/schedule_batch.py
vLLM, commit 1f8758d: https://github.com/vllm-project/vllm/blob/1f8758d584e8f599219d75adf658e182ed809a43/vllm/config/scheduler.py
vLLM, 0.14.0: https://github.com/vllm-project/vllm/pull/27614
vLLM, first version of June 2025: https://github.com/vllm-project/vllm/pull/19970
vLLM, commit def9ce8: https://github.com/vllm-project/vllm/blob/def9ce85ba1079af970a58ed3d42dd861ae35d58/vllm/benchmarks/serve.py
vLLM, stable documentation of 2026: https://docs.vllm.ai/en/stable/features/per_request_metrics/
SGLang, commit 0229689: https://github.com/sgl-project/sglang/blob/0229689b6730cccb5b7f0d4eeef06d7de423b6e1/docs/developer_guide/bench_serving.md
TensorRT-LLM, documentation of 2026: https://nvidia.github.io/TensorRT-LLM/llm-api/reference/TorchLlmArgs.html
TensorRT-LLM, documentation of 2026: https://nvidia.github.io/TensorRT-LLM/features/paged-attention-ifb-scheduler.html
TensorRT-LLM, documentation of 2026: https://nvidia.github.io/TensorRT-LLM/features/overlap-scheduler.html
SGLang, commit d51c1c2: https://github.com/sgl-project/sglang/blob/d51c1c21d1ac07cd5d1de9ead6c99087d8428e79/python/sglang/srt/managers/scheduler.py
""")
