"""Where the facts in lab 5's boxes *In production, 2026* were read."""

from twophase_labs.machine.sources import Source

VLLM = "https://github.com/vllm-project/vllm/blob/002f10e0cfa1373a19a0d2756598a34b700d20e5"
SGLANG = "https://github.com/sgl-project/sglang/blob/004813e1dd464844bd92ddbca5cab8c024a75f78"

SOURCES = (
    Source(
        url=f"{VLLM}/vllm/config/cache.py",
        product="vLLM",
        version="main, commit 002f10e",
        says="enable_prefix_caching is True; prefix_caching_hash_algo is sha256; cache_dtype is 'auto', "
        "the model's own; int8_per_token_head and fp8_per_token_head are among the others",
    ),
    Source(
        url="https://docs.vllm.ai/en/latest/design/prefix_caching/",
        product="vLLM",
        version="latest, 2026",
        says="a block's name is a hash of the tokens before and in it; a request's cache_salt enters the first one",
    ),
    Source(
        url="https://nvidia.github.io/TensorRT-LLM/1.3.0rc27/llm-api/reference/KvCacheConfig.html",
        product="TensorRT-LLM",
        version="1.3.0rc27",
        says="enable_block_reuse is True; max_attention_window and sink_token_length are None; dtype is 'auto'",
    ),
    Source(
        url=f"{SGLANG}/docs/advanced_features/server_arguments.md",
        product="SGLang",
        version="main, commit 004813e",
        says="--disable-radix-cache is off; --speculative-algorithm is None, or EAGLE, EAGLE3, STANDALONE, NGRAM; "
        "--speculative-accept-threshold-single and -acc are 1.0; --speculative-token-map is a draft model's small "
        "vocabulary; --grammar-backend takes xgrammar, outlines, llguidance",
    ),
    Source(
        url="https://docs.vllm.ai/en/v0.12.0/api/vllm/config/structured_outputs/",
        product="vLLM",
        version="0.12.0",
        says="backend is 'auto': xgrammar, guidance, outlines or lm-format-enforcer, by what the request asks for",
    ),
    Source(
        url="https://docs.vllm.ai/en/latest/design/hybrid_kv_cache_manager/",
        product="vLLM",
        version="latest, 2026",
        says="layers of different kinds get slots by kind: all tokens for full attention, a window's for the others",
    ),
    Source(
        url="https://docs.vllm.ai/en/v0.25.0/features/quantization/quantized_kvcache/",
        product="vLLM",
        version="0.25.0",
        says="fp8 K and V have a scale per tensor or, calibrated, per head; without calibration all scales are 1.0",
    ),
)
