"""How many drafts a step keeps."""

from twophase.core.plan import SampledToken
from twophase.engine.sampler import SamplingError
from twophase_features.speculation.rejection import accepted_run


def test_a_run_ends_at_the_first_difference():
    drawn = [(SampledToken(t),) for t in (5, 8, 9, 4)]
    assert accepted_run(drawn, [5, 8, 2]) == (*drawn[0], *drawn[1], *drawn[2])
    assert accepted_run(drawn, [5, 8, 9]) == tuple(token for (token,) in drawn)
    assert accepted_run(drawn, [1, 8, 9]) == drawn[0]
    assert accepted_run(drawn[:1], []) == drawn[0]


def test_an_error_counts_only_if_nothing_comes_before_it():
    error, token = SamplingError("planted"), (SampledToken(5),)
    assert accepted_run([error, token], [5]) is error
    assert accepted_run([token, error], [5]) == token
    assert accepted_run([token, error], [6]) == token
