"""The planner's numbers by hand, and planted bugs that change them. Each check is given the mutated module itself, and calls nothing that would hide it."""

from dataclasses import replace
from importlib import import_module

import pytest

from tests.mutation import KillTable, Mutant
from tests.tools.capacity.plans import plan
from tests.tools.capacity.test_config import check_units
from tests.tools.capacity.test_engine import check_options
from tests.tools.capacity.test_times import IDEAL, TOY, TOY_GPU, toy_cost
from twophase_tools.capacity.config import Workload
from twophase_tools.load.slo import Slo
from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.model_shapes import MODELS, ModelShape
from twophase_tools.simulate.step_load import StepLoad

PACKAGE = "twophase_tools.capacity."


def check_memory(memory):
    def at_limit(**changes):
        config = plan(**changes).config
        table = memory.memory_table(config)
        return table, memory.fit(config, table, config.max_model_len)

    table, fits = at_limit(gpu_memory_utilization=1, workspace="0 GB")
    assert (fits.num_requests, fits.num_blocks, fits.num_bytes) == (119, 256, 512 * 2**20)
    table, _ = at_limit()
    assert (table.headroom_bytes, table.kv_bytes_per_token, table.block_bytes) == (8 * 10**9, 131_072, 2**21)
    places = plan().config.max_num_seqs
    assert table.workspace_bytes == 8192 * (3 * 4096 + 10_240 + 3 * 14336) * 2 + places * 16 * 128_256
    assert table.num_blocks == (72 * 10**9 - table.weight_bytes - table.workspace_bytes) // 2**21
    table, fits = at_limit(model="llama-3-70b", tensor_parallel_size=8)
    assert (table.kv_bytes_per_token, fits.num_bytes) == (327_680 // 8, 4096 * 327_680)
    layers = 80 * (2 * 8192 * 128 * (64 + 8) + 3 * 8192 * 28672)
    norms = (2 * 80 + 1) * 8192
    assert table.weight_bytes == 2 * (layers // 8 + 128256 * 8192 + 128256 * 8192 // 8 + norms)
    # Tied; 2 K/V heads of 64 on the fuller GPU with their 6 query heads; 48 units of 16 of the MLP's 1,536 rows.
    layers = 30 * (2 * 576 * 64 * (6 + 2) + 3 * 576 * 768)
    assert memory.weight_bytes(MODELS["smollm2-135m"], 2) == 2 * (layers + 49152 * 576 + 61 * 576)
    odd = replace(MODELS["smollm2-135m"], intermediate_size=1552)  # 97 units: 49 of them
    assert memory.weight_bytes(odd, 2) - memory.weight_bytes(MODELS["smollm2-135m"], 2) == 2 * 30 * 3 * 576 * 16
    assert at_limit(model="llama-3-70b")[0].num_blocks == 0
    assert at_limit(model="smollm2-135m", tensor_parallel_size=2)[0].kv_bytes_per_token == 15_360
    assert memory.blocks_of(20, 16) == 2
    assert [memory.workspace_bytes(TOY_TWO, n, 5, 100) for n in (1, 2)] == [17_040, 16_640]
    table, _ = at_limit(model="smollm2-135m", tensor_parallel_size=7)  # 49,152 rows are no multiple of 7
    step = 8192 * (3 * 576 + 64 * (2 * 2 + 2) + 3 * 224) * 2
    assert table.workspace_bytes == step + places * 16 * 49_152


TOY_TWO = ModelShape("toy", 8, 16, 2, 2, 2, 4, 10, True, "by hand")


def check_workload_cost(module):
    def cost(prompt_tokens, output_tokens):
        model = RooflineCostModel(TOY_GPU, TOY, 1, IDEAL)
        return module.WorkloadCost(model, Workload(1.0, prompt_tokens, output_tokens))

    prefill = cost(10, 3).prefill(4)
    assert (prefill.num_chunks, cost(8, 3).prefill(4).num_chunks) == (3, 2)
    assert prefill.full == StepLoad(8, 0, 2, 0, 36, 12)
    assert prefill.last == StepLoad(2, 1, 1, 0, 19, 10)
    assert cost(10, 3).mean_context == 11.5
    assert cost(10, 1).mean_context == 0
    assert cost(3, 2).ridge_batch == pytest.approx(10)
    host_s = 5.5
    assert cost(3, 2).step_s(1) == pytest.approx((2464 + 5 * 32) / 100 + host_s)
    load = StepLoad(4, 1, 1, 0, 10, 4)
    # Twice 4 prompt tokens beside a decode, bound by memory: keys 8 + 4 read, 9 written.
    assert cost(3, 2).step_s(1, load, 2) == pytest.approx((2464 + 21 * 32) / 100 + 5 + 3 * 0.5)
    assert cost(10, 3).prefill_s(prefill, 0) == pytest.approx((3 * 2464 + (12 + 10 + 10) * 32) / 100 + 3 * host_s)


def check_steady_state(module):
    config = plan(hardware="h100", max_model_len=8192).config
    cost = plan(hardware="h100").cost
    server = module.Server(cost, 8192, 256)
    alone, most, busy = server.alone(), server.saturated(), server.at_rate(10)
    assert most.num_requests == pytest.approx(256)
    assert most.requests_per_s == pytest.approx(256 / (250 * most.tpot_s))
    assert most.num_decodes == pytest.approx(256 * 249 / 250)
    assert module.Server(cost, 64, 64).saturated().num_decodes == pytest.approx(249 * 64 / 1249)
    assert server.at_rate(most.requests_per_s * 1.01) is None
    # Simulated with 2,000 requests, three times: TTFT 36.2 to 37.0 ms, TPOT 9.4 to 9.6 ms.
    assert busy.ttft_s == pytest.approx(0.0365, rel=0.03)
    assert busy.tpot_s == pytest.approx(0.0095, rel=0.025)
    # Hardly ever anybody else: a request finds itself, and nothing more.
    assert server.at_rate(1e-4).ttft_s == pytest.approx(alone.ttft_s, rel=1e-3)
    assert server.at_rate(1e-4).tpot_s == pytest.approx(alone.tpot_s, rel=1e-3)
    assert alone.tpot_s == pytest.approx(cost.step_s(1))
    assert server.within(Slo(tpot_s=0.02)).tpot_s == pytest.approx(0.02)
    assert server.within(Slo(ttft_s=0.001)) is None
    assert config.workload.prompt_tokens == 1000
    two_chunks = module.Server(toy_cost(100, 4), 60, 1).alone()
    assert two_chunks.ttft_s == pytest.approx(2 * 5.5 + (2 * (115_200 + 80) + 64 * 5050) / 1000 + 32)


def mutants(module, *replacements):
    return [Mutant(name, PACKAGE + module, old, new) for name, old, new in replacements]


CHECKS = {
    "units": check_units,
    "memory": check_memory,
    "workload_cost": check_workload_cost,
    "steady_state": check_steady_state,
    "engine": check_options,
}

MUTANTS = [
    *mutants(
        "units",
        ("a GB is a GiB", "GB = 10**9", "GB = 2**30"),
        ("sizes in floats", "int(Fraction(match[1]) * BYTES", "int(float(match[1])) * int(BYTES"),
        ("both the same", "{num_bytes / GIB:,.2f} GiB", "{num_bytes / GB:,.2f} GiB"),
    ),
    *mutants(
        "memory",
        ("heads rounded down", "return -(-count // (unit * num_gpus))", "return (count // (unit * num_gpus))"),
        ("query heads dealt round", "if num_gpus <= shape.num_kv_heads else", "if False else"),
        ("rows of the MLP dealt round", "1 if intermediate_size % MLP_UNIT else MLP_UNIT", "1"),
        ("norms are shared", " + norms * shape.value_bytes", ""),
        ("each GPU has all weights", "weight_bytes=weight_bytes(config.shape, n)", "weight_bytes=weight_bytes(config.shape, 1)"),
        ("each GPU has all K/V", "kv_bytes_per_token=shape.kv_bytes_per_token // n", "kv_bytes_per_token=shape.kv_bytes_per_token"),
        ("embeddings are shared", "even.memory_bytes_on(num_gpus) +", "even.memory_bytes_on(1) // num_gpus +"),
        ("no headroom", "headroom_bytes=total - int(total * config.gpu_memory_utilization)", "headroom_bytes=0"),
        ("workspace forgotten", " - self.weight_bytes - self.workspace_bytes", " - self.weight_bytes"),
        ("negative blocks", "return max(0, self.pool_bytes // self.block_bytes)", "return self.pool_bytes // self.block_bytes"),
        ("each GPU computes the whole MLP", "intermediate_size=shape.intermediate_size // num_gpus", "intermediate_size=shape.intermediate_size"),
        ("each GPU computes all heads", "num_heads=shape.num_heads // num_gpus", "num_heads=shape.num_heads"),
        ("logits of a rounded vocabulary", "vocab_size=config.shape.vocab_size)  #", "vocab_size=shape.vocab_size)  #"),
        ("half blocks", "return -(-num_tokens // block_size)", "return num_tokens // block_size"),
    ),
    *mutants(
        "workload_cost",
        ("first token decoded", "return self.workload.output_tokens - 1", "return self.workload.output_tokens"),
        ("all chunks full", "num_full = (length - 1) // room", "num_full = length // room"),
        ("every chunk samples", "            num_samples=0,", "            num_samples=num_full,"),
        ("starts one short", "num_full * (num_full + 1) // 2", "num_full * (num_full - 1) // 2"),
        ("the last chunk only", "return prefill.num_full * self.step_s(num_decodes, prefill.full, 1 / prefill.num_full) + last_s", "return last_s"),
        ("full chunks all at once", "prefill.full, 1 / prefill.num_full)", "prefill.full)"),
        ("no decodes beside", "num_tokens=num_decodes + weight", "num_tokens=weight"),
        ("prompts not weighed", "prefill_context=weight * more", "prefill_context=more"),
        ("contexts of one", "decode_context=num_decodes * self.mean_context", "decode_context=self.mean_context * 0"),
        ("ridge without the head", "StepLoad(1, 1, 1, 0, 0, 0))", "StepLoad(1, 0, 1, 0, 0, 0))"),
    ),
    *mutants(
        "steady_state",
        ("requests without prefill", "lambda k: k * (self._num_chunks(k) + num_decodes) <=", "lambda k: k * num_decodes <="),
        ("tokens of outputs only", "self.step_tokens / (workload.prompt_tokens + num_decodes)", "self.step_tokens / num_decodes"),
        ("prompts always in company", "share = min(1.0, k * prefill.num_chunks)", "share = 1.0"),
        ("prompts for nothing", "step_s = (1 - share) * plain_s + share * mixed_s", "step_s = plain_s"),
        ("nobody sees himself", "seen = min(num_decodes + 1,", "seen = min(num_decodes,"),
        ("steps met at their end", "ttft_s=met_s / 2 + ", "ttft_s="),
        ("steps met at their start", "ttft_s=met_s / 2 + ", "ttft_s=met_s + "),
        ("prompts alone in their step", " + rate * met_s * prompt_s", ""),
        ("an empty engine is busy", "-math.expm1(-num_requests) * step_s", "step_s"),
        ("any rate will do", "if self._at(most, most).requests_per_s < requests_per_s:", "if False:"),
        ("promises do not matter", "self._at(k, most).keeps(slo)", "True"),
        ("the lower half", "(middle, high) if is_fine(middle) else (low, middle)", "(low, middle) if is_fine(middle) else (middle, high)"),
    ),
    *mutants(
        "engine",
        ("places of memory", "{name: getattr(config, name) for name in SAME}", "{name: getattr(config, name) for name in SAME} | {\"max_num_seqs\": plan.max_requests}"),
        ("one block less", "num_kv_blocks=plan.memory.num_blocks,", "num_kv_blocks=plan.memory.num_blocks - 1,"),
    ),
]  # fmt: skip


@pytest.mark.parametrize("name", CHECKS)
def test_by_hand(name):
    CHECKS[name](import_module(PACKAGE + name))


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_is_killed(mutant):
    KillTable.record(mutant, CHECKS[mutant.module.removeprefix(PACKAGE)])
