"""Which drafts are kept: the rules that leave a model's outputs what they were without drafts.

Two rules, both exact. p is the model's distribution at a position, after penalties, structured outputs, temperature
and truncation; q is the distribution that the draft was drawn from.

`rejection_sample` is the general one (Leviathan, Kalman, Matias, arXiv:2211.17192, section 2.3; Chen et al.,
arXiv:2302.01318, algorithm 2): accept with probability min(1, p/q), else draw from what p has more of. A draft is
accepted with probability 1 - TV(p, q), the most that any rule can reach.

`accepted_run` is the engine's: draw t from p with the random number that belongs to the position, and keep the draft if
it is t. For a guess without chance (q is one token, as n-gram lookup makes it) this *is* rejection sampling: the draft
is kept with probability p(draft), and t given that it is another token has the distribution that p has elsewhere. For
any other drafter it is exact too, because t never depends on the draft. And more than the distribution stays: it is the
very token that would have come without drafts, so a seeded output depends neither on the batch nor on how many guesses
there happened to be room for. A draft model therefore draws with the position's random number as well: where q is close
to p it then mostly meets the same token.
"""

from collections.abc import Sequence
from itertools import zip_longest

import torch
from jaxtyping import Float, Int
from torch import Tensor

from twophase.core.plan import SampledToken
from twophase.engine.sampler import SamplingError


def accepted_run(
    drawn: Sequence[tuple[SampledToken, ...] | SamplingError], drafts: Sequence[int]
) -> tuple[SampledToken, ...] | SamplingError:
    """The tokens that k drafts yield: those confirmed, and the first one drawn that is not a draft; 1 to k+1 of them.

    Worked example: drafts [5, 8, 2] and draws 5, 8, 9, 4 yield 5, 8, 9. The 4 was drawn after a wrong 2.

    Args:
        drawn: What was drawn after the newest token, after draft 1, ... after draft k. An error ends the run: it is
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


def rejection_sample(
    p: Float[Tensor, "N V"],
    q: Float[Tensor, "K V"],
    drafts: Int[Tensor, "K"] | Sequence[int],
    accept_u: Float[Tensor, "K"],
    token_u: int | float | Float[Tensor, ""],
) -> list[int]:
    """Verify K drafts by rejection; returns 1 to K+1 tokens, distributed as if each was drawn from p.

    Draft i is accepted if accept_u[i] < p[i, draft] / q[i, draft]. At the first that is not, the token is drawn from
    max(p[i] - q[i], 0), normalised; if all are, one more is drawn from p[K].

    Args:
        p: The model's probabilities after 0, 1, ..., K drafts, so N = K + 1; each row sums to 1.
        q: The probabilities that the drafts were drawn from, so q[i, drafts[i]] > 0.
        drafts: Token ids.
        accept_u, token_u: Independent uniforms in [0, 1).

    Raises:
        ValueError: A draft that q says is impossible.
    """
    tokens: list[int] = []
    for i, draft in enumerate(int(token) for token in drafts):
        if not q[i, draft] > 0:
            raise ValueError(f"draft {i} is token {draft}, which has probability {float(q[i, draft])} in q.")
        if not accept_u[i] * q[i, draft] < p[i, draft]:
            return [*tokens, _draw((p[i] - q[i]).clamp_min(0), token_u)]
        tokens.append(draft)
    return [*tokens, _draw(p[len(tokens)], token_u)]


def _draw(weights: Float[Tensor, "V"], u: int | float | Float[Tensor, ""]) -> int:
    """The first token whose cumulative weight exceeds u times the total."""
    cdf = weights.double().cumsum(0)
    found = int(torch.searchsorted(cdf, u * cdf[-1], right=True))
    return min(found, int(weights.nonzero()[-1]))  # u * total may round up to the total
