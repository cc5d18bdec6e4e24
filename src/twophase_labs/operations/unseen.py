"""Hours that the notebook does not show, on which a diagnosis is graded: the same causes in other sizes, each with the
healthy hour of its own service."""

from dataclasses import replace

from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.whole_prompts import ContinuousPolicy, PrefillFirstPolicy
from twophase_labs.operations.incidents import (
    FORMAT,
    HEALTHY,
    HEALTHY_APART,
    KV,
    RETRIEVAL,
    SLOW_LINK,
    TRANSFER,
    Hour,
)
from twophase_labs.operations.service import SHAPE, Setting, Traffic
from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.hardware import HARDWARE

# More documents than in the notebook's hours, so that every minute has enough of them.
MORE_DOCUMENTS = Traffic(rate_per_s=1.0, document_share=0.5)
BATCHING = Hour("batching", Setting(policy=PrefillFirstPolicy(), num_blocks=5200), MORE_DOCUMENTS)
BUSY = replace(HEALTHY, traffic=Traffic(rate_per_s=1.9))
LONGER_ANSWERS = replace(KV, traffic=Traffic(rate_per_s=1.3, output_scale=9.0, invalid=0.0))
WHOLE_PROMPTS = replace(BATCHING, setting=Setting(policy=ContinuousPolicy(), num_blocks=5200))
FEWER_NEEDLES = replace(RETRIEVAL, short=0.9, long=0.3)
MORE_INVALID = replace(FORMAT, traffic=Traffic(invalid=0.75))
JITTER_ALONE = replace(TRANSFER, setting=Setting(link_bytes_per_s=1.5 * SLOW_LINK, link_jitter=20.0))

# A pool of half the size. Here the attempts after the first fill it, which is not what went wrong.
SMALL_POOL = Setting(num_blocks=1100)
HEALTHY_SMALL = Hour("healthy", SMALL_POOL, Traffic(json_share=0.6, document_share=0.1))
RETRIES_FILL_IT = replace(
    HEALTHY_SMALL, cause="format", traffic=Traffic(rate_per_s=2.3, invalid=0.85, json_share=0.6, document_share=0.1)
)

# Another GPU, on which every latency is a fraction of an L4's.
A100 = Setting(cost_model=RooflineCostModel(HARDWARE["a100"], SHAPE))
DOCUMENTS = Traffic(rate_per_s=4.0, length_s=70.0, document_share=0.5)
HEALTHY_A100 = Hour("healthy", A100, DOCUMENTS)
BATCHING_A100 = Hour("batching", replace(A100, policy=PrefillFirstPolicy()), DOCUMENTS)

# Chunks four times as large, by choice, and twice the blocks: there a gap of half a second is as usual.
LARGE = Setting(policy=ChunkedPrefillPolicy(2048), num_blocks=5200)
LARGE_CHUNKS = Hour("healthy", LARGE, Traffic(rate_per_s=0.9, document_share=0.6))

OF_ITS_SERVICE = {
    **dict.fromkeys((HEALTHY, BUSY, KV, LONGER_ANSWERS, BATCHING, WHOLE_PROMPTS, RETRIEVAL, FEWER_NEEDLES), HEALTHY),
    **dict.fromkeys((FORMAT, MORE_INVALID), HEALTHY),
    **dict.fromkeys((HEALTHY_APART, TRANSFER, JITTER_ALONE), HEALTHY_APART),
    **dict.fromkeys((HEALTHY_SMALL, RETRIES_FILL_IT), HEALTHY_SMALL),
    LARGE_CHUNKS: LARGE_CHUNKS,
    **dict.fromkeys((HEALTHY_A100, BATCHING_A100), HEALTHY_A100),
}
