"""Accepting drafts so that they change no output.

p is the model's distribution at a position, after penalties, structured outputs, temperature and truncation. Draw t
from p with the random number that belongs to the position, and keep the draft if it is t. For a deterministic draft,
such as n-gram lookup makes, this *is* rejection sampling (Leviathan, Kalman, Matias, arXiv:2211.17192, section 2.3):
the draft is kept with probability p(draft), and t given that it is another token has the distribution that p has
elsewhere. For any other drafter it is exact too, because t never depends on the draft. Not only the distribution but
the token itself is the same as without drafts, so a seeded output depends neither on the batch nor on the number of
drafts. A draft model therefore draws with the position's random number as well: where its distribution is close to p,
it mostly draws the same token.
"""

from collections.abc import Sequence
from itertools import zip_longest

from twophase.core.plan import SampledToken
from twophase.engine.sampler import SamplingError


def accepted_run(
    drawn: Sequence[tuple[SampledToken, ...] | SamplingError], drafts: Sequence[int]
) -> tuple[SampledToken, ...] | SamplingError:
    """The tokens that k drafts yield: the accepted drafts, and the first token drawn that is not a draft; 1 to k+1.

    Worked example: drafts [5, 8, 2] and draws 5, 8, 9, 4 yield 5, 8, 9. The 4 was drawn after a wrong 2.

    Args:
        drawn: The tokens drawn after the newest token, after draft 1, ... after draft k. An error ends the run: it is
            the result only if nothing comes before it.
    """
    run: list[SampledToken] = []
    for result, draft in zip_longest(drawn, drafts):
        if isinstance(result, SamplingError):
            return tuple(run) or result
        run.append(result[0])
        if result[0].token_id != draft:
            break
    return tuple(run)
