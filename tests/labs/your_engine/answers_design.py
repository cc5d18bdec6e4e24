"""Answers that prove the checks of exercise 9.3."""

from twophase_labs.machine.bank import right, wrong

CHAT = '{"enable_prefix_caching": True, "max_num_batched_tokens": 512}'
BATCH = '{"max_num_seqs": 1024, "kv_cache_dtype": "fp8_e4m3"}'
RETRIEVAL = '{"enable_prefix_caching": True, "max_num_batched_tokens": 1024}'

ALL = (
    '{"quantization": "fp8", "kv_cache_dtype": "fp8_e4m3", "max_num_seqs": 1024, "max_num_batched_tokens": 1024, '
    '"enable_prefix_caching": True}'
)
TWO = "changes two options at most"
GATE = "fits into the GPU and through the gate"

BANKS = {
    "9.3": (
        wrong("a tuple of pairs", BATCH, "tuple({}.items())", by="returns options that there are"),
        wrong("an option of another engine", BATCH, '{"max_batch_size": 64}', by="returns options that there are"),
        wrong("everything switched on", {1: f"return {ALL}"}, by=TWO),
        wrong("one byte for everything", {1: 'return {"quantization": "fp8", "kv_cache_dtype": "fp8_e4m3"}'}, by="meets chat's SLO"),
        wrong("a third option for chat", '"max_num_batched_tokens": 512}', '"max_num_batched_tokens": 512, "quantization": "fp8"}', by=TWO),
        wrong("a token budget below the sequences", BATCH, '{"max_num_seqs": 9000}', by=GATE),
        wrong("four bits against the gate", RETRIEVAL, '{"quantization": "int4"}', by=GATE),
        wrong("chat with long steps", ', "max_num_batched_tokens": 512', "", by="meets chat's SLO"),
        wrong("chat that shares nothing", CHAT, '{"max_num_batched_tokens": 512}', by="meets chat's SLO"),
        wrong("a batch with the defaults", BATCH, "{}", by="has the batch done in time"),
        wrong("more sequences than blocks", ', "kv_cache_dtype": "fp8_e4m3"', "", by="has the batch done in time"),
        wrong("retrieval with long steps", ', "max_num_batched_tokens": 1024', "", by="meets retrieval's SLO"),
        wrong("retrieval that shares nothing", RETRIEVAL, '{"max_num_batched_tokens": 1024}', by="meets retrieval's SLO"),
        right("one byte for everything in the batch", BATCH, '{"quantization": "int8", "kv_cache_dtype": "fp8_e4m3"}'),
        right("weights of one byte for chat", CHAT, '{"enable_prefix_caching": True, "quantization": "fp8"}'),
        right("weights of one byte for retrieval", RETRIEVAL, '{"enable_prefix_caching": True, "quantization": "fp8"}'),
        right(
            "defaults written out", RETRIEVAL,
            '{**DEFAULTS, "enable_prefix_caching": True, "max_num_batched_tokens": 1024}',
        ),
        right("a table of designs", {1: f'return {{"chat": {CHAT}, "batch": {BATCH}, "retrieval": {RETRIEVAL}}}[service]'}),
    ),
}  # fmt: skip
