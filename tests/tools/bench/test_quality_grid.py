"""Weights that were rounded to 4 bits before are told from weights that were not."""

import pytest

from tests.model.conftest import smollm2_folder  # noqa: F401  (a fixture)
from tests.model.tiny import make_folder
from tests.mutation import KillTable, Mutant
from tests.tools.bench.quality_weights import rounded_folder
from twophase import LLM
from twophase_tools.bench import quality_grid


def weights_of(folder, dtype="float32"):
    options = {"num_kv_blocks": 8, "max_num_seqs": 1, "skip_tokenizer_init": True}
    return LLM(folder, device="cpu", attention_backend="torch", dtype=dtype, **options).model.weights


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Weights of 4 and of 5 bits in groups of 32, in all layers and in all but one; biases everywhere."""
    root = tmp_path_factory.mktemp("rounded")
    sizes = {"hidden_size": 64, "head_dim": 16, "num_attention_heads": 4, "intermediate_size": 96}
    plain, _ = make_folder("llama-biases", root / "plain", **sizes)
    rounded = {bits: rounded_folder(plain, root / f"{bits}", bits, group=32) for bits in (4, 5)}
    some = rounded_folder(plain, root / "some", 4, lambda name: ".layers.1.self_attn.o_proj" not in name, group=32)
    return {"plain": plain, "some": some} | rounded


def check_all(module, folders) -> None:
    for dtype in ("float32", "bfloat16"):
        found = {name: module.was_rounded(weights_of(folder, dtype)) for name, folder in folders.items()}
        assert found == {"plain": False, "some": False, 4: True, 5: False}, dtype


def test_four_bits_are_told_from_more(folders):
    check_all(quality_grid, folders)


# name, old, new
MUTANTS = [
    ("one layer is enough", "return all(_has_few_values", "return any(_has_few_values"),
    ("one group is enough", "(num_values <= MOST_VALUES).all()", "(num_values <= MOST_VALUES).any()"),
    ("a value more or less", "1 + (ranked.diff", "2 + (ranked.diff"),
    ("neighbours are in no order", ".sort(dim=0).values", ""),
    ("of two groups at once", "[:GROUP]", "[: 2 * GROUP]"),
]  # fmt: skip


@pytest.mark.mutants
@pytest.mark.parametrize(
    "mutant", [Mutant(n, quality_grid.__name__, *row) for n, *row in MUTANTS], ids=lambda m: m.name
)
def test_mutants_are_killed(mutant, folders):
    KillTable.record(mutant, lambda module: check_all(module, folders))


@pytest.mark.full
def test_the_default_model_was_rounded(smollm2_folder):  # noqa: F811
    """Its package has it in Q4_1, groups of 32 with a minimum."""
    assert quality_grid.was_rounded(weights_of(smollm2_folder))
