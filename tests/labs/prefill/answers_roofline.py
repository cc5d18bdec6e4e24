"""Answers that prove the check of exercise 2.2."""

from twophase_labs.machine.bank import right, wrong

COUNTS_THE, COUNTS_THE_BYTES = "counts the FLOPs of a product", "counts the bytes of a product"
COUNTS_THE_FLOPS, COUNTS_THE_BYTES_OF = "counts the FLOPs of a prefill", "counts the bytes of a prefill"

PART_BY_PART = """
def matmul_cost(rows, inner, columns, bytes_per_element):
    sizes = [(rows, inner), (inner, columns), (rows, columns)]
    return rows * columns * inner * 2, sum(a * b for a, b in sizes) * bytes_per_element

def prefill_cost(shape, num_tokens, bytes_per_element):
    total = list(matmul_cost(1, shape.hidden, shape.vocab, bytes_per_element))
    for _ in range(shape.num_layers):
        for inner, columns in shape.projections.values():
            for i, cost in enumerate(matmul_cost(num_tokens, inner, columns, bytes_per_element)):
                total[i] += cost
        for head in range(shape.num_heads):
            total[0] += sum(4 * shape.head_dim * keys for keys in range(1, num_tokens + 1))
        for num_heads in (shape.num_heads, shape.num_kv_heads, shape.num_kv_heads, shape.num_heads):
            total[1] += num_tokens * num_heads * shape.head_dim * bytes_per_element
    return tuple(total)
"""

# fmt: off
BANKS = {
    "2.2": (
        wrong("multiplications only", "2 * rows", "rows", by=COUNTS_THE),
        wrong("the result's size", {1: "2 * rows * columns"}, by=COUNTS_THE),
        wrong("the weights only", {2: "inner * columns"}, by=COUNTS_THE_BYTES),
        wrong("bytes of all products", {2: "rows * inner * columns"}, by=COUNTS_THE_BYTES),
        wrong("linear attention", {3: "num_tokens"}, by=COUNTS_THE_FLOPS),
        wrong("the full square", {3: "num_tokens**2"}, by=COUNTS_THE_FLOPS),
        wrong("a third of the heads", ".num_kv_heads", ".num_heads // 3", by=COUNTS_THE_BYTES_OF),
        wrong("MHA's bytes", {5: "4 * num_tokens * shape.num_heads * shape.head_dim"}, by=COUNTS_THE_BYTES_OF),
        right("part by part", PART_BY_PART),
        right("numbers factored", {2: "inner * (rows + columns) + rows * columns"}),
    ),
}
