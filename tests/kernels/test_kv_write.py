"""kv_write against a loop over tokens, with everything around the written slots checked too."""

import pytest
import torch

from tests.kernels.cases import moved
from tests.kernels.elementwise import DEVICE_DTYPES, HERE, GuardedCache, awkward_slots, new_kv
from twophase_kernels.kv_write import head_tile, kv_write, kv_write_reference

pytest.importorskip("triton", reason="not run here: no triton")

# (H_kv, D, page, T): odd head counts, padded head sizes, one head, more heads than a tile holds.
SHAPES = [(3, 64, 16, 7), (1, 80, 32, 5), (5, 96, 16, 6), (8, 128, 64, 6), (2, 256, 128, 5), (40, 128, 16, 5)]
KV_FORMATS = ["none", "int8", "fp8_e4m3"]


def check_kv_write(function, shape=SHAPES[0], dtype=torch.float32, kv_format="none", device=HERE):
    num_kv_heads, head_dim, page, num_tokens = shape
    _, k, v = new_kv(2 * num_kv_heads, num_kv_heads, head_dim, num_tokens, dtype, device)
    k_guard, v_guard = (GuardedCache((3, num_kv_heads, page, head_dim), dtype, kv_format, device) for _ in "kv")
    slots = awkward_slots(num_tokens, 3 * page, page)
    for token, slot in enumerate(slots):
        if slot >= 0:
            k_guard.expect(slot, k[token].double().cpu())
            v_guard.expect(slot, v[token].double().cpu())
    slot_mapping = torch.tensor(slots, device=device)
    function(k, v, k_guard.cache, v_guard.cache, slot_mapping, k_guard.scale, v_guard.scale)
    k_guard.check("k", fp32_error=0.0)
    v_guard.check("v", fp32_error=0.0)


@pytest.mark.parametrize("kv_format", KV_FORMATS)
@pytest.mark.parametrize(("device", "dtype"), DEVICE_DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_kernel(shape, device, dtype, kv_format):
    check_kv_write(kv_write, shape, dtype, kv_format, device)


@pytest.mark.parametrize("kv_format", KV_FORMATS)
def test_reference(kv_format):
    check_kv_write(kv_write_reference, SHAPES[1], torch.float16, kv_format, "cpu")


@pytest.mark.parametrize("kv_format", ["int8", "fp8_e4m3"])
def test_codes_equal_the_reference(kv_format):
    """Bit for bit: which of two equally near codes is taken does not depend on who writes."""
    results = []
    for function in (kv_write, kv_write_reference):
        guards = [GuardedCache((3, 3, 16, 64), torch.float32, kv_format, HERE) for _ in "kv"]
        _, k, v = new_kv(6, 3, 64, 7, torch.float32, HERE)
        slots = torch.tensor(awkward_slots(7, 48, 16), device=HERE)
        function(k, v, *[g.cache for g in guards], slots, *[g.scale for g in guards])
        results.append([tensor for g in guards for tensor in (g.buffer, g.scale_buffer)])
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_cache_of_another_float_dtype():
    """A float32 model with a float16 cache."""
    _, k, v = new_kv(2, 2, 64, 4, torch.float32, HERE)
    k_cache, v_cache = torch.zeros(2, 1, 2, 16, 64, dtype=torch.float16, device=HERE)
    kv_write(k, v, k_cache, v_cache, torch.arange(4, device=HERE))
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
    kv_write(x, x, cache, cache, last_slot, scale, scale)
    assert torch.equal(cache[-1, 0, -1].cpu(), torch.round(x.cpu()[0, 0] * (127 / 64)).to(torch.int8))
    assert not cache[-1, 0, :-1].any()


def test_no_tokens():
    k_cache, v_cache = torch.zeros(2, 1, 2, 16, 64, device=HERE)
    empty = torch.empty(0, 2, 64, device=HERE)
    kv_write(empty, empty, k_cache, v_cache, torch.empty(0, dtype=torch.int64, device=HERE))
    assert not k_cache.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": torch.zeros(4, 2, 32)}, r"k and v must be \[T, H_kv, D\] of one shape"),
        ({"k": torch.zeros(4, 2, 64, dtype=torch.float64)}, "one of float32, float16, bfloat16"),
        ({"k_cache": torch.zeros(3, 2, 16, 64, dtype=torch.float16)}, "must agree in dtype and shape"),
        ({"k_cache": torch.zeros(3, 4, 16, 64), "v_cache": torch.zeros(3, 4, 16, 64)}, r"k's H_kv and D \(2, 64\)"),
        ({"slot_mapping": torch.zeros(4, dtype=torch.int32)}, r"slot_mapping must be int64 \[4\]"),
        ({"slot_mapping": torch.zeros(5, dtype=torch.int64)}, r"slot_mapping must be int64 \[4\]"),
        ({"slot_mapping": torch.zeros(8, dtype=torch.int64)[::2]}, "contiguous"),
        ({"k": torch.zeros(4, 64, 2).mT}, "last dimension of k must be contiguous"),
        ({"k_scale": torch.zeros(3, 2, 16)}, "k_scale is for int8"),
        ({"v_cache": torch.zeros(3, 16, 2, 64).transpose(1, 2)}, "same strides"),
        ({"v_cache": torch.zeros(3, 2, 16, 64, device="meta")}, "v_cache must be where k is"),
        ({name: torch.zeros(3, 2, 16, 64, dtype=torch.int8) for name in ("k_cache", "v_cache")}, "needs k_scale"),
        ({name: torch.zeros(3, 2, 16, 64, dtype=torch.int32) for name in ("k_cache", "v_cache")}, r"or uint8 \(e4m3\)"),
    ],
)
def test_wrong_arguments(change, message):
    arguments = {
        "k": torch.zeros(4, 2, 64),
        "v": torch.zeros(4, 2, 64),
        "k_cache": torch.zeros(3, 2, 16, 64),
        "v_cache": torch.zeros(3, 2, 16, 64),
        "slot_mapping": torch.arange(4),
    }
    arguments = {
        name: tensor if tensor.is_meta else moved(tensor, HERE) for name, tensor in (arguments | change).items()
    }
    with pytest.raises(ValueError, match=message):
        kv_write(**arguments)


def test_head_tile():
    assert head_tile(8, 128) == (8, 128, 2)
    assert head_tile(3, 80) == (4, 128, 1)
    assert head_tile(40, 128) == (32, 128, 8), "a tile of at most 4096 elements"
