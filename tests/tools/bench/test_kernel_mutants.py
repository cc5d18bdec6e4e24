"""Contenders that do other work than ours: the comparison before the clock must notice each."""

import pytest
import torch

from tests.mutation import KillTable, Mutant
from twophase_tools.bench.kernel_cases import QUICK
from twophase_tools.bench.kernels import measure_case

pytest.importorskip("triton", reason="not run here: triton has Linux wheels only")
if torch.cuda.is_available():
    pytest.skip("not run here: about the interpreter", allow_module_level=True)

CASES, RIVALS = "twophase_tools.bench.kernel_cases", "twophase_tools.bench.kernel_rivals"
CPU = torch.device("cpu")


def no_problems(cases):
    for case in cases:
        problems = list(measure_case(case, None).problems)
        assert problems == [], problems[0]


def check_attention(module):
    table = module.CaseTable(QUICK, torch.float32, CPU, may_compile=False)
    no_problems(
        [
            table.decode((48, 48), "even"),
            table.decode((33, 5), "ragged"),
            table.attention(((16, 16),), "whole"),
            table.attention(((8, 40), (1, 23)), "chunks"),
            table.attention(((5, 48),) * 2, "verify"),
        ]
    )


def check_quantised(module):
    table = module.CaseTable(QUICK, torch.float32, CPU, may_compile=False)
    no_problems([table.decode((20, 20), "", "int8"), table.rope_kv_write(8, "int8")])


def check_rows(module):
    table = module.CaseTable(QUICK, torch.float32, CPU, may_compile=False)
    no_problems([table.rope_kv_write(8, "none"), table.rmsnorm_residual(8), table.silu_mul(8)])


MUTANTS = [
    (RIVALS, check_attention, "flex sees a key more", "(num_keys - num_queries) >= key", "(num_keys - num_queries) + 1 >= key"),
    (RIVALS, check_attention, "sdpa's mask sees a key less", "tril(num_keys - num_queries)", "tril(num_keys - num_queries - 1)"),
    (RIVALS, check_attention, "sdpa's prompts not causal", "1 < num_queries == num_keys", "False"),
    (RIVALS, check_attention, "sdpa without the scale", '{"scale": scale,', '{"scale": 1.0,'),
    (RIVALS, check_attention, "flex without the scale", "block_mask=mask, scale=scale", "block_mask=mask, scale=1.0"),
    (RIVALS, check_attention, "flex reads V for K", "q, keys, values, block_mask", "q, values, values, block_mask"),
    (RIVALS, check_attention, "heads before tokens", "out.transpose(1, 2).flatten(0, 1)", "out.flatten(0, 1).reshape(-1, *out.shape[1::2])"),
    (CASES, check_attention, "the rivals' pages in another order", "used = tables[:, : seq_lens[0] // sizes.page]", "used = tables.flip(0)[:, : seq_lens[0] // sizes.page]"),
    (CASES, check_attention, "another sequence's table", "paged_attention_reference(*paged, **options)", "paged_attention_reference(*paged[:3], tables.roll(1, 0), *paged[4:], **options)"),
    (CASES, check_quantised, "codes read by other scales", "paged_attention_reference(*paged, **options)", "paged_attention_reference(*paged, **(options | {'k_scale': scales['v_scale']}))"),
    (CASES, check_quantised, "a reference that writes nothing", "writer(rope_kv_write_reference, is_timed=False)", "writer(lambda *args, **scales: args[0], is_timed=False)"),
    (CASES, check_rows, "V not written", "    v[blocks, :, offsets] = new_v", "    pass"),
    (CASES, check_rows, "K not rotated", "_index_put(rotated_k, new_v", "_index_put(new_k, new_v"),
    (CASES, check_rows, "Q not rotated", "return q  # returned", "return new_q  # returned"),
    (CASES, check_rows, "the written K not looked at", "lambda q: (q, k, v))", "lambda q: (q, v, v))"),
    (CASES, check_rows, "no residual added", "total = x + residual", "total = x"),
    (CASES, check_rows, "the new residual left out", "weight, 1e-5), total", "weight, 1e-5), x"),
    (CASES, check_rows, "gate and up exchanged", "F.silu(gate_up[:, :width]) * gate_up[:, width:]", "F.silu(gate_up[:, width:]) * gate_up[:, :width]"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("check", "mutant"),
    [
        pytest.param(check, Mutant(name, module, old, new, CASES if module == RIVALS else None), id=name)
        for module, check, name, old, new in MUTANTS
    ],
)
def test_mutants_are_killed(check, mutant):
    KillTable.record(mutant, check)
