"""Reductions and scans, compiled; softmax, layer norm and attention of Triton's tutorials."""

import pytest
import torch

from tests.kernels.cpu.harness import run

INF, NAN = float("inf"), float("nan")
DTYPES = {"f32": torch.float32, "i32": torch.int32, "f64": torch.float64, "f16": torch.float16}


@pytest.mark.parametrize("kind", ["f32", "i32", "f64", "f16", "one row"])
def test_sum_max_min(kind):
    dtype, m = DTYPES.get(kind, torch.float32), 1 if kind == "one row" else 8
    x = torch.randint(-9, 10, (m, 64), generator=torch.Generator().manual_seed(0))
    x[:, 3] = 30
    x[0, 7] = -40
    x[-1] = -1 - x[-1].abs()  # without a positive number
    x = x.to(dtype)
    rows, columns, everything = (
        torch.zeros(3, m, dtype=dtype),
        torch.zeros(3, 64, dtype=dtype),
        torch.zeros(3, dtype=dtype),
    )
    run(f"reduce_all[{kind}]", x, rows, columns, everything)
    assert torch.equal(rows, torch.stack([x.double().sum(1).to(dtype), x.amax(1), x.amin(1)]))
    assert torch.equal(columns, torch.stack([x.double().sum(0).to(dtype), x.amax(0), x.amin(0)]))
    assert torch.equal(everything, torch.stack([x.double().sum().to(dtype), x.amax(), x.amin()]))


def test_sums_of_integers_wrap_around():
    x = torch.full((8, 64), 2**30, dtype=torch.int32)
    rows, columns, everything = (torch.zeros(3, n, dtype=torch.int32) for n in (8, 64, 1))
    run("reduce_all[i32]", x, rows, columns, everything)
    assert (rows[0] == 0).all()
    assert (columns[0] == 0).all()


def test_extremes_step_over_nan():
    """NaN only where there is nothing else; minus infinity stays."""
    x = torch.randn(8, 64)
    x[0, 5:] = NAN
    x[1] = NAN
    x[2] = -INF
    x[3], x[4] = INF, torch.where(torch.arange(64) % 2 == 0, NAN, -INF)
    x[:, 9] = NAN
    rows, columns, everything = torch.zeros(3, 8), torch.zeros(3, 64), torch.zeros(3)
    run("reduce_all[f32]", x, rows, columns, everything)
    for i, fill in ((1, -INF), (2, INF)):
        extreme = torch.amax if i == 1 else torch.amin
        for found, axis in ((rows[i], 1), (columns[i], 0), (everything[i], (0, 1))):
            expected = extreme(torch.where(x.isnan(), fill, x), axis)
            expected = torch.where(x.isnan().all(axis) if axis != (0, 1) else torch.tensor(False), NAN, expected)
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_extremes_that_keep_nan_and_products():
    x = torch.randint(1, 3, (4, 16)).float()
    x[1, 3] = NAN
    x[2, 15], x[3] = -INF, -x[3]
    rows, columns = torch.zeros(3, 4), torch.zeros(3, 16)
    run("nan_rules", x, rows, columns)
    for found, axis in ((rows, 1), (columns, 0)):
        expected = torch.stack([torch.amax(x, axis), torch.amin(x, axis), torch.prod(x, axis)])
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_other_reductions():
    x = torch.randint(-50, 50, (8, 16), dtype=torch.int32, generator=torch.Generator().manual_seed(3))
    x[0, 4] = x[0, 9] = 70
    x[5] = x[2]
    out = torch.zeros(5 * 8 + 3 * 16, dtype=torch.int32)
    run("other_reductions", x, out)

    def xor(rows):
        total = torch.zeros_like(rows[:, 0])
        for column in rows.T:
            total ^= column
        return total

    def first(values, extreme):
        return torch.tensor([row.index(extreme(row)) for row in values.tolist()], dtype=torch.int32)

    expected = [first(x, max), first(x, min), xor(x), x.amax(1), (x > 0).sum(1), x.amax(0), first(x.T, max), xor(x.T)]
    assert torch.equal(out, torch.cat([row.int() for row in expected]))


@pytest.mark.parametrize("kind", ["f32", "i32"])
def test_scans(kind):
    x = torch.randint(-2, 3, (4, 16), generator=torch.Generator().manual_seed(0)).to(DTYPES[kind])
    out = torch.zeros(4, 4, 16, dtype=x.dtype)
    run(f"scans[{kind}]", x, out)
    assert torch.equal(
        out, torch.stack([x.cumsum(1), x.cumsum(0), x.flip(1).cumsum(1).flip(1), x.cumprod(1)]).to(x.dtype)
    )


@pytest.mark.parametrize("columns", [64, 37, 1])
@pytest.mark.parametrize("checked", [False, True])
def test_softmax(columns, checked):
    x = torch.randn(5, columns)
    out = torch.zeros_like(x)
    assert run("softmax", x, out, columns, grid=(5,), checked=checked) is None
    torch.testing.assert_close(out, x.softmax(1), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("n", [70, 32, 5])
def test_layer_norm(n):
    x, w, b = torch.randn(3, n).half(), torch.randn(n), torch.randn(n)
    out, mean = torch.zeros_like(x), torch.zeros(3)
    run("layer_norm", x, w, b, out, mean, n, 1e-5, grid=(3,))
    torch.testing.assert_close(mean, x.float().mean(1), rtol=1e-5, atol=1e-6)
    expected = torch.nn.functional.layer_norm(x.float(), (n,), w, b).half()
    torch.testing.assert_close(out, expected, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize("n", [16, 50, 1])
@pytest.mark.parametrize("checked", [False, True])
def test_attention(n, checked):
    q, k, v = (torch.randn(n, 16).bfloat16() for _ in range(3))
    out = torch.zeros_like(q)
    assert run("flash", q, k, v, out, n, 0.25, grid=((n + 15) // 16,), checked=checked) is None
    scores = q.float() @ k.float().T * 0.25 + torch.full((n, n), -INF).triu(1)
    torch.testing.assert_close(out.float(), scores.softmax(1) @ v.float(), rtol=2e-2, atol=2e-2)


def test_two_runs_are_equal_bit_by_bit():
    q, k, v = (torch.randn(50, 16).bfloat16() for _ in range(3))
    first, second = torch.zeros_like(q), torch.zeros_like(q)
    run("flash", q, k, v, first, 50, 0.25, grid=(4,))
    run("flash", q, k, v, second, 50, 0.25, grid=(4,), programs_per_call=1)
    assert torch.equal(first, second)


def test_totals_of_fp16_are_rounded():
    """2048.5 is 2048 in fp16, to which the kernel adds 1, and that is 2048 again."""
    x = torch.zeros(16, 16, dtype=torch.float16)
    x[0, :], x[1, :], x[:, 0], x[:, 1] = 2048, 0.5, 2048, 0.5
    rows, columns = torch.zeros(16, dtype=torch.float16), torch.zeros(16, dtype=torch.float16)
    run("half_sums", x, rows, columns)
    assert rows[2:].tolist() == columns[2:].tolist() == [2048.0] * 14
