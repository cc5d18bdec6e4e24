"""Where the boxes 'In production, 2026' were read, and the figures of this lab: product, version or date, address."""

from twophase_labs.machine.sources import sources

READ = "2026-11"
SOURCES = sources("""
SGLang, documentation read in November 2026: https://docs.sglang.io/advanced_features/attention_backend.html
NVIDIA H100 SXM, data sheet: https://www.nvidia.com/en-us/data-center/h100/
vLLM, V1 engine, commit 00620f9: https://github.com/vllm-project/vllm/blob/00620f91ea186ca295a1eb69f4acba9d0efaaaaa/docs/configuration/optimization.md
TensorRT-LLM, documentation of 2026: https://nvidia.github.io/TensorRT-LLM/features/paged-attention-ifb-scheduler.html
vLLM, commit 0013943: https://github.com/vllm-project/vllm/blob/001394336840495fb529a33f71767ecbfdc88372/docs/design/attention_backends.md
SGLang, commit 000984e: https://github.com/sgl-project/sglang/blob/000984ed03d93e6622777f500d76a59837b0c42b/docs/advanced_features/attention_backend.md
vLLM, 0.29.0: https://docs.vllm.ai/en/v0.29.0/api/vllm/config/cache/
TensorRT-LLM, 1.3.0rc27: https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html
SGLang, commit 004813e: https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md
TensorRT-LLM, documentation of 2026: https://nvidia.github.io/TensorRT-LLM/llm-api/reference/TorchLlmArgs.html
vLLM, an issue of 2026: https://github.com/vllm-project/vllm/issues/40696
vLLM, 0.18.2: https://docs.vllm.ai/en/v0.18.2/design/fusions/
""")
