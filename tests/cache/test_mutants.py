"""Planted bugs in the cache: the oracle or a named test must notice each."""

import importlib
import inspect
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.cache import test_groups, test_invariants, test_kv_cache, test_manager, test_window
from tests.cache.histories import random_history
from tests.cache.plain import plain_manager_class
from tests.mutation import KillTable, Mutant, is_killed
from twophase.cache.manager import CacheManager

POOL, PREFIX, TABLE, MANAGER, TENSORS = (
    f"twophase.cache.{name}" for name in ("block_pool", "prefix_cache", "block_table", "manager", "kv_cache")
)
TIER = "twophase.cache.tier"
WINDOW, GROUPS = (f"twophase_features.windows.{name}" for name in ("sliding_window", "layer_groups"))

# name, module, old, new
BOOKKEEPING_MUTANTS = [
    # Sharing
    ("refcount forgotten on hit", POOL, "        self.ref_counts[block_id] += 1\n", ""),
    ("hit takes no reference", MANAGER, "if block_id != FREED and self._pool.acquire(block_id):", "if True:"),
    ("hit block stays on the free list", POOL, "            del self._cached[block_id]\n", ""),
    ("block freed while still shared", POOL, "if self.ref_counts[block_id] > 0:", "if False:"),
    ("blank blocks count as evicted", POOL, "max(0, num_blocks - self.num_blank)", "num_blocks"),
    ("evictions uncounted", MANAGER, "            num_evicted=self._pool.num_evicted,\n", ""),
    ("release does not count", POOL, "        self.ref_counts[block_id] -= 1\n", ""),
    ("allocated block has no owner", POOL, "self.ref_counts[block_id] = 1", "self.ref_counts[block_id] = 0"),
    ("fork without refcount", MANAGER, "                self._pool.acquire(block_id)\n        fork =", "                pass\n        fork ="),
    ("fork shares the list", MANAGER, "block_ids=list(table.block_ids)", "block_ids=table.block_ids"),
    ("fork loses the salt", MANAGER, "salt=table.salt,", 'salt="",'),
    ("fork forgets what precedes", MANAGER, "        fork.published = table.published\n", ""),
    ("close keeps the last block", MANAGER, "for block_id in reversed(table.block_ids):", "for block_id in table.block_ids[-2::-1]:"),
    # Refusals
    ("double free unnoticed", POOL, "if self.ref_counts[block_id] == 0:", "if False:"),
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
    ("copy released before the allocation", MANAGER, "        new_ids = self._take(", "        _ = copies_tail and self._pool.release(table.block_ids[-1], False)\n        new_ids = self._take("),
    ("tokens counted before the allocation", MANAGER, "        copies_tail = self._must_copy_tail(table)\n", "        copies_tail = self._must_copy_tail(table)\n        self._count_query(table)\n"),
    # Order of eviction
    ("free order reversed", MANAGER, "for block_id in reversed(table.block_ids):", "for block_id in table.block_ids:"),
    ("most recent evicted first", POOL, "popitem(last=False)", "popitem(last=True)"),
    ("cached evicted before blank", POOL, "self._blank.pop() if self._blank else self._cached.popitem(last=False)[0]", "self._cached.popitem(last=False)[0] if self._cached else self._blank.pop()"),
    ("cached block freed as blank", POOL, "        if is_cached:\n", "        if False:\n"),
    ("blank block freed as cached", POOL, "        if is_cached:\n", "        if True:\n"),
    # Hits
    ("full hit allowed", MANAGER, "max_blocks = (len(token_ids) - 1) //", "max_blocks = len(token_ids) //"),
    ("hit not rounded down", MANAGER, "num_cached = len(block_ids) * self.block_size", "num_cached = len(block_ids) and len(token_ids) - 1"),
    ("hash without parent", PREFIX, "blake2b(parent_digest + token_bytes", "blake2b(token_bytes"),
    ("hash without tokens", PREFIX, "blake2b(parent_digest + token_bytes", "blake2b(parent_digest"),
    ("salt not hashed", PREFIX, "blake2b(salt.encode()", 'blake2b(b""'),
    ("salt ignored", PREFIX, "self.parent is parent and self.salt == salt", "self.parent is parent"),
    ("token verification skipped", PREFIX, "self.token_bytes == token_bytes and ", ""),
    ("parent verification skipped", PREFIX, "self.parent is parent and ", ""),
    ("hit not verified at all", PREFIX, "if found is None or not found.is_prefix(chain[-1] if chain else None, salt, token_bytes):", "if found is None:"),
    ("colliding block registered", PREFIX, "elif not prefix.is_prefix(parent, salt, token_bytes):", "elif False:"),
    ("publishing goes on after a collision", MANAGER, "                table.publish_at = NEVER\n                return\n", "                table.publish_at += self.block_size\n                continue\n"),
    ("lookup stops one block early", PREFIX, "for index in range(max_blocks):", "for index in range(max_blocks - 1):"),
    # What is findable
    ("stale block kept after eviction", MANAGER, "            self._prefixes.forget(block_id)\n", "            pass\n"),
    ("evicted block stays listed", PREFIX, "                held.pop(block_id, None)\n", "                pass\n"),
    ("twin forgotten", PREFIX, "                held.pop(block_id, None)\n", "                held.clear()\n"),
    ("reset keeps the contents", PREFIX, "        self._of_block.clear()", "        pass"),
    ("reset keeps the free order", MANAGER, "        self._pool.blank_all()\n", ""),
    ("publish before written", MANAGER, "while table.publish_at <= num_computed:", "while table.publish_at <= table.num_tokens:"),
    ("partial block published", MANAGER, "while table.publish_at <= num_computed:", "while table.publish_at <= num_computed + 1:"),
    ("every second block published", MANAGER, "table.publish_at = end + self.block_size", "table.publish_at = end + 2 * self.block_size"),
    ("publish waits a token too long", MANAGER, "if num_computed < table.publish_at and", "if num_computed <= table.publish_at and"),
    ("neighbour block published", MANAGER, "first = start // self.block_size * self.num_groups", "first = max(0, start // self.block_size - 1) * self.num_groups"),
    # Copy on write
    ("copy on write skipped", MANAGER, "return table.num_tokens % self.block_size != 0 and", "return False and"),
    ("copy on write skipped when the slot fits", MANAGER, "            and self._pool.ref_counts[block_ids[-1]] == 1\n", ""),
    ("full block copied too", MANAGER, "return table.num_tokens % self.block_size != 0 and", "return bool(table.block_ids) and"),
    ("copy not announced", MANAGER, "copies = tuple(map(BlockCopy, shared_ids, own_ids))", "copies = ()"),
    ("copied backwards", MANAGER, "map(BlockCopy, shared_ids, own_ids)", "map(BlockCopy, own_ids, shared_ids)"),
    ("copied block keeps its reference", MANAGER, "            self._pool.release(shared_id, is_cached=False)", "            pass"),
    ("table keeps the shared block", MANAGER, "table.block_ids[-self.num_groups :], new_ids = own_ids, new_ids", "new_ids = new_ids"),
    # Windows
    ("freed a block too early", WINDOW, "(num_tokens + 1 - self.window) // block_size", "(num_tokens + 2 - self.window) // block_size"),
    ("freed too late", WINDOW, "(num_tokens + 1 - self.window) // block_size", "(num_tokens - self.window) // block_size"),
    ("sinks freed", WINDOW, "num_sink_blocks = -(-self.num_sinks // block_size)", "num_sink_blocks = self.num_sinks // block_size"),
    ("freed a token late", WINDOW, "(index + 1) * block_size + self.window - 1", "(index + 1) * block_size + self.window"),
    ("never freed", MANAGER, "        if num_computed >= table.free_at:\n", "        if False:\n"),
    ("freed block keeps its place in the table", MANAGER, "block_id, table.block_ids[index] = table.block_ids[index], FREED", "block_id = table.block_ids[index]"),
    ("freed block leaks", MANAGER, "            self._release(block_id, self.block_size)  # what left", "            pass  # what left"),
    ("freed twice", MANAGER, "        self._note_freed(table, end)\n", ""),
    ("freed when grown, not when computed", MANAGER, "            self._free_unseen(table, num_computed)\n", "            self._free_unseen(table, table.num_tokens)\n"),
    ("a fork frees again", MANAGER, "        fork.first_kept, fork.free_at = table.first_kept, table.free_at\n", ""),
    ("a fork never frees", MANAGER, "fork.first_kept, fork.free_at = table.first_kept, table.free_at", "fork.first_kept = table.first_kept"),
    ("a hit frees again", MANAGER, "self._note_freed(table, self.window.freed_blocks(num_cached, self.block_size).stop)", "self._note_freed(table, self.window.freed_blocks(0, self.block_size).stop)"),
    ("a hit takes all", PREFIX, "FREED if i in unseen_by[group] else next", "next"),
    ("a hit needs no sinks", PREFIX, "                is_usable &= num_leading[group] >= min(unseen.start, len(chain))\n", ""),
    ("a hit needs no window", PREFIX, "                is_usable &= num_trailing[group] >= len(chain) - unseen.stop\n", ""),
    ("a gap ends the lookup", PREFIX, "            chain.append(found)\n", "            chain.append(found)\n            if not found.block_ids[-1]:\n                break\n"),
    ("freed slots still counted", MANAGER, "self._release(block_id, self.block_size)  # what", "self._release(block_id, 0)  # what"),
    ("shared blocks are promised to come back", MANAGER, "sum(ref_counts[block_id] == 1 for", "sum(ref_counts[block_id] > 0 for"),
    ("the copy of a shared block is forgotten", MANAGER, "(num_each - self._must_copy_tail(table)) * ", "num_each * "),
    ("new blocks stay findable as what they were", MANAGER, "        for block_id in block_ids:\n            self._prefixes.forget(block_id)\n", ""),
    # The KV tier
    ("offloaded too late", MANAGER, "        if self.tier is not None:\n            self._store(self.tier, block_ids)\n        for block_id in block_ids:\n            self._prefixes.forget(block_id)\n", "        keys = [self._prefixes.key_of(block_id) for block_id in block_ids]\n        for block_id in block_ids:\n            self._prefixes.forget(block_id)\n        if self.tier is not None:\n            self.tier.store([key for key in keys if key], [b for b, key in zip(block_ids[::-1], keys) if key])\n"),
    ("loaded into the blocks of the hit", MANAGER, "block_ids = table.block_ids[first : first + len(offered)]", "block_ids = table.block_ids[: len(offered)]"),
    ("all that was offered counts as loaded", MANAGER, "table.num_cached_tokens += num_loaded //", "table.num_cached_tokens += len(offered) //"),
    ("groups share a key", TIER, "if group else self", "if False else self"),
    ("a block of one group alone counts as loaded", MANAGER, "        num_loaded -= num_loaded % self.num_groups\n", ""),
    # Giving slots back
    ("cut keeps its blocks", MANAGER, "        for block_id in reversed(table.block_ids[num_kept:]):\n            self._pool.release(block_id, is_cached=False)\n", ""),
    ("cut keeps an empty block", MANAGER, "num_kept = -(-num_tokens // self.block_size) * self.num_groups\n        for", "num_kept = (num_tokens // self.block_size + 1) * self.num_groups\n        for"),
    ("cut takes the partial block too", MANAGER, "num_kept = -(-num_tokens // self.block_size) * self.num_groups\n        for", "num_kept = num_tokens // self.block_size * self.num_groups\n        for"),
    ("cut of what others read", MANAGER, "self._pool.ref_counts[block_id] > 1 or block_id in self._prefixes:", "block_id in self._prefixes:"),
    ("cut of what was published", MANAGER, "self._pool.ref_counts[block_id] > 1 or block_id in self._prefixes:", "self._pool.ref_counts[block_id] > 1:"),
    ("cut overlooks the block it goes through", MANAGER, "for block_id in table.block_ids[num_tokens // self.block_size * self.num_groups :]:", "for block_id in table.block_ids[-(-num_tokens // self.block_size) * self.num_groups :]:"),
    ("cut blocks stay findable", MANAGER, "        for block_id in reversed(table.block_ids[num_kept:]):\n            self._pool.release(block_id, is_cached=False)", "        for block_id in reversed(table.block_ids[num_kept:]):\n            self._pool.release(block_id, is_cached=True)"),
    ("cut slots stay counted", MANAGER, "        self._num_slots_in_use -= (table.num_tokens - num_tokens) * self.num_groups\n", ""),
    ("cut beyond the end", MANAGER, "if not 0 <= num_tokens <= table.num_tokens:", "if num_tokens < 0:"),
    ("cut in the step's own list", MANAGER, "        table.block_ids, table.num_tokens = table.block_ids[:num_kept], num_tokens", "        del table.block_ids[num_kept:]\n        table.num_tokens = num_tokens"),
    # Statistics
    ("copied slots uncounted", MANAGER, "self._num_slots_in_use += self._num_tail_slots(table) * self.num_groups", "pass"),
    ("slots of a hit uncounted", MANAGER, "                self._num_slots_in_use += self.block_size\n", "                pass\n"),
    ("partial block freed as full", MANAGER, "chain(repeat(self._num_tail_slots(table), self.num_groups), repeat(self.block_size))", "repeat(self.block_size)"),
    ("copied tail counted as partial", MANAGER, "return table.num_tokens - max(0, len(table.block_ids) // self.num_groups - 1) * self.block_size", "return table.num_tokens % self.block_size"),
    ("retried request counted again", MANAGER, "            table.num_uncounted_tokens = 0\n", ""),
    # Groups of layers
    ("layers that see all keys free too", MANAGER, "groups = [group for group, sees_all in enumerate(self.sees_all) if not sees_all]", "groups = list(range(self.num_groups))"),
    ("only the first sliding group frees", MANAGER, "for group, sees_all in enumerate(self.sees_all) if not sees_all]\n        return [", "for group, sees_all in enumerate(self.sees_all) if not sees_all][:1]\n        return ["),
    ("freed in the neighbour's place", MANAGER, "place * self.num_groups + group for place", "(place + 1) * self.num_groups + group - self.num_groups * (place > 0) for place"),
    ("the tail of one group is copied", MANAGER, "shared_ids, own_ids = table.block_ids[-self.num_groups :], new_ids[: self.num_groups]", "shared_ids, own_ids = table.block_ids[-1:], new_ids[:1]"),
    ("copies of one group are announced", MANAGER, "self._must_copy_tail(table)) * self.num_groups", "self._must_copy_tail(table))"),
    ("a window is promised to all", MANAGER, "sum(self.sees_all) * num_each + sum", "sum(self.sees_all) * min(num_each, self.window.max_blocks(self.block_size)) + sum"),
    ("all is promised to sliding layers", MANAGER, "return [min(num_needed, max(0, most - own)) for own in num_own]", "return [num_needed for _ in num_own]"),
    ("spare blocks go to one group", MANAGER, "num_spare // len(to_come)", "num_spare"),
    ("a chunk as large as the whole promise", MANAGER, "return (min(to_come) + num_spare", "return (self.num_blocks_to_come(table, num_tokens) // self.num_groups + num_spare"),
    ("a hit looks at the window alone", PREFIX, "if self.window is None or self.sees_all[group]:", "if self.window is None:"),
    ("a hit looks at one group", PREFIX, "is_usable &= num_leading[group] >=", "is_usable = num_leading[group] >="),
    ("blocks of a group are published", MANAGER, "block_ids = table.block_ids[first : first + self.num_groups]", "block_ids = table.block_ids[first : first + 1] * self.num_groups"),
    ("slots of one group", MANAGER, "self._num_slots_in_use += num_new * self.num_groups", "self._num_slots_in_use += num_new"),
    ("every kind is full", MANAGER, 'kinds = ["sliding" if self.window is not None and not sees_all', 'kinds = ["sliding" if False'),
    ("another group's blocks", TABLE, "self.block_ids[group :: self.num_groups]", "self.block_ids[:: self.num_groups]"),
    ("request counted before it ran", MANAGER, "        self._tables.add(table)\n        return table\n", "        self._tables.add(table)\n        self._count_query(table)\n        return table\n"),
]  # fmt: skip

TENSOR_MUTANTS = [
    ("only K copied", "for tensor in self.storage:", "for tensor in self.storage[:1]:"),
    ("scales not copied", "for tensor in self.storage:", "for tensor in self.storage[:2]:"),
    ("first layer copied only", "tensor[:, targets] = tensor[:, sources]", "tensor[0, targets] = tensor[0, sources]"),
    ("chained copies read too early", "origin_of[target] = origin_of.get(source, source)", "origin_of[target] = source"),
    ("scales not in the size", "else SCALE_BYTES\n", "else 0\n"),
    ("K alone in the size", "value_bytes, scale_bytes)\n", "value_bytes, scale_bytes) // 2\n"),
    ("layers share one tensor", "(tensor[place] for tensor in storage)", "(tensor[0] for tensor in storage)"),
    ("groups have the pages of one", "group=group) for", "group=0) for"),
    ("groups are stored one after the other", "else groups.places", "else [(g, g * groups.size + p) for g, p in groups.places]"),
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
    modules = (test_invariants, test_manager, test_window, test_groups)
    tests = [test for module in modules for test in vars(module).values()]
    return [
        test for test in tests if inspect.isfunction(test) and list(inspect.signature(test).parameters) == ["new_cache"]
    ]


def check_bookkeeping(variant: ModuleType) -> None:
    if variant.__name__.startswith(WINDOW):
        run_named(test_window.check_arithmetic, variant.SlidingWindow, name="check_arithmetic")
    new_cache = plain_manager_class(variant)
    for seed in range(40):
        run_named(random_history, new_cache, seed, name="shadow-KV oracle")
    for check in named_checks():
        run_named(check, new_cache, name=check.__name__)
    for num_tokens, num_cached_tokens in ((4, 0), (5, 4), (8, 4), (9, 8)):
        check = test_invariants.test_invariant_04_something_is_always_computed
        run_named(check, new_cache, num_tokens, num_cached_tokens, name=check.__name__)


def check_tensors(variant: ModuleType) -> None:
    for kv_format in ("none", "int8"):
        for copies in test_kv_cache.COPY_CASES:
            run_named(test_kv_cache.check_copies, variant, copies, kv_format, name="check_copies")
        run_named(test_kv_cache.check_layout, variant, kv_format, name="check_layout")
    run_named(test_groups.check_pages, variant, name="check_pages")


def run_named(check: Callable, *args, name: str) -> None:
    """Make the kill table say who noticed. (What a failed `pytest.raises` raises is no `Exception`.)"""
    try:
        check(*args)
    except (Exception, pytest.fail.Exception) as error:
        raise AssertionError(f"{name}: {str(error) or type(error).__name__}") from error


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", [Mutant(*row) for row in BOOKKEEPING_MUTANTS], ids=lambda mutant: mutant.name)
def test_bookkeeping_mutants_are_killed(mutant):
    KillTable.record(mutant, check_bookkeeping)


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", [Mutant(n, TENSORS, *r) for n, *r in TENSOR_MUTANTS], ids=lambda mutant: mutant.name)
def test_tensor_mutants_are_killed(mutant):
    KillTable.record(mutant, check_tensors)


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", [Mutant(n, GROUPS, *r) for n, *r in GROUP_MUTANTS], ids=lambda mutant: mutant.name)
def test_group_mutants_are_killed(mutant):
    KillTable.record(mutant, test_groups.check_groups)


@pytest.mark.parametrize(
    ("module", "check"),
    [
        (POOL, check_bookkeeping),
        (PREFIX, check_bookkeeping),
        (MANAGER, check_bookkeeping),
        (WINDOW, check_bookkeeping),
        (TABLE, check_bookkeeping),
        (TENSORS, check_tensors),
        (GROUPS, test_groups.check_groups),
    ],
)
def test_a_mutant_that_changes_nothing_survives(module, check):
    """The checks kill for the bug's sake, not because a mutant's classes are others than the original's."""
    first_line = importlib.import_module(module).__doc__.splitlines()[0]
    assert is_killed(Mutant("nothing", module, first_line, "Not a bug."), check) is None


def test_a_mutant_that_can_not_be_planted_is_not_killed():
    with pytest.raises(ValueError, match=r"occurs 0 times in block_pool\.py"):
        is_killed(Mutant("text that is gone", POOL, "no line of the pool", "pass"), lambda variant: None)


def test_the_class_under_test_is_the_mutant():
    mutant = Mutant("full hit allowed", MANAGER, "(len(token_ids) - 1) // self.block_size", "1")
    assert plain_manager_class(mutant.load()).__module__.endswith("__mutant_full_hit_allowed")
    assert plain_manager_class().__module__ != CacheManager.__module__
