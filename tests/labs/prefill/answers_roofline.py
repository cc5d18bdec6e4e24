"""Answers that prove the checks of exercise 2.2."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

BANKS = {
    "2.2": Bank(
        wrong=(
            Wrong(
                "logits always in two bytes",
                """
def matmul_cost(rows, inner, columns, bytes_per_element):
    num_flops = 2 * rows * inner * columns
    num_moved = rows * inner + inner * columns + rows * columns
    return num_flops, num_moved * bytes_per_element


def prefill_cost(shape, num_tokens, bytes_per_element):
    pairs = num_tokens * (num_tokens + 1) // 2
    num_flops = 4 * pairs * shape.num_heads * shape.head_dim
    num_moved = 2 * num_tokens * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    num_bytes = num_moved * bytes_per_element
    for inner, columns in shape.projections.values():
        product = matmul_cost(num_tokens, inner, columns, bytes_per_element)
        num_flops, num_bytes = num_flops + product[0], num_bytes + product[1]
    last = matmul_cost(1, shape.hidden, shape.vocab, 2)
    return shape.num_layers * num_flops + last[0], shape.num_layers * num_bytes + last[1]
""",
                "counts the bytes of a prefill",
            ),
            Wrong(
                "always two bytes",
                """
def matmul_cost(rows, inner, columns, bytes_per_element):
    num_flops = 2 * rows * inner * columns
    num_moved = rows * inner + inner * columns + rows * columns
    return num_flops, num_moved * bytes_per_element


def prefill_cost(shape, num_tokens, bytes_per_element):
    pairs = num_tokens * (num_tokens + 1) // 2
    num_flops = 4 * pairs * shape.num_heads * shape.head_dim
    num_moved = 2 * num_tokens * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    num_bytes = num_moved * 2
    for inner, columns in shape.projections.values():
        product = matmul_cost(num_tokens, inner, columns, bytes_per_element)
        num_flops, num_bytes = num_flops + product[0], num_bytes + product[1]
    last = matmul_cost(1, shape.hidden, shape.vocab, bytes_per_element)
    return shape.num_layers * num_flops + last[0], shape.num_layers * num_bytes + last[1]
""",
                "counts the bytes of a prefill",
            ),
            Wrong(
                "a third of the heads",
                {5: "2 * num_tokens * (shape.num_heads + shape.num_heads // 3) * shape.head_dim"},
                "counts the bytes of a prefill",
            ),
            Wrong(
                "at most 128 tokens",
                """
def matmul_cost(rows, inner, columns, bytes_per_element):
    num_flops = 2 * rows * inner * columns
    num_moved = rows * inner + inner * columns + rows * columns
    return num_flops, num_moved * bytes_per_element


def prefill_cost(shape, num_tokens, bytes_per_element):
    pairs = min(num_tokens, 128) * (min(num_tokens, 128) + 1) // 2
    num_flops = 4 * pairs * shape.num_heads * shape.head_dim
    num_moved = 2 * num_tokens * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    num_bytes = num_moved * bytes_per_element
    for inner, columns in shape.projections.values():
        product = matmul_cost(num_tokens, inner, columns, bytes_per_element)
        num_flops, num_bytes = num_flops + product[0], num_bytes + product[1]
    last = matmul_cost(1, shape.hidden, shape.vocab, bytes_per_element)
    return shape.num_layers * num_flops + last[0], shape.num_layers * num_bytes + last[1]
""",
                "counts the FLOPs of a prefill",
            ),
            Wrong(
                "FLOPs only",
                """
def matmul_cost(rows, inner, columns, bytes_per_element):
    return 2 * rows * inner * columns


def prefill_cost(shape, num_tokens, bytes_per_element):
    return 2 * num_tokens * sum(a * b for a, b in shape.projections.values()) * shape.num_layers
""",
                "counts the FLOPs of a product",
            ),
            Wrong("multiplications only", {1: "rows * inner * columns"}, "counts the FLOPs of a product"),
            Wrong("the result's size", {1: "2 * rows * columns"}, "counts the FLOPs of a product"),
            Wrong("adds the sizes", {1: "2 * (rows * inner + inner * columns)"}, "counts the FLOPs of a product"),
            Wrong("the weights only", {2: "inner * columns"}, "counts the bytes of a product"),
            Wrong("the result is not written", {2: "rows * inner + inner * columns"}, "counts the bytes of a product"),
            Wrong("bytes of all products", {2: "rows * inner * columns"}, "counts the bytes of a product"),
            Wrong(
                "numbers instead of bytes",
                {2: "(rows * inner + inner * columns + rows * columns) // bytes_per_element"},
                "counts the bytes of a product",
            ),
            Wrong("the full square", {3: "num_tokens**2"}, "counts the FLOPs of a prefill"),
            Wrong(
                "a token does not see itself",
                {3: "num_tokens * (num_tokens - 1) // 2"},
                "counts the FLOPs of a prefill",
            ),
            Wrong("linear attention", {3: "num_tokens"}, "counts the FLOPs of a prefill"),
            Wrong(
                "one of the two products",
                {4: "2 * pairs * shape.num_heads * shape.head_dim"},
                "counts the FLOPs of a prefill",
            ),
            Wrong(
                "KV heads for query heads",
                {4: "4 * pairs * shape.num_kv_heads * shape.head_dim"},
                "counts the FLOPs of a prefill",
            ),
            Wrong("one head", {4: "4 * pairs * shape.head_dim"}, "counts the FLOPs of a prefill"),
            Wrong(
                "logits of all rows",
                """
def matmul_cost(rows, inner, columns, bytes_per_element):
    return 2 * rows * inner * columns, bytes_per_element * (rows * inner + inner * columns + rows * columns)


def prefill_cost(shape, num_tokens, bytes_per_element):
    flops, num_bytes = matmul_cost(num_tokens, shape.hidden, shape.vocab, bytes_per_element)
    for inner, columns in shape.projections.values():
        f, b = matmul_cost(num_tokens, inner, columns, bytes_per_element)
        flops, num_bytes = flops + shape.num_layers * f, num_bytes + shape.num_layers * b
    width, pairs = shape.num_heads * shape.head_dim, num_tokens * (num_tokens + 1) // 2
    numbers = 2 * num_tokens * (shape.num_heads + shape.num_kv_heads) * shape.head_dim
    return flops + shape.num_layers * 4 * width * pairs, num_bytes + shape.num_layers * numbers * bytes_per_element
""",
                "counts the FLOPs of a prefill",
            ),
            Wrong(
                "MHA's bytes", {5: "4 * num_tokens * shape.num_heads * shape.head_dim"}, "counts the bytes of a prefill"
            ),
            Wrong(
                "the results are not written",
                {5: "num_tokens * (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_dim"},
                "counts the bytes of a prefill",
            ),
            Wrong(
                "the whole score matrix",
                {
                    5: "2 * shape.num_heads * num_tokens**2 + 2 * num_tokens * (shape.num_heads + shape.num_kv_heads) * shape.head_dim"
                },
                "counts the bytes of a prefill",
            ),
            Wrong(
                "matrices of equal sizes counted once",
                """
def matmul_cost(rows, inner, columns, bytes_per_element):
    return 2 * rows * inner * columns, (rows * inner + inner * columns + rows * columns) * bytes_per_element


def prefill_cost(shape, num_tokens, bytes_per_element):
    pairs = num_tokens * (num_tokens + 1) // 2
    num_flops = 4 * pairs * shape.num_heads * shape.head_dim
    num_bytes = 2 * num_tokens * (shape.num_heads + shape.num_kv_heads) * shape.head_dim * bytes_per_element
    for inner, columns in set(shape.projections.values()):
        product = matmul_cost(num_tokens, inner, columns, bytes_per_element)
        num_flops, num_bytes = num_flops + product[0], num_bytes + product[1]
    last = matmul_cost(1, shape.hidden, shape.vocab, bytes_per_element)
    return shape.num_layers * num_flops + last[0], shape.num_layers * num_bytes + last[1]
""",
                "counts the FLOPs of a prefill",
            ),
            Wrong(
                "logits in each layer",
                """
def matmul_cost(rows, inner, columns, bytes_per_element):
    return 2 * rows * inner * columns, (rows * inner + inner * columns + rows * columns) * bytes_per_element


def prefill_cost(shape, num_tokens, bytes_per_element):
    pairs = num_tokens * (num_tokens + 1) // 2
    num_flops = 4 * pairs * shape.num_heads * shape.head_dim
    num_bytes = 2 * num_tokens * (shape.num_heads + shape.num_kv_heads) * shape.head_dim * bytes_per_element
    for inner, columns in shape.projections.values():
        product = matmul_cost(num_tokens, inner, columns, bytes_per_element)
        num_flops, num_bytes = num_flops + product[0], num_bytes + product[1]
    last = matmul_cost(1, shape.hidden, shape.vocab, bytes_per_element)
    return shape.num_layers * (num_flops + last[0]), shape.num_layers * (num_bytes + last[1])
""",
                "counts the FLOPs of a prefill",
            ),
        ),
        right=(
            Right(
                "part by part",
                """
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
""",
            ),
            Right("pairs by adding up", {3: "sum(range(num_tokens + 1))"}),
            Right("numbers factored", {2: "inner * (rows + columns) + rows * columns"}),
            Right(
                "counted in loops",
                """
def matmul_cost(rows, inner, columns, bytes_per_element):
    flops = 0
    for _ in range(rows):
        flops += 2 * inner * columns
    sizes = [(rows, inner), (inner, columns), (rows, columns)]
    return flops, sum(a * b for a, b in sizes) * bytes_per_element


def prefill_cost(shape, num_tokens, bytes_per_element):
    flops, moved = matmul_cost(1, shape.hidden, shape.vocab, bytes_per_element)
    for _ in range(shape.num_layers):
        for i, o in shape.projections.values():
            f, b = matmul_cost(num_tokens, i, o, bytes_per_element)
            flops += f
            moved += b
        flops += sum(4 * seen for seen in range(1, num_tokens + 1)) * shape.num_heads * shape.head_dim
        moved += 2 * num_tokens * (shape.num_heads + shape.num_kv_heads) * shape.head_dim * bytes_per_element
    return flops, moved
""",
            ),
        ),
    ),
}
