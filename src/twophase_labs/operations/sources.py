"""Where the boxes 'In production, 2026' were read, and the figures of this lab: product, version or date, address."""

from twophase_labs.machine.sources import sources

READ = "2026-11"
SOURCES = sources("""
vLLM, January 2026: https://github.com/vllm-project/vllm/pull/32442
Kubernetes, its source, read November 2026: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination-flow
vLLM, 0.32.0: https://docs.vllm.ai/en/v0.32.0/usage/metrics/
vLLM, stable, read November 2026: https://docs.vllm.ai/en/stable/features/per_request_metrics/
vLLM, 0.20.2: https://docs.vllm.ai/en/v0.20.2/api/vllm/v1/structured_output/
SGLang, read November 2026: https://docs.sglang.io/docs/references/production_metrics
Prometheus, latest, read November 2026: https://prometheus.io/docs/prometheus/latest/configuration/alerting_rules/
vLLM, stable, read November 2026: https://docs.vllm.ai/en/stable/usage/metrics/
vLLM, 0.17.1: https://docs.vllm.ai/en/v0.17.1/configuration/optimization/
SGLang, read November 2026: https://docs.sglang.io/references/faq.html
Ray Serve, master, read November 2026: https://docs.ray.io/en/master/serve/api/doc/ray.serve.config.BackpressureConfig.html
SGLang Model Gateway, its source, read November 2026: https://docs.sglang.io/advanced_features/sgl_model_gateway.html
OpenAI's price list, as an article read it, November 2026: https://raw.githubusercontent.com/api-evangelist/posts/main/_posts/2026-11-06-openai-api-pricing-what-every-model-costs-per-million-tokens.md
Istio, read November 2026: https://istio.io/docs/tasks/traffic-management/mirroring
nginx, read November 2026: https://www.nginx.org/docs/http/ngx_http_split_clients_module.html
Argo Rollouts, read November 2026: https://argoproj.github.io/argo-rollouts/features/analysis/
vLLM, open in November 2026: https://github.com/vllm-project/vllm/issues/57103
vLLM, open in November 2026: https://github.com/vllm-project/vllm/issues/51428
vLLM, 0.15.0: https://docs.vllm.ai/en/v0.15.0/api/vllm/sampling_params/
vLLM, stable, read November 2026: https://docs.vllm.ai/en/stable/usage/v1_guide/
vLLM, 0.14.0, whose release notes name this change: https://github.com/vllm-project/vllm/pull/27614
SGLang, read November 2026: https://docs.sglang.io/advanced_features/server_arguments.html
TensorRT-LLM, read November 2026: https://nvidia.github.io/TensorRT-LLM/llm-api/reference/KvCacheConfig.html
TensorRT-LLM, read November 2026: https://nvidia.github.io/TensorRT-LLM/legacy/tensorrt-backend-removal.html
TGI, read November 2026: https://huggingface.co/docs/text-generation-inference/en/index.md
llama.cpp, its README, read November 2026: https://github.com/ggml-org/llama.cpp
Google's Site Reliability Workbook, chapter 5: https://sre.google/workbook/alerting-on-slos/
""")
