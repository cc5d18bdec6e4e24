"""Designs for three services: what is refused, and that the defaults miss each target."""

import pytest

from twophase.core.errors import ConfigError
from twophase_labs.your_engine.services import SERVICES, outcome


@pytest.mark.full  # three simulations; the lab's own check runs as many in `make test-full`
@pytest.mark.parametrize("name", SERVICES)
def test_the_defaults_miss_each_target(name):
    assert not outcome(name, {}).is_met


@pytest.mark.parametrize(
    ("name", "design", "said"),
    [
        ("chats", {}, "'chats' is none of them"),
        ("chat", {"max_batch_size": 8}, "'max_batch_size' is none of them"),
        ("chat", {"max_num_seqs": 9000}, "max_num_seqs"),
        ("chat", {"max_num_seqs": 10**6, "max_num_batched_tokens": 10**7}, "workspace of 10,000,000 tokens"),
        ("chat", {"enable_prefix_caching": 1}, "True or False"),
        ("chat", {"quantization": "FP8"}, "quantization must be one of"),
        ("retrieval", {"quantization": "int4"}, "refuses weights in int4"),
        ("batch", {"kv_cache_dtype": "int2"}, "kv_cache_dtype"),
    ],
)
def test_designs_that_are_refused(name, design, said):
    with pytest.raises(ConfigError, match=said):
        outcome(name, design)
