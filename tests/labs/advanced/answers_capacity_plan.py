"""Answers that prove the check of exercise 5.26."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

K_V, SCALES, FULLEST, FILLS, NOTHING, WHOLE, SEATS, PLANNER = (
    "counts K and V of all layers",
    "counts the scales",
    "counts what the fullest GPU has",
    "fills what is left with blocks",
    "has no blocks where nothing is left",
    "gives each request whole blocks",
    "keeps to the seats",
    "agrees with the planner",
)
IN_ONE_BREATH = """
import math


def kv_bytes_per_token(d):
    return sum(2 * math.ceil(d.num_kv_heads / d.num_gpus) * (d.head_dim * d.value_bytes + d.scale_bytes)
               for _ in range(d.num_layers))


def num_blocks(d):
    left = d.utilisation * d.gpu_bytes - d.workspace_bytes - d.weight_bytes / d.num_gpus
    return int(max(left, 0) / kv_bytes_per_token(d) / d.block_size)


def concurrency(d, num_tokens):
    needed = (num_tokens - 1) // d.block_size + 1
    return min(num_blocks(d) // needed, d.max_num_seqs)
"""
IGNORES_ALIGNMENT = """
def kv_bytes_per_token(d):
    heads = max(1, round(d.num_kv_heads / d.num_gpus))
    return 2 * d.num_layers * heads * (d.head_dim * d.value_bytes + d.scale_bytes)


def num_blocks(d):
    left = d.utilisation * d.gpu_bytes - d.weight_bytes / d.num_gpus - d.workspace_bytes
    return max(0, int(left // (d.block_size * kv_bytes_per_token(d))))


def concurrency(d, num_tokens):
    return min(d.max_num_seqs, num_blocks(d) // -(-num_tokens // d.block_size))
"""
EACH = "d.head_dim * d.value_bytes + d.scale_bytes"

BANKS = {
    "5.26": Bank(
        wrong=(
            Wrong("K only", {2: f"d.num_layers * heads * ({EACH})"}, K_V),
            Wrong("one layer", {2: f"2 * heads * ({EACH})"}, K_V),
            Wrong(
                "2 bytes, whatever they are", {2: "2 * d.num_layers * heads * (d.head_dim * 2 + d.scale_bytes)"}, K_V
            ),
            Wrong("no scales", {2: "2 * d.num_layers * heads * d.head_dim * d.value_bytes"}, SCALES),
            Wrong(
                "a scale for K and V together",
                {2: "d.num_layers * heads * (2 * d.head_dim * d.value_bytes + d.scale_bytes)"},
                SCALES,
            ),
            Wrong(
                "a scale per number",
                {2: "2 * d.num_layers * heads * d.head_dim * (d.value_bytes + d.scale_bytes)"},
                SCALES,
            ),
            Wrong("all heads on every GPU", {1: "d.num_kv_heads"}, FULLEST),
            Wrong("the emptiest GPU", {1: "d.num_kv_heads // d.num_gpus"}, FULLEST),
            Wrong("the average GPU, rounded", IGNORES_ALIGNMENT, FULLEST),
            Wrong(
                "all the weights on every GPU",
                {3: "d.utilisation * d.gpu_bytes - d.weight_bytes - d.workspace_bytes"},
                FILLS,
            ),
            Wrong("no headroom", {3: "d.gpu_bytes - d.weight_bytes / d.num_gpus - d.workspace_bytes"}, FILLS),
            Wrong("no workspace", {3: "d.utilisation * d.gpu_bytes - d.weight_bytes / d.num_gpus"}, FILLS),
            Wrong("tokens for blocks", {4: "max(0, int(left // kv_bytes_per_token(d)))"}, FILLS),
            Wrong("rounds blocks up", {4: "max(0, -int(-left // (d.block_size * kv_bytes_per_token(d))))"}, FILLS),
            Wrong("rounds requests up", {6: "min(d.max_num_seqs, -(-num_blocks(d) // blocks_each))"}, WHOLE),
            Wrong("below nothing", {4: "int(left // (d.block_size * kv_bytes_per_token(d)))"}, NOTHING),
            Wrong("part of a block is enough", {5: "max(1, num_tokens // d.block_size)"}, WHOLE),
            Wrong("a block to spare", {5: "num_tokens // d.block_size + 1"}, WHOLE),
            Wrong("seats for ever", {6: "num_blocks(d) // blocks_each"}, SEATS),
            Wrong("the larger of the two", {6: "max(d.max_num_seqs, num_blocks(d) // blocks_each)"}, WHOLE),
        ),
        right=(
            Right("in another order", IN_ONE_BREATH),
            Right(
                "negated floor divisions", {1: "-(-d.num_kv_heads // d.num_gpus)", 5: "-(-num_tokens // d.block_size)"}
            ),
            Right("sizes first", {4: "0 if left < 0 else int(left / (kv_bytes_per_token(d) * d.block_size))"}),
        ),
    ),
}
