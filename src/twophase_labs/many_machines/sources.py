"""Where the boxes 'In production, 2026' were read, and the figures of this lab: product, version or date, address."""

from twophase_labs.machine.sources import sources

SOURCES = sources("""
vLLM, latest, read November 2026: https://docs.vllm.ai/en/latest/features/disagg_prefill/
SGLang, read November 2026: https://nvidia.github.io/srt-slurm/mooncake-kv-store/
vLLM, merged September 2025: https://github.com/vllm-project/vllm/pull/19330
vLLM, latest, read November 2026: https://docs.vllm.ai/en/latest/examples/disaggregated/kv_load_failure_recovery_offline/
vLLM, latest, read November 2026: https://docs.vllm.ai/en/latest/serving/parallelism_scaling/
vLLM, latest, read November 2026: https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment/
vLLM, 0.12.0: https://docs.vllm.ai/en/v0.12.0/api/vllm/config/parallel/
SGLang, read November 2026: https://docs.sglang.io/advanced_features/expert_parallelism.html
vLLM router 0.1.15, SGLang gateway 0.3.1, read November 2026: https://docs.gpustack.ai/gpustack-operator/main/docs/modules/model-deployment/routing/
NVIDIA Dynamo, 1.1.0: https://docs.nvidia.com/dynamo/v1.1.0/components/router/llms.txt
Ray Serve LLM, latest, read November 2026: https://docs.ray.io/en/latest/serve/llm/pd-dissagregation.html
Kubernetes HorizontalPodAutoscaler, autoscaling/v2, read November 2026: https://k8s-schemas-3y7.pages.dev/keda.sh/scaledobject_v1alpha1.html
Kubernetes HorizontalPodAutoscaler, read November 2026: https://tencentcloud.com/ind/document/product/457/39126
""")
