"""Workloads are what they say, and the same everywhere."""

from twophase_tools.bench.workload import Workload, engine_workloads


def test_lengths_and_ids_are_in_range():
    single, ragged = engine_workloads(vocab_size=50).values()
    assert [len(prompt) for prompt in single.prompts] == [128]
    assert single.output_lens == (128,)
    assert len(ragged.prompts) == len(ragged.output_lens) == 32
    lens = [len(prompt) for prompt in ragged.prompts]
    assert min(lens) >= 16
    assert max(lens) <= 512
    assert max(lens) - min(lens) > 200
    assert min(ragged.output_lens) >= 16
    assert max(ragged.output_lens) <= 256
    assert {token for prompt in ragged.prompts for token in prompt} == set(range(50))


def test_the_seed_fixes_everything():
    assert engine_workloads(1000) == engine_workloads(1000)
    # Python's generator is the same on every platform and version; these sums would notice if that ended.
    ragged = engine_workloads(49152)["ragged"]
    assert (ragged.num_input_tokens, ragged.num_output_tokens) == (8900, 4112)


def test_counts():
    workload = Workload("two", ((1, 2, 3), (4,)), (14, 2))
    assert (workload.num_input_tokens, workload.num_output_tokens) == (4, 16)
    assert workload.num_blocks(16) == 2 + 1
