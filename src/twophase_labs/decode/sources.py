"""What lab 3 says of other engines, and where it was read."""

from twophase_labs.machine.sources import Source

VLLM = "https://github.com/vllm-project/vllm/blob/002f10e0cfa1373a19a0d2756598a34b700d20e5"
SGLANG = "https://docs.sglang.io/advanced_features/server_arguments.html"
TENSORRT_LLM = "https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference"

SOURCES = (
    Source(
        url=f"{VLLM}/vllm/config/cache.py",
        product="vLLM",
        version="main, commit 002f10e",
        says="DEFAULT_BLOCK_SIZE is 16; gpu_memory_utilization is 0.92; cache_dtype is 'auto', the model's own, and "
        "int8_per_token_head is one of the others",
    ),
    Source(
        url="https://docs.vllm.ai/en/v0.25.0/features/quantization/quantized_kvcache/",
        product="vLLM",
        version="0.25.0",
        says="fp8 K and V have a scale per tensor (or, calibrated, per head); without calibration all scales are 1.0",
    ),
    Source(
        url="https://docs.vllm.ai/en/latest/design/cuda_graphs/",
        product="vLLM",
        version="latest, read for main at commit 0045689",
        says="cudagraph_mode is FULL_AND_PIECEWISE by default: full graphs for uniform decode, piecewise for others",
    ),
    Source(
        url=SGLANG,
        product="SGLang",
        version="main, commit 004813e",
        says="page_size is 1; --kv-cache-dtype is auto; --prefill-attention-backend and --decode-attention-backend are "
        "unset and go before --attention-backend; --triton-attention-num-kv-splits is 8, larger for longer contexts; "
        "--triton-attention-reduce-in-fp32 is off; --max-running-requests and --mem-fraction-static have no fixed "
        "default; --disable-cuda-graph and --disable-cuda-graph-padding are off; --enable-layerwise-nvtx-marker marks "
        "layers for Nsight Systems",
    ),
    Source(
        url=f"{TENSORRT_LLM}/KvCacheConfig.html",
        product="TensorRT-LLM",
        version="1.3.0rc27",
        says="tokens_per_block is 32, copy_on_partial_reuse is True, dtype is 'auto'",
    ),
    Source(
        url=f"{TENSORRT_LLM}/DecodeCudaGraphConfig.html",
        product="TensorRT-LLM",
        version="1.3.0rc27",
        says="without batch_sizes or max_batch_size, a max_batch_size of 128 is used; enable_padding is False",
    ),
)
