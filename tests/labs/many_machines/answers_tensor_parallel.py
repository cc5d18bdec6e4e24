"""Answers that prove the checks of exercises 7.4 and 7.6."""

from twophase_labs.machine.bank import right, wrong

SHARES, WHOLE = "gives each rank its even share, each weight once", "has parts that sum to the whole"
REDUCED, RESIDUAL, DEALT = "gives every rank the sum", "adds the residual once", "deals out the KV heads"
CUT = "cuts the weights at heads"

ROUND_ROBIN = """
def split_mlp(gate, up, down, n):
    return [(gate[rank::n], up[rank::n], down[:, rank::n]) for rank in range(n)]

def mlp_part(x, shard):
    gate, up, down = shard
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T

def all_reduce(parts):
    total = torch.stack(list(parts)).sum(0)
    return [total.clone() for _ in parts]

def mlp_block(x, shards):
    return [x + total for total in all_reduce([mlp_part(x, shard) for shard in shards])]
"""
BY_LIST = """
def kv_heads_of(rank, n, num_kv_heads):
    return torch.arange(num_kv_heads).tensor_split(n)[rank].tolist()

def split_attention(w, n):
    d, group = w.head_dim, w.num_heads // w.num_kv_heads
    q, k, v = (part.unflatten(0, (-1, d)) for part in (w.q, w.k, w.v))
    o = w.o.unflatten(1, (-1, d))
    shards = []
    for rank in range(n):
        kv = kv_heads_of(rank, n, w.num_kv_heads)
        heads = [head for head in range(w.num_heads) if head // group in kv]
        shards.append(AttentionWeights(q[heads].flatten(0, 1), k[kv].flatten(0, 1), v[kv].flatten(0, 1),
                                       o[:, heads].flatten(1), len(heads), len(kv), d, w.theta))
    return shards
"""

# fmt: off
BANKS = {
    "7.4": (
        wrong("every rank has all of up", "up.tensor_split(n)", "[up] * n", by=SHARES),
        wrong("no silu", {3: "(x @ gate.T) * (x @ up.T)"}, by=WHOLE),
        wrong("silu of the product", {3: "F.silu((x @ gate.T) * (x @ up.T))"}, by=WHOLE),
        wrong("side by side", {4: "torch.cat(parts, -1)"}, by=REDUCED),
        wrong("the mean", {4: "torch.stack(parts).mean(0)"}, by=REDUCED),
        wrong("summed into rank 0's", {4: "parts[0].add_(sum(parts[1:]))"}, by=REDUCED),
        wrong("no sum", {5: "[x + mlp_part(x, shard) for shard in shards]"}, by=RESIDUAL),
        wrong("no residual", {5: "all_reduce([mlp_part(x, shard) for shard in shards])"}, by=RESIDUAL),
        right("the residual on one rank",
              {5: "all_reduce([mlp_part(x, shard) + (0 if rank else x) for rank, shard in enumerate(shards)])"}),
        right("inner elements dealt in turn", ROUND_ROBIN),
    ),
    "7.6": (
        wrong("starts that forget the extra ones", {1: "rank * base"}, by=DEALT),
        wrong("dealt in turn", {2: "range(rank, num_kv_heads, n)"}, by=DEALT),
        wrong("o not cut", {5: "w.o"}, by=CUT),
        wrong("o by rows", {5: "w.o[q_rows]"}, by=CUT),
        wrong("rows that are not times head_dim", {3: "slice(kv.start, kv.stop)"}, by=CUT),
        wrong("the first rows of k and v", {3: "slice(0, len(kv) * d)"}, by=WHOLE),
        wrong("the first columns of o", {5: "w.o[:, : len(kv) * group * d]"}, by=WHOLE),
        wrong("the first rows of q", {4: "slice(0, len(kv) * group * d)"}, by=WHOLE),
        right("bounds by rounding up",
              {1: "sum(base + (other < extra) for other in range(rank))", 2: "range(first, first + (base + 1 if rank < extra else base))"}),
        right("head by head", BY_LIST),
    ),
}
