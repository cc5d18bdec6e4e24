"""The K/V tensors: layout, sizes, block copies, and what can't be."""

import os

import pytest
import torch

from twophase import memory
from twophase.cache import kv_cache as kv_cache_module
from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase.core.errors import ConfigError
from twophase.core.plan import BlockCopy

CPU = torch.device("cpu")


def spec(**changes) -> KVCacheSpec:
    sizes = {"num_layers": 2, "num_kv_heads": 3, "head_dim": 16, "block_size": 4, "dtype": torch.float32}
    return KVCacheSpec(**{**sizes, **changes})


@pytest.mark.parametrize("kv_format", ["none", "int8", "fp8_e4m3"])
def test_layout_and_size(kv_format):
    check_layout(kv_cache_module, kv_format)


def check_layout(module, kv_format) -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        cache_spec = module.KVCacheSpec(2, 3, 16, 4, dtype, kv_format)
        cache = module.KVCache(cache_spec, 5, CPU)
        stored = {"none": dtype, "int8": torch.int8, "fp8_e4m3": torch.uint8}[kv_format]
        data = [tensor for layer in cache.layers for tensor in (layer.k, layer.v)]
        scales = [tensor for layer in cache.layers for tensor in (layer.k_scale, layer.v_scale) if tensor is not None]
        assert len(data) == 2 * 2
        assert len(scales) == (0 if kv_format == "none" else 2 * 2)
        assert all(tensor.shape == (5, 3, 4, 16) and tensor.dtype == stored for tensor in data)
        assert all(tensor.shape == (5, 3, 4) and tensor.dtype == torch.float32 for tensor in scales)
        assert all(tensor.is_contiguous() and not tensor.any() for tensor in data + scales)
        num_bytes = sum(tensor.nbytes for tensor in data + scales)
        assert num_bytes == 5 * cache_spec.bytes_per_block == 20 * cache_spec.bytes_per_token
        for value, tensor in enumerate(data + scales, start=1):
            tensor.fill_(value)
        assert all((tensor == value).all() for value, tensor in enumerate(data + scales, start=1)), "memory is shared"


COPY_CASES = [[], [(0, 1)], [(0, 1), (0, 2), (4, 3)], [(3, 3)]]


@pytest.mark.parametrize("copies", COPY_CASES)
@pytest.mark.parametrize("kv_format", ["none", "int8"])
def test_copies_of_whole_blocks(copies, kv_format):
    check_copies(kv_cache_module, copies, kv_format)


def check_copies(module, copies, kv_format) -> None:
    cache = module.KVCache(spec(kv_format=kv_format), 5, CPU)
    tensors = [t for layer in cache.layers for t in (layer.k, layer.v, layer.k_scale, layer.v_scale) if t is not None]
    generator = torch.Generator().manual_seed(0)
    for tensor in tensors:
        tensor.copy_(torch.randint(0, 100, tensor.shape, generator=generator))
    expected = [tensor.clone() for tensor in tensors]
    cache.copy_blocks([BlockCopy(*copy) for copy in copies])
    for tensor, want in zip(tensors, expected, strict=True):
        for source, target in copies:
            want[target] = want[source].clone()
        assert torch.equal(tensor, want), f"after {copies}"


@pytest.mark.parametrize("copy", [(0, 5), (5, 0), (-1, 0), (0, -1)])
def test_a_copy_outside_the_pool_is_a_bug(copy):
    with pytest.raises(AssertionError):
        KVCache(spec(), 5, CPU).copy_blocks([BlockCopy(*copy)])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"head_dim": 6}, "multiple of 16 bytes.*24 bytes"),
        ({"head_dim": 20, "dtype": torch.float16}, "40 bytes.*kv_cache_dtype"),
        ({"head_dim": 8, "kv_format": "int8"}, "head_dim 8 in torch.int8 is 8 bytes"),
    ],
)
def test_impossible_specs_are_refused(changes, message):
    with pytest.raises(ConfigError, match=message):
        spec(**changes)


def test_memory_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"Could not allocate .* GiB on cpu.*num_kv_blocks"):
        KVCache(spec(), 2**45, CPU)


def test_blocks_fill_a_fraction_of_free_memory(monkeypatch):
    monkeypatch.setattr(memory, "free_memory_bytes", lambda device: 10 * 512 + 5)
    assert memory.num_blocks_that_fit(512, CPU, 1.0) == 10
    assert memory.num_blocks_that_fit(512, CPU, 0.5) == 5
    assert memory.num_blocks_that_fit(512, CPU, 0.19) == 1
    with pytest.raises(ConfigError, match=r"One block takes .* 9% of the 0.00 GiB free on cpu"):
        memory.num_blocks_that_fit(512, CPU, 0.09)
    for free_bytes, default_bytes in ((4 * 2**30, 2**30), (400 * 2**30, 2 * 2**30)):
        monkeypatch.setattr(memory, "free_memory_bytes", lambda device, free=free_bytes: free)
        assert memory.num_blocks_that_fit(512, CPU, None) == default_bytes // 512


@pytest.mark.gpu
def test_a_cuda_device_has_memory_and_takes_a_cache():
    device = torch.device("cuda")
    free_bytes = memory.free_memory_bytes(device)
    assert 0 < free_bytes <= torch.cuda.get_device_properties(device).total_memory
    cache = KVCache(spec(), 5, device)
    cache.layers[0].k[0] = 7
    cache.copy_blocks([BlockCopy(0, 4), BlockCopy(0, 2)])
    assert (cache.layers[0].k[[2, 4]] == 7).all()


def write_files(root, files: dict[str, str]):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


MEMINFO = {"proc/meminfo": "MemTotal:  9000 kB\nMemAvailable:  4000 kB\nHugePages_Total: 0\n"}


@pytest.mark.parametrize(
    ("files", "num_bytes"),
    [
        (MEMINFO, 4000 * 1024),
        # A container's limit, less what is used and can't be given back.
        (
            {
                **MEMINFO,
                "sys/fs/cgroup/memory.max": "1000000\n",
                "sys/fs/cgroup/memory.current": "700000\n",
                "sys/fs/cgroup/memory.stat": "anon 500000\ninactive_file 100000\n",
            },
            400_000,
        ),
        ({**MEMINFO, "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "7\n"}, 4000 * 1024),
        ({**MEMINFO, "sys/fs/cgroup/memory.max": "1000\n", "sys/fs/cgroup/memory.current": "1200\n"}, 0),
    ],
)
def test_free_host_memory_on_linux(tmp_path, files, num_bytes):
    assert memory.free_host_memory_bytes(write_files(tmp_path, files)) == num_bytes


def test_free_host_memory_elsewhere(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 100, "SC_PAGE_SIZE": 4096}.get)
    assert memory.free_host_memory_bytes(tmp_path) == 50 * 4096
