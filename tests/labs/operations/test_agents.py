"""What the agents of lab 8 are made of: turns that count what is recomputed, and retrieval."""

from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference
from twophase_labs.operations import agents, probes

FEW = agents.Sessions("few", 12, 4, 4000, 300, 20, ((1, 2), (20, 40)))  # more than the pool holds


def test_a_tier_changes_what_is_computed_and_nothing_else():
    index = run_reference(Workbook.find().lab("8"))["TierIndex"](9000)
    alone, tiered = agents.serve(FEW), agents.serve(FEW, index, 9000)
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


def test_rare_words_find_a_sentence():
    text = "The boats lay still. The key of the tower hangs behind the mirror. The boats lay still. A dog barked."
    assert probes.best_sentences(text, "The key of the clock tower hangs behind the", 1) == [
        "The key of the tower hangs behind the mirror."
    ]
    assert probes.best_sentences(text, "Which dog barked?", 2)[-1] == "A dog barked."
