"""rope_kv_write against complex multiplication in fp64, token by token."""

import pytest
import torch

from tests.kernels.cases import DTYPES, HERE, moved
from tests.kernels.covering import selected
from tests.kernels.elementwise import GuardedCache, assert_rounded_once, awkward_slots, new_kv
from tests.kernels.planting import noticing
from twophase_kernels.rope_kv_write import rope_kv_write, rope_kv_write_reference

pytest.importorskip("triton", reason="not run here: no triton")

# (H, H_kv, D, page, T)
SHAPES = ((9, 3, 64, 16, 7), (5, 1, 80, 32, 5), (4, 4, 96, 16, 5), (16, 1, 256, 128, 5), (80, 40, 64, 16, 5))
KV_FORMATS = ("none", "int8", "fp8_e4m3")
NUM_POSITIONS = 2048


def angles(head_dim):
    """Angle of each position and pair, fp64 [P, D/2]: position * 10000^(-2i/D) (arXiv:2104.09864, section 3.2.2)."""
    frequency = 10000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    return torch.arange(NUM_POSITIONS, dtype=torch.float64)[:, None] * frequency


def rotate(x, angle):
    """x fp64 [heads, D]: the pair (x[i], x[i + D/2]) is a complex number, turned by angle[i]."""
    low, high = x.chunk(2, dim=-1)
    turned = torch.complex(low, high) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat([turned.real, turned.imag], dim=-1)


def check_rope_kv_write(function, shape=SHAPES[0], dtype=torch.float32, kv_format="none", device=HERE):
    num_heads, num_kv_heads, head_dim, page, num_tokens = shape
    q, k, v = new_kv(num_heads, num_kv_heads, head_dim, num_tokens, dtype, device)
    q_before, all_before = q.double().cpu(), q._base.clone()
    k_guard, v_guard = (GuardedCache((3, num_kv_heads, page, head_dim), dtype, kv_format, device) for _ in "kv")
    slots, angle = awkward_slots(num_tokens, 3 * page, page), angles(head_dim)
    positions = torch.randint(1, NUM_POSITIONS, (num_tokens,), generator=torch.Generator().manual_seed(3))
    positions[0], positions[-1] = 0, NUM_POSITIONS - 1
    written = {slot: token for token, slot in enumerate(slots) if slot >= 0}
    # A row before the tables belongs to nobody.
    tables = [torch.cat([table[:1] + 1, table]).float().to(device)[1:] for table in (angle.cos(), angle.sin())]
    got = function(
        q, k, v, *tables, positions.to(device), torch.tensor(slots, device=device),
        k_guard.cache, v_guard.cache, k_guard.scale, v_guard.scale,
    )  # fmt: skip
    assert got.data_ptr() == q.data_ptr(), "q is rotated in place"
    want = torch.stack([rotate(row, angle[p]) for row, p in zip(q_before, positions, strict=True)])
    # Two products and a sum in fp32, of cos and sin rounded to fp32: a few times 2^-24 of the larger operand.
    assert_rounded_once(got, want, 4 * 2.0**-24 * q_before.abs().amax((1, 2))[:, None, None], "q")
    rotated = {slot: rotate(k[token].double().cpu(), angle[positions[token]]) for slot, token in written.items()}
    k_guard.check(rotated, "k", fp32_error=4 * 2.0**-24 * k.double().abs().max().item())
    v_guard.check({slot: v[token].double().cpu() for slot, token in written.items()}, "v", fp32_error=0.0)
    q.copy_(q_before)
    assert torch.equal(q._base, all_before), "something besides q was overwritten"


@pytest.mark.parametrize(("shape", "dtype", "kv_format"), selected(SHAPES, DTYPES, KV_FORMATS), ids=str)
def test_kernel(shape, dtype, kv_format):
    check_rope_kv_write(rope_kv_write, shape, dtype, kv_format)


@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_reference(kv_format):
    # The reference overwrites nothing but q, like the kernel.
    check_rope_kv_write(rope_kv_write_reference, SHAPES[1], torch.float16, kv_format, "cpu")


def unrotated(num_tokens, head_dim):
    """cos, sin and positions that leave q and k as they are."""
    tables = torch.ones(1, head_dim // 2, device=HERE), torch.zeros(1, head_dim // 2, device=HERE)
    return *tables, torch.zeros(num_tokens, dtype=torch.int64, device=HERE)


def test_cache_of_another_float_dtype():
    """A float32 model with a float16 cache."""
    q, k, v = new_kv(2, 2, 64, 4, torch.float32, HERE)
    k_cache, v_cache = torch.zeros(2, 1, 2, 16, 64, dtype=torch.float16, device=HERE)
    rope_kv_write(q, k, v, *unrotated(4, 64), torch.arange(4, device=HERE), k_cache, v_cache)
    assert torch.equal(k_cache[0, :, :4], k.transpose(0, 1).half())
    assert torch.equal(v_cache[0, :, :4], v.transpose(0, 1).half())


def test_cache_of_more_than_2_to_31_elements():
    """Offsets are 64 bits wide: the last slot of a cache of 2 GiB. (Memory that is never touched costs nothing.)"""
    num_blocks = 2**31 // (16 * 64) + 1
    cache, scale = (torch.empty(num_blocks, 1, 16, 64, dtype=torch.int8), torch.empty(num_blocks, 1, 16))
    cache[-1] = 0
    x = torch.arange(1.0, 65.0)[None, None]
    last_slot = torch.tensor([num_blocks * 16 - 1], device=HERE)
    cache, scale, x = cache.to(HERE), scale.to(HERE), x.to(HERE)
    rope_kv_write(x.clone(), x, x, *unrotated(1, 64), last_slot, cache, cache, scale, scale)
    assert torch.equal(cache[-1, 0, -1].cpu(), torch.round(x.cpu()[0, 0] * (127 / 64)).to(torch.int8))
    assert not cache[-1, 0, :-1].any()


def test_no_tokens():
    empty, cache = torch.empty(0, 2, 64, device=HERE), torch.zeros(1, 2, 16, 64, device=HERE)
    index = torch.empty(0, dtype=torch.int64, device=HERE)
    assert rope_kv_write(empty, empty, empty, *unrotated(0, 64), index, cache, cache) is empty


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"q": torch.zeros(4, 64, 6).mT}, r"q must be .* \[T, H, D\], contiguous from D on"),
        ({"k": torch.zeros(4, 2, 64, dtype=torch.float64)}, "k must be float32"),
        ({"v": torch.zeros(4, 2, 32)}, r"v must be float32 \[T=4, H_kv=2, D=64\]"),
        ({name: torch.zeros(99, 64) for name in ("cos", "sin")}, "D/2 columns, got D=64 and 64 columns"),
        ({"sin": torch.zeros(98, 32)}, r"sin must be contiguous float32 \[positions=99, D/2=32\]"),
        ({"positions": torch.zeros(4, dtype=torch.int32)}, r"positions must be contiguous int64 \[T=4\]"),
        ({"slot_mapping": torch.zeros(3, dtype=torch.int64)}, r"slot_mapping must be contiguous int64 \[T=4\]"),
        ({"k_cache": torch.zeros(3, 2, 16, 64, dtype=torch.int32)}, "k_cache must be .* or int8 or uint8"),
        ({"v_cache": torch.zeros(3, 16, 2, 64).transpose(1, 2)}, "same strides"),
        ({"v_cache": torch.zeros(3, 2, 16, 64, device="meta")}, "v_cache must be where q is"),
        ({"k_scale": torch.zeros(3, 2, 16)}, "others take none; got torch.float32, k_scale given, v_scale missing"),
    ],
)
def test_wrong_arguments(change, message):
    shapes = {"q": (4, 6, 64), "k": (4, 2, 64), "v": (4, 2, 64), "cos": (99, 32), "sin": (99, 32)}
    shapes |= {"k_cache": (3, 2, 16, 64), "v_cache": (3, 2, 16, 64)}
    arguments = {name: torch.zeros(shape) for name, shape in shapes.items()}
    arguments |= {"positions": torch.arange(4), "slot_mapping": torch.arange(4)}
    arguments = {name: x if x.is_meta else moved(x, HERE) for name, x in (arguments | change).items()}
    with pytest.raises(ValueError, match=message):
        rope_kv_write(**arguments)


def check(module):
    check_rope_kv_write(module.rope_kv_write, (9, 3, 80, 16, 7), torch.float16)
    check_rope_kv_write(module.rope_kv_write, (9, 3, 80, 16, 7), torch.float32, "int8")
    check_rope_kv_write(module.rope_kv_write, (80, 40, 64, 16, 5), torch.float32, "none")


MUTANTS = {("rope_kv_write",): [
    ("slot 0 skipped", "if slot >= 0:", "if slot > 0:", check),
    ("scale of the lower half", "tl.maximum(absmax_bits(low), absmax_bits(high))", "absmax_bits(low)", check),
    ("padding heads of q", "(offs_q < H)[:, None]", "(offs_q < BLOCK_Q)[:, None]", check),
    ("only the first q group", "NUM_Q_GROUPS: tl.constexpr = (H + BLOCK_Q - 1) // BLOCK_Q", "NUM_Q_GROUPS: tl.constexpr = 1", check),
    ("q strides for k", "k_ptr + token * k_token_stride", "k_ptr + token * q_head_stride", check),
    ("padding lanes written", "mask_d = offs_d < HALF", "mask_d = offs_d < BLOCK_D", check),
]}  # fmt: skip
test_mutants_are_killed = noticing(MUTANTS)
