"""Answers that prove the checks of exercise 7.4."""

from twophase_labs.machine.bank import right, wrong

SHARES, WHOLE = "gives each rank its even share, each weight once", "has parts that sum to the whole"
REDUCED, RESIDUAL = "gives every rank the sum", "adds the residual once"

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
}
