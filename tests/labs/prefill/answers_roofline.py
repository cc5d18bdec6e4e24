"""Answers that prove the check of exercise 2.2."""

from twophase_labs.machine.bank import right, wrong

FLOPS, BYTES = "counts the FLOPs of a product", "counts the bytes of a product"

BY_MATRIX = """
def matmul_cost(rows, inner, columns, bytes_per_element):
    sizes = [(rows, inner), (inner, columns), (rows, columns)]
    return rows * columns * inner * 2, sum(a * b for a, b in sizes) * bytes_per_element
"""

# fmt: off
BANKS = {
    "2.2": (
        wrong("multiplications only", {1: "rows * inner * columns"}, by=FLOPS),
        wrong("the result's size", {1: "2 * rows * columns"}, by=FLOPS),
        wrong("the weights only", {2: "inner * columns"}, by=BYTES),
        wrong("the result is not written", {2: "rows * inner + inner * columns"}, by=BYTES),
        wrong("bytes of all products", {2: "rows * inner * columns"}, by=BYTES),
        right("matrix by matrix", BY_MATRIX),
        right("factored", {2: "inner * (rows + columns) + rows * columns"}),
    ),
}
