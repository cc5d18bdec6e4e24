"""Answers that prove the checks of exercises 7.4 and 7.6."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

SHARES, WHOLE, REDUCED, RESIDUAL = (
    "gives each rank its even share, each weight once",
    "has parts that sum to the whole",
    "gives every rank the sum",
    "adds the residual once",
)
DEALT, CUT = "deals out the KV heads", "cuts the weights at heads"
MLP_REST = """

def mlp_part(x, shard):
    gate, up, down = shard
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def all_reduce(parts):
    total = torch.stack(list(parts)).sum(0)
    return [total.clone() for _ in parts]


def mlp_block(x, shards):
    return [x + total for total in all_reduce([mlp_part(x, shard) for shard in shards])]
"""
ROUND_ROBIN = (
    """
def split_mlp(gate, up, down, n):
    return [(gate[rank::n], up[rank::n], down[:, rank::n]) for rank in range(n)]
"""
    + MLP_REST
)
BY_SIZES = (
    """
def split_mlp(gate, up, down, n):
    width = len(gate)
    bounds = [width * rank // n for rank in range(n + 1)]
    return [(gate[a:b], up[a:b], down[:, a:b]) for a, b in zip(bounds, bounds[1:])]
"""
    + MLP_REST
)
LAST_TAKES_THE_REST = (
    """
def split_mlp(gate, up, down, n):
    each = len(gate) // n
    bounds = [rank * each for rank in range(n)] + [len(gate)]
    return [(gate[a:b], up[a:b], down[:, a:b]) for a, b in zip(bounds, bounds[1:])]
"""
    + MLP_REST
)
EVEN_ONLY = (
    """
def split_mlp(gate, up, down, n):
    each = len(gate) // n
    return [tuple(w[i * each : (i + 1) * each] for w in (gate, up)) + (down[:, i * each : (i + 1) * each],)
            for i in range(n)]
"""
    + MLP_REST
)
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

BANKS = {
    "7.4": Bank(
        wrong=(
            Wrong("every rank has all of up", {1: "gate.tensor_split(n), [up] * n"}, SHARES),
            Wrong("down by rows", {2: "down.tensor_split(n, dim=0)"}, WHOLE),
            Wrong("gate and up by columns", {1: "gate.tensor_split(n, dim=1), up.tensor_split(n, dim=1)"}, WHOLE),
            Wrong("up in another order", {1: "gate.tensor_split(n), up.flip(0).tensor_split(n)"}, WHOLE),
            Wrong("what does not divide is dropped", EVEN_ONLY, SHARES),
            Wrong(
                "the last one takes the rest",
                LAST_TAKES_THE_REST.replace("len(gate) // n", "len(gate) // n - 1"),
                SHARES,
            ),
            Wrong("no silu", {3: "(x @ gate.T) * (x @ up.T)"}, WHOLE),
            Wrong("silu of the product", {3: "F.silu((x @ gate.T) * (x @ up.T))"}, WHOLE),
            Wrong("the mean", {4: "torch.stack(parts).mean(0)"}, REDUCED),
            Wrong("side by side", {4: "torch.cat(parts, -1)"}, REDUCED),
            Wrong("summed into rank 0's", {4: "parts[0].add_(sum(parts[1:]))"}, REDUCED),
            Wrong(
                "the residual on every rank", {5: "all_reduce([x + mlp_part(x, shard) for shard in shards])"}, RESIDUAL
            ),
            Wrong("no residual", {5: "all_reduce([mlp_part(x, shard) for shard in shards])"}, RESIDUAL),
            Wrong(
                "one output for all ranks",
                {5: "[x + all_reduce([mlp_part(x, shard) for shard in shards])[0]] * len(shards)"},
                RESIDUAL,
            ),
            Wrong("no sum", {5: "[x + mlp_part(x, shard) for shard in shards]"}, RESIDUAL),
        ),
        right=(
            Right("inner elements dealt in turn", ROUND_ROBIN),
            Right("by bounds", BY_SIZES),
            Right(
                "the residual on one rank",
                {5: "all_reduce([mlp_part(x, shard) + (0 if rank else x) for rank, shard in enumerate(shards)])"},
            ),
        ),
    ),
    "7.6": Bank(
        wrong=(
            Wrong(
                "the last rank gets the rest",
                {1: "rank * base", 2: "range(first, num_kv_heads if rank == n - 1 else first + base)"},
                DEALT,
            ),
            Wrong("the rest is dropped", {1: "rank * base", 2: "range(first, first + base)"}, DEALT),
            Wrong("starts that forget the extra ones", {1: "rank * base"}, DEALT),
            Wrong("dealt in turn", {2: "range(rank, num_kv_heads, n)"}, DEALT),
            Wrong("KV heads for query heads", {4: "slice(kv.start * d, kv.stop * d)"}, CUT),
            Wrong("rows that are not times head_dim", {3: "slice(kv.start, kv.stop)"}, CUT),
            Wrong("all the query heads everywhere", {4: "slice(0, w.num_heads * d)"}, CUT),
            Wrong("o by rows", {5: "w.o[q_rows]"}, CUT),
            Wrong("o not cut", {5: "w.o"}, CUT),
            Wrong("cuts o in place", {5: "w.o[:, q_rows].mul_(0.5)"}, CUT),
            Wrong("the first columns of o", {5: "w.o[:, : len(kv) * group * d]"}, WHOLE),
            Wrong("the first rows of q", {4: "slice(0, len(kv) * group * d)"}, WHOLE),
            Wrong("the first rows of k and v", {3: "slice(0, len(kv) * d)"}, WHOLE),
        ),
        right=(
            Right("head by head", BY_LIST),
            Right(
                "bounds by rounding up",
                {
                    1: "sum(base + (other < extra) for other in range(rank))",
                    2: "range(first, first + (base + 1 if rank < extra else base))",
                },
            ),
        ),
    ),
}
