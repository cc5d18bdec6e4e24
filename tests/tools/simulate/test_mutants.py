"""Planted bugs in the leap over many steps: leaping must then differ from stepping."""

import random

import pytest

import twophase_tools.simulate.simulator
from tests.mutation import KillTable, Mutant
from tests.tools.simulate.runs import make_scheduler, random_requests, request
from tests.tools.simulate.test_fast_forward import COSTS, POLICIES, state_of

LEAP = "twophase_tools.simulate.fast_forward"

MUTANTS = [
    Mutant("an arrival disturbs nobody", LEAP, "if scheduler.num_waiting and not is_refused_again:", "if False:"),
    Mutant("prefills repeat", LEAP, " or not all(chunk.num_samples for chunk in plan.chunks):", ":"),
    Mutant("some may be left out", LEAP, "if len(sequences) < scheduler.num_running:", "if not sequences:"),
    Mutant("places not taken by rank", LEAP, "        sequences.sort(key=_ORDER)", "        sequences.reverse()"),
    Mutant("one step too many", LEAP, "len(sequence.token_ids) for sequence in sequences])\n", "len(sequence.token_ids) for sequence in sequences]) + 1\n"),
    Mutant("blocks always suffice", LEAP, "        if num_new_blocks(middle) <= num_free:", "        if True:"),
    Mutant("one block too many", LEAP, "        if num_new_blocks(middle) <= num_free:", "        if num_new_blocks(middle) <= num_free + 1:"),
    Mutant("blocks one step late", LEAP, "range((1 - num_tokens) % block_size", "range((2 - num_tokens) % block_size"),
    Mutant("nothing published", LEAP, "            planner.confirm(", "            (lambda *_: None)("),
    Mutant("blocks taken sequence by sequence", LEAP, "    moves.sort()\n", ""),
    Mutant("nobody ends", LEAP, "if num_tokens + num_steps == sequence.max_num_tokens:", "if False:"),
    Mutant("last token not computed", LEAP, "            sequence.num_computed_tokens = num_tokens + num_steps - 1", "            sequence.num_computed_tokens = num_tokens + num_steps - 2"),
]  # fmt: skip


def check(module):
    """Leaping with this module's functions is stepping, on histories of every kind."""
    simulator = twophase_tools.simulate.simulator
    real = {name: getattr(simulator, name) for name in ("repeated_sequences", "num_repeats", "repeat_decodes")}
    try:
        for name in real:
            setattr(simulator, name, getattr(module, name))
        for seed in range(8):
            compare(simulator, random.Random(seed), seed)
    finally:
        for name, function in real.items():
            setattr(simulator, name, function)


def compare(simulator, rng, seed):
    options = {"num_blocks": [30, 60][seed % 2], "block_size": [4, 3][seed // 4], "max_num_seqs": 5, "budget": 16}
    options |= {"policy": POLICIES[seed % 3], "reserve_growth": seed % 4 > 1}
    requests = random_requests(rng, 25, 20.0, 40)
    requests.append(request("last", requests[-1].arrival_s + 0.05, 5, 16, priority=-1))
    by_step, at_once = make_scheduler(**options), make_scheduler(**options)
    expected = simulator.simulate(requests, by_step, COSTS, fast_forward=False)
    found = simulator.simulate(requests, at_once, COSTS)
    assert found.steps == expected.steps, "other steps"
    assert found.records == expected.records, "other records"
    assert state_of(at_once) == state_of(by_step), "another state"


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant):
    KillTable.record(mutant, check)
