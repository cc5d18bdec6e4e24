"""Answers that prove the check of exercise 3.16."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

OWN_GATHER = """
def own_engine(model, block_size, num_blocks, num_splits=2, **options):
    def decode(q, k_cache, v_cache, block_tables, seq_lens, scale):
        out = torch.empty_like(q)
        group = q.shape[1] // k_cache.shape[1]
        for s, length in enumerate(seq_lens.tolist()):
            pages = block_tables[s, : -(-length // block_size)].long()
            k, v = (c[pages].transpose(0, 1).flatten(1, 2)[:, :length] for c in (k_cache, v_cache))
            for h in range(q.shape[1]):
                weights = (k[h // group] @ q[s, h] * scale).softmax(-1)
                out[s, h] = weights @ v[h // group]
        return out

    def cache(num_blocks, block_size, enable_prefix_caching):
        pool = BlockPool(num_blocks)
        return OwnCache(pool, lambda: BlockTable(pool, block_size), block_size, fork, prepare_write)

    return LLM(
        model, device=device.type, dtype="float32", block_size=block_size, num_kv_blocks=num_blocks,
        attention_backend=lambda spec: OwnAttention(spec, block_size, decode=decode), cache_factory=cache, **options,
    )
"""
BY_HAND = """
def own_engine(model, block_size, num_blocks, num_splits=2, **options):
    def decode(*args):
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
BY_KEYWORD = (
    "launch_paged_decode_split(paged_decode_split_kernel, q=q, k_cache=k_cache, v_cache=v_cache, "
    "block_tables=block_tables, seq_lens=seq_lens, scale=scale, num_splits=num_splits)"
)
NO_FORK = BY_HAND.replace(", prepare_write=prepare_write, fork=fork", "")
COPIES_NOTHING = BY_HAND.replace("prepare_write=prepare_write", "prepare_write=lambda table: []")


def launch(arguments: str) -> dict[int, str]:
    return {1: f"launch_paged_decode_split(paged_decode_split_kernel, {arguments}, num_splits)"}


BANKS = {
    "3.16": Bank(
        wrong=(
            Wrong(
                "the engine's own attention",
                {5: "OwnAttention(spec, block_size)"},
                rejected_by="decodes with your kernel",
            ),
            Wrong("attention by gathering, no kernel", OWN_GATHER, rejected_by="decodes with your kernel"),
            Wrong(
                "the torch backend",
                {5: "OwnAttention(spec, block_size)._torch"},
                rejected_by="decodes with your kernel",
            ),
            Wrong(
                "no scale",
                launch("q, k_cache, v_cache, block_tables, seq_lens, 1.0"),
                rejected_by="writes what transformers writes",
            ),
            Wrong(
                "K for V",
                launch("q, k_cache, k_cache, block_tables, seq_lens, scale"),
                rejected_by="writes what transformers writes",
            ),
            Wrong(
                "drops the newest token",
                launch("q, k_cache, v_cache, block_tables, (seq_lens - 1).clamp(min=1), scale"),
                rejected_by="writes what transformers writes",
            ),
            Wrong(
                "the first sequence's table for all",
                launch("q, k_cache, v_cache, block_tables[:1].expand_as(block_tables).contiguous(), seq_lens, scale"),
                rejected_by="writes what transformers writes",
            ),
            Wrong(
                "the first split only", {2: "results[0][:, :, 0]"}, rejected_by="merges the splits with your function"
            ),
            Wrong(
                "a plain sum of the splits",
                {2: "results[0].sum(2)"},
                rejected_by="merges the splits with your function",
            ),
            Wrong(
                "one split, whatever was asked",
                {1: "launch_paged_decode_split(paged_decode_split_kernel, *inputs, 1)"},
                rejected_by="merges the splits with your function",
            ),
            Wrong("the LSE as output", {2: "merge_splits(*results)[1]"}, rejected_by="decodes with your kernel"),
            Wrong("no forks", NO_FORK, rejected_by="forks a prompt"),
            Wrong("forks that copy nothing", COPIES_NOTHING, rejected_by="forks a prompt"),
            Wrong("a pool of its own size", {3: "BlockPool(64)"}, rejected_by="takes its blocks from your pool"),
            Wrong(
                "pages of 16, whatever was asked",
                {4: "BlockTable(blocks, 16)"},
                rejected_by="takes its blocks from your pool",
            ),
            Wrong(
                "a pool for every table",
                {4: "BlockTable(BlockPool(num_blocks), block_size)"},
                rejected_by="takes its blocks from your pool",
            ),
        ),
        right=(Right("keyword arguments", {1: BY_KEYWORD}), Right("other helpers", BY_HAND)),
    ),
}
