"""Guessing goes on where it pays and stops where it does not, by a clock that the test reads out."""

import pytest

from tests.engine.engines import prompt_of, run
from tests.engine.speculating import Oracle, plain_outputs, speculating
from twophase.core.request import SamplingParams
from twophase_features.speculation.gate import FIRST_REST_STEPS, MAX_REST_STEPS, TRIAL_STEPS, SpeculationGate


def play(num_steps, cost_of):
    """What was done in each step; `cost_of(step, is_drafting)` is (seconds, tokens)."""
    gate, ways = SpeculationGate(), []
    for step in range(num_steps):
        ways.append(gate.is_drafting)
        gate.note_step(*cost_of(step, gate.is_drafting))
    return ways


def stretches(ways):
    """Run lengths, with the way: [(True, 8), (False, 40), ...]."""
    found = []
    for way in ways:
        if found and found[-1][0] == way:
            found[-1][1] += 1
        else:
            found.append([way, 1])
    return [tuple(stretch) for stretch in found]


def test_a_loser_is_tried_ever_more_rarely():
    """Two seconds with drafts, one without, and nothing gained: 8 trial steps, then rests of 32, 64, ... and a trial."""
    ways = play(20_000, lambda step, is_drafting: (2.0 if is_drafting else 1.0, 4))
    lengths = [length for way, length in stretches(ways) if not way]
    assert lengths[:3] == [TRIAL_STEPS + FIRST_REST_STEPS + TRIAL_STEPS, 64 + TRIAL_STEPS, 128 + TRIAL_STEPS]
    assert max(lengths) == MAX_REST_STEPS + TRIAL_STEPS
    assert sum(ways) / len(ways) < 0.02
    assert all(length == TRIAL_STEPS for way, length in stretches(ways)[:-1] if way)


def test_it_notices_when_the_text_changes():
    """Guessing pays for 500 steps and no longer: it ends soon after, and the rests are short again."""
    ways = play(3000, lambda step, is_drafting: (1.5, 8 if step < 500 else 4) if is_drafting else (1.0, 4))
    assert sum(ways[:500]) > 400
    assert sum(ways[1500:]) < 100


def test_the_first_steps_of_a_trial_do_not_count():
    """A draft model has to catch up first."""
    gate_ways = []
    previous = None

    def cost_of(step, is_drafting):
        nonlocal previous
        has_changed, previous = is_drafting != previous, is_drafting
        gate_ways.append(is_drafting)
        return (100.0 if has_changed and is_drafting else 1.0 if is_drafting else 2.0), 4

    play(2000, cost_of)
    assert sum(gate_ways) > 1800


@pytest.mark.parametrize("is_right", [True, False])
def test_the_engine_stops_guessing_when_it_loses(tiny_model, monkeypatch, is_right):
    """A step costs 3 s, and 0.5 s for each token: right guesses pay, wrong ones do not."""
    prompts, params = [prompt_of(1, 9)], SamplingParams(temperature=0, max_tokens=110, ignore_eos=True)
    outputs = plain_outputs(tiny_model, prompts, params)
    now_s = 0.0
    drafter = Oracle(prompts, outputs, lambda position: not is_right)
    engine = speculating(tiny_model, drafter, gate=SpeculationGate(), clock=lambda: now_s)
    real = engine._runner.run

    def costly(chunks, score):
        nonlocal now_s
        now_s += 3 + 0.5 * sum(len(chunk.token_ids) for chunk in chunks)
        return real(chunks, score)

    monkeypatch.setattr(engine._runner, "run", costly)
    (output,) = run(engine, prompts, params)
    assert list(output.outputs[0].token_ids) == outputs[0]
    verifying = [step.num_verifying for step in engine.trace[1:]]
    if is_right:
        assert sum(verifying) > len(verifying) * 0.6
    else:
        assert sum(verifying) == 2 * TRIAL_STEPS
