"""Planted bugs in the cache: the oracle or a named test must notice each."""

import inspect
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.cache import test_groups, test_invariants, test_kv_cache, test_manager, test_tier, test_window
from tests.cache.histories import random_history
from tests.cache.plain import plain_manager_class
from tests.mutation import KillTable, Mutant

POOL, PREFIX, MANAGER, TENSORS = (
    f"twophase.cache.{name}" for name in ("block_pool", "prefix_cache", "manager", "kv_cache")
)
TIER = "twophase.core.plan"
TRANSFERS = "twophase_features.offloading.transfers"
WINDOW, GROUPS, CACHE, HITS = (
    f"twophase_features.windows.{name}"
    for name in ("sliding_window", "layer_groups", "windowed_cache", "windowed_prefixes")
)

# name, module, old, new
BOOKKEEPING_MUTANTS = [
    # Sharing
    ("refcount forgotten on hit", POOL, "        self.ref_counts[block_id] += 1\n", ""),
    ("hit takes no reference", MANAGER, "            self._pool.acquire(block_id)\n        if self.tier", "            pass\n        if self.tier"),
    ("hit block stays on the free list", POOL, "            del self._cached[block_id]\n", ""),
    ("block freed while still shared", POOL, "if self.ref_counts[block_id] > 0:", "if False:"),
    ("blank blocks count as evicted", POOL, "max(0, num_blocks - self.num_blank)", "num_blocks"),
    ("evictions uncounted", MANAGER, "            num_evicted=pool.num_evicted,\n", ""),
    ("release does not count", POOL, "        self.ref_counts[block_id] -= 1\n", ""),
    ("allocated block has no owner", POOL, "self.ref_counts[block_id] = 1", "self.ref_counts[block_id] = 0"),
    ("fork without refcount", MANAGER, "            self._pool.acquire(block_id)\n        fork =", "            pass\n        fork ="),
    ("fork shares the list", MANAGER, ", block_ids=list(table.block_ids)", ""),
    ("fork loses the salt", MANAGER, "replace(table, block_ids", 'replace(table, salt="", block_ids'),
    # Refusals
    ("double free unnoticed", POOL, "if self.ref_counts[block_id] == 0:\n            raise", "if False:\n            raise"),
    ("foreign block unnoticed", POOL, "if not 0 <= block_id < self.num_blocks:", "if False:"),
    ("blank block shared", POOL, "if block_id not in self._cached:", "if False:"),
    ("second close unnoticed", MANAGER, "        self._require_open(table)\n        self._tables.remove(table)", "        self._tables.discard(table)"),
    ("foreign table grows", MANAGER, "            and table in self._tables\n", ""),
    ("reset while in use", MANAGER, "if any(table.block_ids for table in self._tables):", "if False:"),
    ("shrinking unnoticed", MANAGER, "if num_tokens < table.num_tokens:", "if False:"),
    ("publish beyond the slots", MANAGER, "if num_computed > min(table.num_tokens, len(token_ids)):", "if False:"),
    # Failure atomicity
    ("OutOfBlocks leaves half an allocation", POOL, "if num_blocks > self.num_free:", "if num_blocks > self.num_free and self.allocate(self.num_free):"),
    ("OutOfBlocks unnoticed", POOL, "if num_blocks > self.num_free:", "if False:"),
    ("copy released before the allocation", MANAGER, "        new_ids = self._take(num_logical * self.num_groups)", "        _ = self._must_copy_tail(table) and self._pool.release(table.block_ids[-1], False)\n        new_ids = self._take(num_logical * self.num_groups)"),
    ("tokens counted before the allocation", MANAGER, "        new_ids = self._take(num_logical * self.num_groups)", "        table.num_tokens = num_tokens\n        new_ids = self._take(num_logical * self.num_groups)"),
    # Order of eviction
    ("free order reversed", MANAGER, "for block_id in reversed(table.held_blocks):", "for block_id in table.held_blocks:"),
    ("most recent evicted first", POOL, "popitem(last=False)", "popitem(last=True)"),
    ("blank block freed as cached", POOL, "        if is_cached:\n", "        if True:\n"),
    # Hits
    ("full hit allowed", MANAGER, "salt, (len(token_ids) - 1) //", "salt, len(token_ids) //"),
    ("hit not rounded down", MANAGER, "num_cached = len(block_ids) // self.num_groups * self.block_size", "num_cached = len(block_ids) and len(block_ids) // self.num_groups * self.block_size + 1"),
    ("hash without tokens", PREFIX, "blake2b(parent_digest + token_bytes", "blake2b(parent_digest"),
    ("salt not hashed", PREFIX, "blake2b(salt.encode()", 'blake2b(b""'),
    ("salt ignored", PREFIX, "self.parent is parent and self.salt == salt", "self.parent is parent"),
    ("token verification skipped", PREFIX, "self.token_bytes == token_bytes and ", ""),
    ("parent verification skipped", PREFIX, "self.parent is parent and ", ""),
    ("hit not verified at all", PREFIX, "if found is None or not found.is_prefix(parent, salt, token_bytes):", "if found is None:"),
    ("colliding block registered", PREFIX, "elif not prefix.is_prefix(parent, salt, token_bytes):", "elif False:"),
    ("publishing goes on after a collision", MANAGER, "                table.publish_at = NEVER\n                return\n", "                table.publish_at += self.block_size\n                continue\n"),
    ("lookup stops one block early", PREFIX, "for digest, token_bytes in keys:", "for digest, token_bytes in keys[:-1]:"),
    # What is findable
    ("stale block kept after eviction", MANAGER, "            self._prefixes.forget(block_id)\n", "            pass\n"),
    ("twin forgotten", PREFIX, "            del prefix.holders[block_id]\n", "            prefix.holders.clear()\n"),
    ("reset keeps the contents", PREFIX, "        self._of_block.clear()", "        pass"),
    ("reset keeps the free order", MANAGER, "        self._pool.blank_all()\n", ""),
    ("publish before written", MANAGER, "while table.publish_at <= num_computed:", "while table.publish_at <= table.num_tokens:"),
    ("partial block published", MANAGER, "while table.publish_at <= num_computed:", "while table.publish_at <= num_computed + 1:"),
    ("every second block published", MANAGER, "table.publish_at = end + self.block_size", "table.publish_at = end + 2 * self.block_size"),
    ("publish waits a token too long", MANAGER, "if num_computed < table.publish_at:", "if num_computed <= table.publish_at:"),
    ("neighbour block published", MANAGER, "self._holders(table, start // self.block_size)", "self._holders(table, max(0, start // self.block_size - 1))"),
    # Copy on write
    ("copy on write skipped", MANAGER, "return table.num_tokens % self.block_size != 0 and", "return False and"),
    ("copy on write skipped when the slot fits", MANAGER, "            and self._pool.ref_counts[table.block_ids[-1]] == 1\n", ""),
    ("full block copied too", MANAGER, "return table.num_tokens % self.block_size != 0 and", "return bool(table.block_ids) and"),
    ("copied backwards", MANAGER, "map(BlockCopy, shared_ids, new_ids)", "map(BlockCopy, new_ids, shared_ids)"),
    ("copied block keeps its reference", MANAGER, "                self._pool.release(shared_id, is_cached=False)", "                pass"),
    ("table keeps the shared block", MANAGER, "            del table.block_ids[-self.num_groups :]\n", ""),
    # Windows
    ("freed a block too early", WINDOW, "(num_tokens + 1 - self.window) // block_size", "(num_tokens + 2 - self.window) // block_size"),
    ("sinks freed", WINDOW, "num_sink_blocks = -(-self.num_sinks // block_size)", "num_sink_blocks = self.num_sinks // block_size"),
    ("never freed", CACHE, "        if end <= table.first_kept:\n            return\n        self._require", "        if True:\n            return\n        self._require"),
    ("freed block keeps its place in the table", CACHE, "block_id, table.block_ids[index] = table.block_ids[index], FREED", "block_id = table.block_ids[index]"),
    ("freed block leaks", CACHE, "            self._pool.release(block_id, is_cached=block_id in self._prefixes)\n", ""),
    ("freed twice", CACHE, "        table.first_kept = end\n\n    def fork", "\n    def fork"),
    ("freed when grown, not when computed", CACHE, "end = self.window.freed_blocks(num_computed, self", "end = self.window.freed_blocks(table.num_tokens, self"),
    ("a hit frees again", CACHE, "self.window.freed_blocks(table.num_cached_tokens, self.block_size).stop\n        return table", "self.window.freed_blocks(0, self.block_size).stop\n        return table"),
    ("a hit takes all", HITS, "FREED if place in unseen_by[group] else _newest", "_newest"),
    ("a hit needs no sinks", HITS, "                is_usable &= num_leading[group] >= min(unseen.start, len(chain))\n", ""),
    ("a hit needs no window", HITS, "                is_usable &= num_trailing[group] >= len(chain) - unseen.stop\n", ""),
    ("a gap ends the lookup", HITS, "            chain.append(found)\n", "            chain.append(found)\n            if not found.holders:\n                break\n"),
    ("shared blocks are expected to come back", CACHE, "ref_counts[block_id] == 1 for", "ref_counts[block_id] > 0 for"),
    ("the copy of a shared block is forgotten", CACHE, "self.num_groups - self._must_copy_tail(table)\n        return max", "self.num_groups\n        return max"),
    # The most that a request holds
    ("a window bounds nothing", CACHE, "if -(-num_tokens // self.block_size) > most:", "if False:"),
    ("all groups see a window", CACHE, "self.sees_all.count(True) * whole", "self.sees_all.count(True) * in_window"),
    ("sinks are not shared", CACHE, "num_sinks + n * (most - num_sinks)", "n * most"),
    # Reservations
    ("what is reserved counts as free", CACHE, "return self._pool.num_free - sum(sum(self._reserved(table)) for table in self._filling)", "return self._pool.num_free"),
    ("nothing is reserved", CACHE, "        self._filling[table] = num_tokens\n", ""),
    ("a closed table's reservation stays", CACHE, "        super().close(table)\n        self._filling.pop(table, None)\n", "        super().close(table)\n"),
    ("a reservation is of no use", CACHE, "self._require_free(_beyond(self._reserved(table), self._num_logical_blocks(table, num_tokens)))", "self._require_free(self._num_logical_blocks(table, num_tokens) * self.num_groups)"),
    ("a reservation beyond what is free", CACHE, "        self._require_free(self.num_blocks_needed(table, num_tokens))\n", ""),
    ("a fork keeps the reservation", CACHE, "        self._filling.pop(table, None)\n        return super().fork", "        return super().fork"),
    ("loaded without room", TRANSFERS, "cache.room(table, start + table.num_offered_tokens, 0)", "cache.room(table, start + table.num_offered_tokens, cache.num_free_blocks)"),
    # The KV tier
    ("offloaded too late", MANAGER, "        block_ids = self._pool.allocate(num_blocks)\n", "        block_ids = self._pool.allocate(num_blocks)\n        for block_id in block_ids:\n            self._prefixes.forget(block_id)\n"),
    ("offloaded under another key", TRANSFERS, "list(keys.values()), list(keys))", "list(keys.values()), list(keys)[::-1])"),
    ("loaded into the blocks of the hit", TRANSFERS, "block_ids, keys = table.block_ids[first:behind], ", "block_ids, keys = table.block_ids[: behind - first], "),
    ("all that was offered counts as loaded", TRANSFERS, "table.num_cached_tokens += num_places * cache.block_size", "table.num_cached_tokens = end"),
    ("groups share a key", TIER, "if group else self", "if False else self"),
    ("a block of one group alone counts as loaded", TRANSFERS, "or_nothing(cache.tier.load, keys, block_ids) // cache.num_groups if", "-(-or_nothing(cache.tier.load, keys, block_ids) // cache.num_groups) if"),
    # Giving slots back
    ("cut takes the partial block too", MANAGER, "num_kept = -(-num_tokens // self.block_size) *", "num_kept = num_tokens // self.block_size *"),
    ("cut of what others read", MANAGER, "self._pool.ref_counts[block_id] > 1 or block_id in self._prefixes:", "block_id in self._prefixes:"),
    ("cut of what was published", MANAGER, "self._pool.ref_counts[block_id] > 1 or block_id in self._prefixes:", "self._pool.ref_counts[block_id] > 1:"),
    ("cut overlooks the block it goes through", MANAGER, "table.block_ids[num_tokens // self.block_size * self.num_groups :]:", "table.block_ids[-(-num_tokens // self.block_size) * self.num_groups :]:"),
    ("cut blocks stay findable", MANAGER, "        for block_id in reversed(table.block_ids[num_kept:]):\n            self._pool.release(block_id, is_cached=False)", "        for block_id in reversed(table.block_ids[num_kept:]):\n            self._pool.release(block_id, is_cached=True)"),
    ("cut beyond the end", MANAGER, "if not 0 <= num_tokens <= table.num_tokens:", "if num_tokens < 0:"),
    ("cut in the step's own list", MANAGER, "        table.block_ids, table.num_tokens = table.block_ids[:num_kept], num_tokens", "        del table.block_ids[num_kept:]\n        table.num_tokens = num_tokens"),
    # Statistics
    ("empty slots of one block", MANAGER, "sum(empty_in.values())", "max(empty_in.values(), default=0)"),
    ("retried request counted again", MANAGER, "            table.num_uncounted_tokens = 0\n", ""),
    # Groups of layers
    ("layers that see all keys free too", CACHE, "groups = [group for group, sees_all in enumerate(self.sees_all) if not sees_all]", "groups = list(range(self.num_groups))"),
    ("only the first sliding group frees", CACHE, "for group, sees_all in enumerate(self.sees_all) if not sees_all]\n        return [", "for group, sees_all in enumerate(self.sees_all) if not sees_all][:1]\n        return ["),
    ("freed in the neighbour's place", CACHE, "index * self.num_groups + group for index", "(index + (index == 0)) * self.num_groups + group for index"),
    ("the tail of one group is copied", MANAGER, "shared_ids = table.block_ids[-self.num_groups :]", "shared_ids = table.block_ids[-1:]"),
    ("copies of one group are announced", MANAGER, "return tuple(map(BlockCopy, shared_ids, new_ids))", "return tuple(map(BlockCopy, shared_ids, new_ids))[:1]"),
    ("all is reserved for sliding layers", CACHE, "num_logical if is_full or not num_logical else", "num_logical if True else"),
    ("free blocks go to one group", CACHE, "return sum(max(0, num_logical - num_reserved)", "return max(max(0, num_logical - num_reserved)"),
    ("a hit looks at the window alone", HITS, "if self.sees_all[group]:", "if False:"),
    ("a hit looks at one group", HITS, "is_usable &= num_leading[group] >=", "is_usable = num_leading[group] >="),
    ("blocks of one group are published", CACHE, "for group, block_id in enumerate(block_ids) if block_id != FREED}", "for group, block_id in enumerate(block_ids[:1]) if block_id != FREED}"),
    ("every kind is full", CACHE, 'held["full" if sees_all else "sliding"]', 'held["full"]'),
    ("another group's blocks", CACHE, "table.block_ids[group :: self.num_groups])", "table.block_ids[:: self.num_groups])"),
    ("request counted before it ran", MANAGER, "        self._tables.add(table)\n        return table\n", "        self._tables.add(table)\n        self._num_queries += 1\n        return table\n"),
]  # fmt: skip

TENSOR_MUTANTS = [
    ("only K copied", "for tensor in self.storage:", "for tensor in self.storage[:1]:"),
    ("first layer copied only", "tensor[:, targets] = tensor[:, sources]", "tensor[0, targets] = tensor[0, sources]"),
    ("copied backwards", "sources, targets = torch", "targets, sources = torch"),
    ("scales not in the size", "else SCALE_BYTES\n", "else 0\n"),
    ("K alone in the size", "value_bytes, scale_bytes)\n", "value_bytes, scale_bytes) // 2\n"),
    ("layers share one tensor", "(tensor[index] for tensor in self.storage)", "(tensor[0] for tensor in self.storage)"),
    ("groups are stored one after the other", "if layout is None else layout", "if layout is None else [(g, g * spec.num_layers + p) for g, p in layout]"),
    ("K and V share one tensor", "storage = [_allocate(shape, spec.storage_dtype, device, pin_memory) for _ in range(2)]", "storage = [_allocate(shape, spec.storage_dtype, device, pin_memory)] * 2"),
]  # fmt: skip


GROUP_MUTANTS = [
    ("the smallest groups", "range(max(counts), 0, -1)", "range(1, max(counts) + 1)"),
    ("no padding", "MOST_PADDING = 1 / 8", "MOST_PADDING = 0"),
    ("any padding", "<= most)", "<= 10 * most)"),
    ("sliding groups go first", "group if is_full else num_full + group", "num_full + group if is_full else group"),
    ("places counted over all layers", "sum(other == is_full for other in sees_all[:layer])", "layer"),
]  # fmt: skip


def named_checks() -> list[Callable]:
    """The tests of one argument, `new_cache`: each rule by its name."""
    modules = (test_invariants, test_manager, test_window, test_groups, test_tier)
    tests = [test for module in modules for test in vars(module).values()]
    return [
        test for test in tests if inspect.isfunction(test) and list(inspect.signature(test).parameters) == ["new_cache"]
    ]


def check_bookkeeping(variant: ModuleType) -> None:
    if variant.__name__.startswith(WINDOW):
        test_window.check_arithmetic(variant.SlidingWindow)
    new_cache = plain_manager_class(variant)
    for seed in range(40):
        random_history(new_cache, seed)
    for check in named_checks():
        check(new_cache)


def check_tensors(variant: ModuleType) -> None:
    for kv_format in ("none", "int8"):
        for copies in test_kv_cache.COPY_CASES:
            test_kv_cache.check_copies(variant, copies, kv_format)
        test_kv_cache.check_layout(variant, kv_format)
    test_groups.check_pages(variant)


TABLES = [
    *((Mutant(*row), check_bookkeeping) for row in BOOKKEEPING_MUTANTS),
    *((Mutant(name, TENSORS, *row), check_tensors) for name, *row in TENSOR_MUTANTS),
    *((Mutant(name, GROUPS, *row), test_groups.check_groups) for name, *row in GROUP_MUTANTS),
]


@pytest.mark.mutants
@pytest.mark.parametrize(("mutant", "check"), TABLES, ids=[mutant.name for mutant, _ in TABLES])
def test_mutants_are_killed(mutant, check):
    KillTable.record(mutant, check)
