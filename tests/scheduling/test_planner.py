"""The planner: it alone moves blocks, and it says why a sequence stays out, for as long as that holds."""

import ast
from pathlib import Path

import twophase
import twophase.cache.prefix_cache as prefix_cache
from tests.scheduling.harness import Harness, make_request
from twophase.cache.prefix_cache import block_digest, tokens_to_bytes

MOVES = {"open", "reserve", "load", "grow", "truncate", "publish", "fork", "close"}  # of KVAllocator


def test_no_other_file_moves_blocks():
    package = Path(twophase.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in MOVES and ast.unparse(node.value).endswith("cache"):
                assert path.name == "planner.py", f"{path}, line {node.lineno}: {ast.unparse(node)}"


def test_a_prompt_that_waits_is_hashed_once(monkeypatch):
    """However often it is looked up in vain; and what it is when it grew by preemption is found all the same."""
    hashed = []
    monkeypatch.setattr(prefix_cache, "block_digest", lambda *args: hashed.append(args[1]) or block_digest(*args))
    harness = Harness(num_blocks=12, max_num_seqs=8, budget=40)
    harness.add(make_request("a", range(22), 9), make_request("b", 11, 9))
    harness.step()
    harness.add(make_request("c", [*range(16), *range(100, 110)], 9))
    num_waiting = 0
    while harness.scheduler.num_waiting:
        harness.step()
        num_waiting += harness.scheduler.num_waiting > 0
    assert num_waiting > 2
    of_late = [tokens for tokens in hashed if tokens == tokens_to_bytes(range(100, 104))]
    assert len(of_late) == 2, "looked up, and published"
    harness.run().check_outputs()
