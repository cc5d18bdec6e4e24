"""Layers of different kinds in the cache: which layers share blocks, and blocks of each group. Run on mutants as well."""

import torch

from tests.cache.shadow import keys_of
from tests.cache.test_invariants import computed
from twophase.cache.kv_cache import KVCache, KVCacheSpec
from twophase_features.windows import layer_groups as groups_module
from twophase_features.windows.sliding_window import FREED, SlidingWindow

SEES_ALL = (True, False, False)


def gemma(num_layers: int) -> list[bool]:
    return [layer % 6 == 5 for layer in range(num_layers)]


def check_groups(module) -> None:
    """Sizes by hand, and places by the definition."""
    for sees_all, size, num_groups in [
        (gemma(26), 4, 1 + 6),  # Gemma 3 1B: 4 and 22 layers
        (gemma(34), 6, 1 + 5),  # 4B: 5 and 29
        (gemma(48), 10, 1 + 4),  # 12B: 8 and 40
        ([False, True] * 12, 12, 2),  # gpt-oss 20B
        (
            [True] * 13 + [False] * 12,
            13,
            2,
        ),
        ([True] * 28 + [False] * 4, 7, 4 + 1),
        ([True, False, False], 1, 3),
        ([True] * 7 + [False], 1, 8),
    ]:
        groups = module.group_layers(sees_all)
        assert (groups.size, len(groups.sees_all)) == (size, num_groups), sees_all
        assert list(groups.sees_all) == sorted(groups.sees_all, reverse=True), "those that see all keys go first"
        assert len(set(groups.layout)) == len(groups.layout) == len(sees_all), "each layer has a place of its own"
        for (group, place), is_full in zip(groups.layout, sees_all, strict=True):
            assert place in range(size)
            assert groups.sees_all[group] == is_full
        assert size * num_groups <= len(sees_all) * 9 / 8


def test_which_layers_share_blocks():
    check_groups(groups_module)


def check_pages(variant) -> None:
    """Layers of one group have pages of their own; those of one place in two groups have the same ones."""
    groups = groups_module.group_layers([False, True, False, True, False, False])
    spec = KVCacheSpec(groups.size, 2, 8, 4, torch.float32)
    cache = variant.KVCache(spec, 5, torch.device("cpu"), layout=groups.layout)
    assert (groups.size, cache.num_groups, len(cache.layers)) == (2, 3, 6)
    assert [layer.group for layer in cache.layers] == [1, 0, 1, 0, 2, 2]
    starts = [layer.k.data_ptr() for layer in cache.layers]
    assert starts[0] == starts[1] == starts[4]
    assert starts[2] == starts[3] == starts[5] != starts[0]
    assert 5 * spec.bytes_per_block == sum(tensor.nbytes for tensor in cache.storage)


def test_pages_of_groups():
    from twophase.cache import kv_cache

    check_pages(kv_cache)
    assert KVCache(KVCacheSpec(3, 2, 8, 4, torch.float32), 5, torch.device("cpu")).num_groups == 1


def test_only_groups_that_see_a_window_free(new_cache):
    cache = new_cache(40, 4, window=SlidingWindow(6), sees_all=SEES_ALL)
    table = computed(cache, list(range(17)))
    assert [block_id == FREED for block_id in table.block_ids[::3]] == [False] * 5
    for group in (1, 2):
        assert [block_id == FREED for block_id in table.block_ids[group::3]] == [True] * 3 + [False] * 2
    assert cache.num_in_use_by_kind() == {"full": 5, "sliding": 4}
    cache.fork(table)
    assert cache.num_in_use_by_kind() == {"full": 5, "sliding": 4}, "shared blocks count once"


def test_a_hit_is_there_in_every_group(new_cache):
    token_ids = list(range(20))
    # With which blocks (group, index) forgotten how many tokens are hit: all keys in group 0, the last four in group 1.
    for lacking, num_hit in ((), 20), (((1, 0), (1, 7)), 20), (((0, 0),), 0), (((0, 9),), 18), (((1, 9),), 18):
        cache = new_cache(40, 2, window=SlidingWindow(4), sees_all=(True, False))
        cache.close(computed(cache, token_ids))
        by_index = {}
        prefixes = cache._prefixes
        for block_id, prefix in list(prefixes._of_block.items()):
            by_index[prefix.holders[block_id], memoryview(prefix.token_bytes).cast("q")[0] // 2] = block_id
        for each in lacking:
            prefixes.forget(by_index[each])
        hit, _ = prefixes.lookup(keys_of(prefixes, token_ids), "")
        assert len(hit) == num_hit, f"2 blocks for 2 tokens each, without {lacking}"
        unseen = max(0, num_hit - 3) // 2
        assert [index for index, block_id in enumerate(hit) if block_id == FREED] == [2 * i + 1 for i in range(unseen)]
