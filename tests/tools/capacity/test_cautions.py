"""Every warning: a plan that earns it and no other grave one, its number, and a neighbour that does not."""

import pytest

from tests.tools.capacity.plans import plan
from twophase_tools.capacity.cautions import RULES, cautions_of
from twophase_tools.capacity.config import parse_config
from twophase_tools.capacity.plan import Plan

SHORT = "{rate: 20, prompt_tokens: 64, output_tokens: 64}"
MODEST = {"max_num_seqs": 64}


def load(rate, prompt=1000, output=250):
    return f"{{rate: {rate}, prompt_tokens: {prompt}, output_tokens: {output}}}"


# name, the plan that earns it, (value, limit), words of the reason, what to change for it to go away
CASES = [
    ("does-not-fit", {"model": "llama-3-70b", "workspace": "0.1 GB"}, (None, 72e9), "tensor_parallel_size 4 would do", {"tensor_parallel_size": 4}),
    ("does-not-fit", {"workspace": "80 GB"}, (96.06e9, 72e9), "96.06 GB (89.46 GiB) of a GPU, and 90% of it are 72.00 GB (67.06 GiB) on each of 1; no number of GPUs would do", {"workspace": "1 GB"}),
    ("context-does-not-fit", {"max_model_len": 10**6}, (62500, None), "one request of 1,000,000 tokens takes 62,500 blocks", {"max_model_len": 10**5}),
    ("uneven-split", {"model": "smollm2-135m", "tensor_parallel_size": 2}, (3, 2), "3 K/V heads cannot be shared evenly by 2 GPUs: the fullest has 2, so that all together cost as 4 would", {"tensor_parallel_size": 3}),
    ("uneven-split", {"model": "smollm2-135m", "tensor_parallel_size": 9}, (3, 9), "the fullest has 1, so that all together cost as 9", {"tensor_parallel_size": 1}),
    ("overloaded", {"workload": load(40)}, (40, None), "limited by max_num_seqs: utilisation", {"workload": load(2)}),
    ("ttft-out-of-reach", {"slo": "{ttft_s: 0.01}"}, (None, 0.01), "a prompt of 1,000 tokens takes", {"slo": "{ttft_s: 1}"}),
    ("tpot-out-of-reach", {"slo": "{tpot_s: 0.001}"}, (None, 0.001), "at batch 1, and 0.001 s are promised", {"slo": "{tpot_s: 1}"}),
    ("promise-missed", {"slo": "{tpot_s: 0.012}", "workload": load(4)}, (4, None), "with TPOT <= 0.012 s promised; up to", {"workload": load(0.1)}),
    ("places-beyond-memory", {"hardware": "{memory: 24 GB, flops_per_s: 165e12, bytes_per_s: 1e12}"}, (256, 23), "memory holds 23 of 1,250 tokens", {"max_num_seqs": 26}),
    ("beyond-ridge", {"workload": SHORT, "max_num_seqs": 1024}, (1024, None), "more of them make every step longer", {"max_num_seqs": 32}),
    ("chunk-beyond-budget", {"chunk_size": 9000}, (9000, 8192), "a chunk of 9,000 tokens never fits into a step of 8,192", {"chunk_size": 8192}),
    ("chunk-below-batch", {"chunk_size": 256}, (256, 256), "no room for a prefill", {"chunk_size": 257}),
    ("window-beyond-context", {"eviction": "{window: 4092, sinks: 4}"}, (4096, 4096), "4,092 tokens of window and 4 sinks are kept of at most 4,096: nothing is ever freed", {"eviction": "{window: 4091, sinks: 4}"}),
    ("waiting-for-links", {"model": "llama-3-8b", "tensor_parallel_size": 8, "assumptions": "{all_reduce_latency_s: 50e-6}"}, (None, 0.5), "all-reduces take", {"assumptions": "{all_reduce_latency_s: 1e-6}"}),
    ("peak-of-another-dtype", {"dtype": "float32"}, (4, 2), "312 TFLOP/s are the peak in bfloat16", {"dtype": "float16"}),
]  # fmt: skip


def named(found):
    return {caution.name: caution for caution in cautions_of(found)}


@pytest.mark.parametrize(("name", "changes", "numbers", "words", "cure"), CASES, ids=lambda value: str(value)[:30])
def test_a_warning(name, changes, numbers, words, cure):
    found = plan(**changes)
    caution = named(found)[name]
    assert words in caution.reason
    for number, expected in zip((caution.value, caution.limit), numbers, strict=True):
        assert expected is None or number == pytest.approx(expected, rel=1e-3)
    assert name not in named(plan(**(changes | cure)))


def test_crowded_is_near_the_limit():
    most = plan(**MODEST).saturated.requests_per_s
    assert "crowded" not in named(plan(**MODEST, workload=load(most * 0.79)))
    crowded = named(plan(**MODEST, workload=load(most * 0.81)))["crowded"]
    assert crowded.value == pytest.approx(0.81)
    over = named(plan(**MODEST, workload=load(most * 1.01)))
    assert "crowded" not in over
    # Two engines at 80 % take 1.6 times as much as one can.
    assert "2 such engines" in over["overloaded"].reason
    assert over["overloaded"].limit == pytest.approx(most)


def test_what_is_impossible_is_not_also_missed():
    assert "promise-missed" not in named(plan(slo="{tpot_s: 0.001}"))


def test_blocks_that_are_never_read(tmp_path):
    from tests.model.tiny import make_folder

    folder, _ = make_folder("mistral", tmp_path)
    changes = {"model": folder, "max_model_len": 64, "workload": load(1, 8, 8)}
    kept, freed = plan(**changes, eviction="none"), plan(**changes)
    caution = named(kept)["blocks-never-read"]
    assert (caution.value, caution.limit) == (64, 12)
    assert "`eviction: auto` frees" in caution.reason
    for same in (freed, plan(**changes, eviction="auto"), plan(**changes, eviction="{window: 12}")):
        assert "blocks-never-read" not in named(same)
        assert same.config.eviction.window == 12
    # Keys beyond the model's window are not read, whatever the cache keeps.
    assert kept.cost.mean_context == freed.cost.mean_context


def test_a_calm_plan_has_none():
    assert cautions_of(plan(**MODEST)) == []


def test_every_rule_is_tested():
    tested = {case[0] for case in CASES} | {"crowded", "blocks-never-read"}
    assert tested == {rule.__name__.replace("_", "-") for rule in RULES}


def test_what_does_not_fit_has_no_times():
    found = plan(model="llama-3-70b")
    assert found.memory.num_blocks == 0
    assert found.memory.pool_bytes < 0
    assert (found.alone, found.at_rate, found.saturated, found.within_slo) == (None,) * 4
    assert (found.utilisation, found.limited_by, found.max_requests) == (None, None, 0)
    assert [caution.name for caution in cautions_of(found)] == ["does-not-fit"]


def test_the_number_of_gpus_that_would_do_does():
    """Two have room for the weights, and not for one request of 8,192 tokens: 4 are named."""
    small = {"workspace": "0.1 GB"}
    found = plan(model="llama-3-70b", max_model_len=8192, **small)
    assert named(found)["does-not-fit"].key == "tensor_parallel_size"
    assert "context-does-not-fit" in named(
        plan(model="llama-3-70b", max_model_len=8192, tensor_parallel_size=2, **small)
    )
    assert named(plan(model="llama-3-70b", max_model_len=8192, tensor_parallel_size=4, max_num_seqs=64)) == {}


def test_lines():
    source = "model: llama-3-70b\nmax_model_len: 4096\nworkload: {rate: 1, prompt_tokens: 9, output_tokens: 9}\n\nhardware: a100\nworkspace: 90 GB\n"
    found = Plan(parse_config(source))
    assert found.config.lines["hardware"] == 5
    assert named(found)["does-not-fit"].key == "hardware"
