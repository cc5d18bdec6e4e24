"""Times against arithmetic by hand, against sums over tokens one by one, and against the simulator."""

import random
import statistics

import pytest

from tests.tools.capacity.plans import plan
from twophase.core.request import Request, SamplingParams
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_tools.capacity.config import Workload
from twophase_tools.capacity.workload_cost import WorkloadCost
from twophase_tools.simulate.cost_model import Assumptions, RooflineCostModel
from twophase_tools.simulate.hardware import Hardware
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.model_shapes import ModelShape
from twophase_tools.simulate.simulator import simulate
from twophase_tools.simulate.step_load import StepLoad

# As in tests/tools/simulate/test_cost_model.py: 1,152 weights in the layers, 80 in the output, 32 bytes of K/V a token.
TOY = ModelShape("toy", 8, 16, 2, 2, 1, 4, 10, True, "by hand")
TOY_GPU = Hardware("toy", 1000.0, 100.0, 1e5, 50.0, "by hand")
IDEAL = Assumptions(1, 1, schedule_s=2, update_s=3, overhead_per_chunk_s=0.25)


def toy_cost(prompt_tokens, output_tokens):
    model = RooflineCostModel(TOY_GPU, TOY, 1, IDEAL)
    return WorkloadCost(model, Workload(1.0, prompt_tokens, output_tokens))


@pytest.mark.parametrize("seed", range(40))
def test_chunks_token_by_token(seed):
    """The oracle counts the keys that each query of each chunk sees."""
    rng = random.Random(seed)
    length, room = rng.randint(1, 60), rng.randint(1, 20)
    cost = toy_cost(length, 5)
    prefill = cost.prefill(room)
    loads = []
    for start in range(0, length, room):
        queries = range(start, min(start + room, length))
        num_seen = sum(query + 1 for query in queries)
        loads.append(StepLoad(len(queries), int(queries[-1] == length - 1), 1, 0, num_seen, queries[-1] + 1))
    assert prefill.num_chunks == len(loads)
    assert prefill.last == loads[-1]
    assert prefill.total == StepLoad(*(sum(terms) for terms in zip(*loads, strict=True)))
    assert cost.mean_context == pytest.approx(statistics.mean(range(length + 1, length + 5)))


def test_littles_law_and_the_limits():
    found = plan(max_num_seqs=16)
    most = found.saturated
    # In the engine for one step of prefill and 249 decodes, all as long as a step is on average.
    assert most.num_requests == pytest.approx(16)
    assert most.requests_per_s == pytest.approx(16 / (250 * most.tpot_s))
    assert found.limited_by == "max_num_seqs"
    assert most.num_decodes == pytest.approx(16 * 249 / 250)
    small = plan(max_num_seqs=64, max_num_batched_tokens=64)
    # 1,249 tokens for each request, 64 in a step.
    assert small.saturated.num_decodes == pytest.approx(249 * 64 / 1249)
    assert small.limited_by == "max_num_batched_tokens"
    assert plan(max_num_seqs=64, chunk_size=64).limited_by == "chunk_size"
    crowded = plan(model="llama-3-70b", tensor_parallel_size=2, hardware="h100", workspace="0.1 GB")
    assert crowded.limited_by == "memory for K/V"
    assert crowded.saturated.num_requests == pytest.approx(crowded.at_mean.num_requests)
    assert plan(slo="{tpot_s: 100}").within_slo == plan().saturated


def test_absurd_sizes_take_no_time():
    huge = plan(
        max_model_len=10**9, chunk_size=1, max_num_seqs=1, workload="{rate: 1, prompt_tokens: 500, output_tokens: 1}"
    )
    assert huge.at_limit.num_requests == 0
    assert huge.alone.ttft_s > 0


# (prompt, output, requests per second, places, chunk): less than half of what the engine can take.
LOADS = [(1000, 100, 10, 256, 8192), (1000, 100, 4, 256, 512), (4000, 40, 2, 64, 8192)]


@pytest.mark.parametrize(("prompt", "output", "rate", "places", "chunk"), LOADS)
def test_against_the_simulator(prompt, output, rate, places, chunk):
    """The same roofline under the real scheduler, with requests that come as they like. The steady state is a mean
    over fluctuations that the simulation has, so it may be off by a tenth at moderate load; it mostly is by less."""
    found = plan(
        hardware="h100",
        max_model_len=8192,
        chunk_size=chunk,
        max_num_seqs=places,
        workload=f"{{rate: {rate}, prompt_tokens: {prompt}, output_tokens: {output}}}",
    )
    assert 0.05 < found.utilisation < 0.5
    config = found.config
    limits = {
        "num_blocks": found.memory.num_blocks,
        "block_size": config.block_size,
        "max_num_seqs": places,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_model_len": config.max_model_len,
    }
    rng, now_s, requests = random.Random(1), 0.0, []
    params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True)
    for number in range(240):
        now_s += rng.expovariate(rate)
        requests.append(Request(str(number), (number,) * prompt, params, arrival_s=now_s))
    records = simulate(requests, make_scheduler(limits, ChunkedPrefillPolicy(chunk)), found.cost.cost_model).records
    # Neither the start, when it is still filling, nor the end.
    steady = records[60:180]
    ttft_s = statistics.mean(record.token_times_s[0] - record.arrival_s for record in steady)
    tpot_s = statistics.mean((record.token_times_s[-1] - record.token_times_s[0]) / (output - 1) for record in steady)
    assert found.at_rate.ttft_s == pytest.approx(ttft_s, rel=0.1)
    assert found.at_rate.tpot_s == pytest.approx(tpot_s, rel=0.1)


def test_no_plan_is_beyond_arithmetic():
    """Values at the ends of what a file may say: all is computed."""
    slow = "{memory: 999999999 GB, flops_per_s: 1, bytes_per_s: 999999999}"
    extreme = {"hardware": slow, "workload": "{rate: 1e-9, prompt_tokens: 3000, output_tokens: 1}"}
    for efficiency in ("1e-11", "1"):
        found = plan(model="smollm2-135m", assumptions=f"{{compute_efficiency: {efficiency}}}", **extreme)
        assert found.saturated.ttft_s > 0
