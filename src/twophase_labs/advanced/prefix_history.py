"""The same history of requests on the engine's cache manager and on a store of yours."""

import random
from collections.abc import Callable
from typing import Any

from twophase.cache.manager import BlockTable, CacheManager

BLOCK_SIZE, NUM_BLOCKS = 4, 40


def made_up_prompt(chance: random.Random) -> list[int]:
    """One of three long beginnings, one of four middles, an end of its own; never a whole number of blocks."""
    family, branch = chance.randrange(3), chance.randrange(4)
    beginning = [1000 * family + at for at in range(12)]
    middle = [1000 * family + 100 * branch + 50 + at for at in range(chance.choice((0, 8, 12)))]
    return beginning + middle + [chance.randrange(10_000, 20_000) for _ in range(chance.choice((1, 2, 3, 5, 6, 7)))]


def play_both(store: Any, block_hashes: Callable[..., list[bytes]], num_requests: int) -> list[tuple[int, int]]:
    """Blocks found for each request, by the engine's manager and by `store`; up to three requests at a time."""
    chance = random.Random(5)
    manager = CacheManager(NUM_BLOCKS, BLOCK_SIZE)
    running: list[tuple[BlockTable, list[int], list[bytes]]] = []
    found = []
    for _ in range(num_requests):
        if len(running) == 3:
            table, blocks, hashes = running.pop(chance.randrange(3))
            manager.close(table)
            store.close(blocks, hashes)
        prompt = made_up_prompt(chance)
        table = manager.open(prompt)
        num_found = len(table.block_ids)
        manager.grow(table, len(prompt))
        manager.publish(table, prompt, len(prompt))
        hashes = block_hashes(prompt, BLOCK_SIZE)
        blocks, num_hit = store.open(hashes, -(-len(prompt) // BLOCK_SIZE))
        running.append((table, blocks, hashes))
        found.append((num_found, num_hit))
    return found
