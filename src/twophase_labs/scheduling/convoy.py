"""One long document, and short questions that come behind it."""

from twophase.core.request import Request, SamplingParams
from twophase.scheduling.policy import Policy
from twophase_tools.load.records import RequestRecord
from twophase_tools.simulate.cost_model import LinearCostModel
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.simulator import simulate

COST = LinearCostModel(per_step_s=0.02, per_token_s=0.2e-3, per_pair_s=20e-9)
LIMITS = {"max_num_seqs": 32, "max_num_batched_tokens": 256, "max_model_len": 16384, "num_blocks": 1200}
DOCUMENT_TOKENS, QUESTION_TOKENS = 12_000, 60


def run(policy: Policy) -> list[RequestRecord]:
    """The document at 0 s, then a question every half second; 20 of them."""
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    requests = [Request("document", (1,) * DOCUMENT_TOKENS, params)]
    requests += [Request(f"question {i}", (2,) * QUESTION_TOKENS, params, arrival_s=0.25 + 0.5 * i) for i in range(20)]
    return list(simulate(requests, make_scheduler(LIMITS | {"block_size": 16}, policy), COST).records)
