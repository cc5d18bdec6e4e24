"""Where the boxes 'In production, 2026' were read, and the figures of this lab: product, version or date, address."""

from twophase_labs.machine.sources import sources

READ = "2026-11"
SOURCES = sources("""
vLLM, latest, read November 2026: https://docs.vllm.ai/en/latest/features/disagg_prefill/
vLLM, merged September 2025: https://github.com/vllm-project/vllm/pull/19330
vLLM, latest, read November 2026: https://docs.vllm.ai/en/latest/serving/parallelism_scaling/
vLLM, latest, read November 2026: https://docs.vllm.ai/en/latest/serving/expert_parallel_deployment/
SGLang, read November 2026: https://docs.sglang.io/advanced_features/expert_parallelism.html
NVIDIA Dynamo, 1.1.0: https://docs.nvidia.com/dynamo/v1.1.0/components/router/llms.txt
Ray Serve LLM, latest, read November 2026: https://docs.ray.io/en/latest/serve/llm/pd-dissagregation.html
vLLM, main, read November 2026: https://raw.githubusercontent.com/vllm-project/vllm/main/docs/design/nixl_kv_push_connector.md
SGLang, read November 2026: https://docs.sglang.io/docs/advanced_features/pd_disaggregation.md
vLLM, open in November 2026: https://github.com/vllm-project/vllm/issues/49250
vLLM, latest, read November 2026: https://docs.vllm.ai/en/latest/serving/data_parallel_deployment/
SGLang's gateway (SMG), its source, read November 2026: https://raw.githubusercontent.com/lightseekorg/smg/main/docs/getting-started/load-balancing.md
Kubernetes' blog, 1.33: https://kubernetes.io/blog/2025/04/28/kubernetes-v1-33-hpa-configurable-tolerance
Kubernetes' interface, 1.37: https://docs.rs/k8s-openapi/0.29.0/src/k8s_openapi/v1_37/api/autoscaling/v2/hpa_scaling_rules.rs.html
""")
