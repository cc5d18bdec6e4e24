"""Answers that prove the check of exercise 3.23."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

OWN_GATHER = """
def own_engine(model, block_size, num_blocks, **options):
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
        return OwnCache(pool, lambda: BlockTable(pool, block_size), block_size)

    return LLM(
        model, device=device.type, dtype="float32", block_size=block_size, num_kv_blocks=num_blocks,
        attention_backend=lambda spec: OwnAttention(spec, block_size, decode=decode), cache_factory=cache, **options,
    )
"""
BY_HAND = """
def own_engine(model, block_size, num_blocks, **options):
    def decode(*args):
        return launch_paged_decode(paged_decode_kernel, *args)

    def attention(spec):
        return OwnAttention(spec, block_size, decode=decode)

    class Tables:
        def __init__(self, pool):
            self.pool = pool

        def __call__(self):
            return BlockTable(self.pool, block_size)

    def cache(num_blocks, size, _):
        pool = BlockPool(num_blocks)
        return OwnCache(pool, Tables(pool), size)

    options |= {"device": device.type, "dtype": "float32", "block_size": block_size, "num_kv_blocks": num_blocks}
    return LLM(model, attention_backend=attention, cache_factory=cache, **options)
"""
BY_KEYWORD = (
    "launch_paged_decode(paged_decode_kernel, q=q, k_cache=k_cache, v_cache=v_cache, block_tables=block_tables, "
    "seq_lens=seq_lens, scale=scale)"
)


def launch(arguments: str) -> dict[int, str]:
    return {1: f"launch_paged_decode(paged_decode_kernel, {arguments})"}


BANKS = {
    "3.23": Bank(
        wrong=(
            Wrong(
                "the engine's own attention",
                {4: "OwnAttention(spec, block_size)"},
                rejected_by="decodes with your kernel",
            ),
            Wrong("attention by gathering, no kernel", OWN_GATHER, rejected_by="decodes with your kernel"),
            Wrong(
                "the torch backend",
                {4: "OwnAttention(spec, block_size)._torch"},
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
            Wrong("a pool of its own size", {2: "BlockPool(64)"}, rejected_by="takes its blocks from your pool"),
            Wrong(
                "pages of 16, whatever was asked",
                {3: "BlockTable(pool, 16)"},
                rejected_by="takes its blocks from your pool",
            ),
            Wrong(
                "a pool for every table",
                {3: "BlockTable(BlockPool(num_blocks), block_size)"},
                rejected_by="takes its blocks from your pool",
            ),
        ),
        right=(Right("keyword arguments", {1: BY_KEYWORD}), Right("other helpers", BY_HAND)),
    ),
}
