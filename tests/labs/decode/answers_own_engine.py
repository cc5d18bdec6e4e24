"""Answers that prove the check of exercise 3.13."""

from twophase_labs.machine.bank import right, wrong

TAKES_ITS, DECODES_WITH = "takes its blocks from your pool", "decodes with your kernels"
MERGES_THE, WRITES_WHAT = "merges the splits with your function", "writes what transformers writes"
FORKS_A = "forks a prompt"

BY_HAND = """
def own_engine(model, block_size, num_blocks, num_splits=2, **options):
    def decode(*args):
        if num_splits < 2:
            out = torch.empty_like(args[0])
            launch_paged_decode(paged_decode_kernel, *args, out=out)
            return out
        partial, lse = launch_paged_decode_split(paged_decode_split_kernel, *args, num_splits)
        out, _ = merge_splits(partial, lse)
        return out.to(args[0].dtype)

    def attention(spec):
        return OwnAttention(spec, block_size, decode=decode)

    class Tables:
        def __init__(self, pool):
            self.pool = pool

        def __call__(self):
            return BlockTable(self.pool, block_size)

    def cache(num_blocks, size, _):
        pool = BlockPool(num_blocks)
        return OwnCache(pool, Tables(pool), size, prepare_write=prepare_write, fork=fork)

    options |= {"device": device.type, "dtype": "float32", "block_size": block_size, "num_kv_blocks": num_blocks}
    return LLM(model, attention_backend=attention, cache_factory=cache, **options)
"""

# fmt: off
BANKS = {
    "3.13": (
        wrong("a pool of its own size", {4: "BlockPool(64)"}, by=TAKES_ITS),
        wrong("pages of 16, whatever was asked", {5: "BlockTable(blocks, 16)"}, by=TAKES_ITS),
        wrong("the engine's own attention", {6: "OwnAttention(spec, block_size)"}, by=DECODES_WITH),
        wrong("a plain sum of the splits", {3: "results[0].sum(2)"}, by=MERGES_THE),
        wrong("one split, whatever was asked", "num_splits)", "1)", by=MERGES_THE),
        wrong("no scale",
              {2: "launch_paged_decode_split(paged_decode_split_kernel, q, k_cache, v_cache, block_tables, seq_lens, 1.0, num_splits)"},
              by=WRITES_WHAT),
        wrong("no forks", "block_size, fork, prepare_write)", "block_size)", by=FORKS_A),
        right("keyword arguments",
              {2: "launch_paged_decode_split(paged_decode_split_kernel, q=q, k_cache=k_cache, v_cache=v_cache, block_tables=block_tables, seq_lens=seq_lens, scale=scale, num_splits=num_splits)"}),
        right("other helpers", BY_HAND),
    ),
}
