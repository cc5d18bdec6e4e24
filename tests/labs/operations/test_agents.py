"""What the agents of lab 8 are made of: turns that count what is recomputed, an index with a time limit, retrieval."""

from functools import cache

from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference
from twophase_labs.operations import agents, probes

FEW = agents.Sessions("few", 12, 4, 4000, 300, 20, ((1, 2), (20, 40)))  # more than the pool holds


@cache
def reference():
    return run_reference(Workbook.find().lab("8"))


def index(num_blocks):
    return reference()["TierIndex"](num_blocks)


def test_a_tier_changes_what_is_computed_and_nothing_else():
    alone, tiered = agents.serve(FEW), agents.serve(FEW, index(9000), 9000)
    prompts = [
        {number: [turn.num_prompt for turn in turns] for number, turns in each.turns.items()}
        for each in (alone, tiered)
    ]
    assert prompts[0] == prompts[1]
    assert alone.num_recomputed > 10_000
    assert tiered.num_recomputed == 0
    assert tiered.num_loaded > 0
    new = sum(turn.num_new for turns in tiered.turns.values() for turn in turns)
    assert new == sum(turns[-1].num_prompt for turns in tiered.turns.values())


def test_what_expires_is_a_miss():
    clock = [0.0]
    limited = agents.Expiring(index(8), limit_s=10.0)
    limited.now_s = lambda: clock[0]
    limited.store(["b", "a"])
    clock[0] = 8.0
    assert len(limited.match(["a"])) == 1
    clock[0] = 12.0
    assert len(limited.match(["a", "b"])) == 1, "b was last used 12 s ago"


def test_rare_words_find_a_sentence():
    text = "The boats lay still. The key of the tower hangs behind the mirror. The boats lay still. A dog barked."
    assert probes.best_sentences(text, "The key of the clock tower hangs behind the", 1) == [
        "The key of the tower hangs behind the mirror."
    ]
    assert probes.best_sentences(text, "Which dog barked?", 2)[-1] == "A dog barked."
