"""Where the facts in lab 2's boxes *In production, 2026* were read."""

from twophase_labs.machine.sources import Source

VLLM = "https://github.com/vllm-project/vllm/blob"
SGLANG = "https://github.com/sgl-project/sglang/blob"

SOURCES = (
    Source(
        url="https://www.nvidia.com/en-us/data-center/h100/",
        product="NVIDIA H100 SXM",
        version="data sheet",
        says="1,979 TFLOP/s in bfloat16 with sparsity, half of that without; 80 GB at 3.35 TB/s",
    ),
    Source(
        url=f"{VLLM}/00620f91ea186ca295a1eb69f4acba9d0efaaaaa/docs/configuration/optimization.md",
        product="vLLM",
        version="V1 engine, commit 00620f9",
        says="chunked prefill is always on by default; decodes first, prefills by what is left of "
        "max_num_batched_tokens; above 8192 is recommended for throughput, above all for small models on large GPUs",
    ),
    Source(
        url="https://nvidia.github.io/TensorRT-LLM/features/paged-attention-ifb-scheduler.html",
        product="TensorRT-LLM",
        version="documentation of 2026",
        says="in-flight batching needs packed inputs, without padding; max_num_tokens bounds the tokens of a batch",
    ),
    Source(
        url=f"{VLLM}/001394336840495fb529a33f71767ecbfdc88372/docs/design/attention_backends.md",
        product="vLLM",
        version="commit 0013943",
        says="without --attention-backend the first that fits is taken: FLASH_ATTN on compute capability 8 and 9, "
        "FLASHINFER on 10; FlashAttention 3 is the default version on Hopper",
    ),
    Source(
        url=f"{SGLANG}/000984ed03d93e6622777f500d76a59837b0c42b/docs/advanced_features/attention_backend.md",
        product="SGLang",
        version="commit 000984e",
        says="fa3 is the default on Hopper, FlashInfer on machines such as A100",
    ),
    Source(
        url="https://docs.vllm.ai/en/v0.29.0/api/vllm/config/cache/",
        product="vLLM",
        version="0.29.0",
        says="DEFAULT_BLOCK_SIZE is 16",
    ),
    Source(
        url="https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html",
        product="TensorRT-LLM",
        version="1.3.0rc27",
        says="tokens_per_block is 32 by default",
    ),
    Source(
        url=f"{SGLANG}/004813e1dd464844bd92ddbca5cab8c024a75f78/docs/advanced_features/server_arguments.md",
        product="SGLang",
        version="commit 004813e",
        says="`--page-size` is 1 by default; `--chunked-prefill-size` bounds a chunk, -1 disables chunking",
    ),
    Source(
        url="https://nvidia.github.io/TensorRT-LLM/llm-api/reference/TorchLlmArgs.html",
        product="TensorRT-LLM",
        version="documentation of 2026",
        says="enable_chunked_prefill is False by default",
    ),
    Source(
        url="https://docs.vllm.ai/en/v0.18.2/design/fusions/",
        product="vLLM",
        version="0.18.2",
        says="fusion passes are switched on by optimization level: all-reduce + RMSNorm from O2 on Hopper and "
        "Blackwell with tensor parallelism, RoPE + cache update from O2 on ROCm only",
    ),
)
