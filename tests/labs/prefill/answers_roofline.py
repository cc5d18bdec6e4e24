"""Answers that prove the check of exercise 2.5."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

PRODUCT_FLOPS, PRODUCT_BYTES, PREFILL_FLOPS, PREFILL_BYTES = (
    "counts the FLOPs of a product",
    "counts the bytes of a product",
    "counts the FLOPs of a prefill",
    "counts the bytes of a prefill",
)
BY_PARTS = """
def matmul_cost(rows, inner, columns, bytes_per_number):
    sizes = [(rows, inner), (inner, columns), (rows, columns)]
    return rows * columns * inner * 2, sum(a * b for a, b in sizes) * bytes_per_number


def prefill_cost(shape, num_tokens, bytes_per_number):
    total = list(matmul_cost(1, shape.hidden, shape.vocab, bytes_per_number))
    for _ in range(shape.num_layers):
        for inner, columns in shape.projections.values():
            for i, cost in enumerate(matmul_cost(num_tokens, inner, columns, bytes_per_number)):
                total[i] += cost
        for head in range(shape.num_heads):
            total[0] += sum(4 * shape.head_dim * keys for keys in range(1, num_tokens + 1))
        for num_heads in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads, shape.num_heads):
            total[1] += num_tokens * num_heads * shape.head_dim * bytes_per_number
    return tuple(total)
"""
ALL_LOGITS = """
def matmul_cost(rows, inner, columns, bytes_per_number):
    return 2 * rows * inner * columns, bytes_per_number * (rows * inner + inner * columns + rows * columns)


def prefill_cost(shape, num_tokens, bytes_per_number):
    flops, num_bytes = matmul_cost(num_tokens, shape.hidden, shape.vocab, bytes_per_number)
    for inner, columns in shape.projections.values():
        f, b = matmul_cost(num_tokens, inner, columns, bytes_per_number)
        flops, num_bytes = flops + shape.num_layers * f, num_bytes + shape.num_layers * b
    width, pairs = shape.num_heads * shape.head_dim, num_tokens * (num_tokens + 1) // 2
    numbers = 2 * num_tokens * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    return flops + shape.num_layers * 4 * width * pairs, num_bytes + shape.num_layers * numbers * bytes_per_number
"""
FLOPS_ONLY = """
def matmul_cost(rows, inner, columns, bytes_per_number):
    return 2 * rows * inner * columns


def prefill_cost(shape, num_tokens, bytes_per_number):
    return 2 * num_tokens * sum(a * b for a, b in shape.projections.values()) * shape.num_layers
"""

BANKS = {
    "2.5": Bank(
        wrong=(
            Wrong("FLOPs only", FLOPS_ONLY, PRODUCT_FLOPS),
            Wrong("multiplications only", {1: "rows * inner * columns"}, PRODUCT_FLOPS),
            Wrong("the result's size", {1: "2 * rows * columns"}, PRODUCT_FLOPS),
            Wrong("adds the sizes", {1: "2 * (rows * inner + inner * columns)"}, PRODUCT_FLOPS),
            Wrong("the weights only", {2: "inner * columns"}, PRODUCT_BYTES),
            Wrong("the result is not written", {2: "rows * inner + inner * columns"}, PRODUCT_BYTES),
            Wrong("bytes of all products", {2: "rows * inner * columns"}, PRODUCT_BYTES),
            Wrong(
                "numbers instead of bytes",
                {2: "(rows * inner + inner * columns + rows * columns) // bytes_per_number"},
                PRODUCT_BYTES,
            ),
            Wrong("the full square", {3: "num_tokens**2"}, PREFILL_FLOPS),
            Wrong("a token does not see itself", {3: "num_tokens * (num_tokens - 1) // 2"}, PREFILL_FLOPS),
            Wrong("linear attention", {3: "num_tokens"}, PREFILL_FLOPS),
            Wrong("one of the two products", {4: "2 * pairs * shape.num_heads * shape.head_dim"}, PREFILL_FLOPS),
            Wrong("KV heads for query heads", {4: "4 * pairs * shape.num_kv_heads * shape.head_dim"}, PREFILL_FLOPS),
            Wrong("one head", {4: "4 * pairs * shape.head_dim"}, PREFILL_FLOPS),
            Wrong("logits of all rows", ALL_LOGITS, PREFILL_FLOPS),
            Wrong("MHA's bytes", {5: "4 * num_tokens * shape.num_heads * shape.head_dim"}, PREFILL_BYTES),
            Wrong(
                "the results are not written",
                {5: "num_tokens * (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim"},
                PREFILL_BYTES,
            ),
            Wrong(
                "the whole score matrix",
                {
                    5: "2 * shape.num_heads * num_tokens**2 + 2 * num_tokens * "
                    "(shape.num_heads + shape.num_kv_heads) * shape.head_dim"
                },
                PREFILL_BYTES,
            ),
        ),
        right=(
            Right("part by part", BY_PARTS),
            Right("pairs by adding up", {3: "sum(range(num_tokens + 1))"}),
            Right("numbers factored", {2: "inner * (rows + columns) + rows * columns"}),
        ),
    ),
}
