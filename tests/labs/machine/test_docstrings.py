"""The examples in the docstrings of whole functions and classes, run on the solved cells."""

import doctest

import pytest

from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference

WHOLE = {
    "03": ("decode_step", "BlockPool", "BlockTable", "paged_attention", "merge_splits", "quantise", "store_mixed"),
    "04": ("iteration_level", "plan_in_chunks", "DecodesFirst", "latencies", "plan_decodes", "Challenger"),
    "05": ("recover", "ngram_draft", "verify", "draft_with_model", "allowed_ids", "kept_blocks", "heavy_hitters"),
}


@pytest.mark.parametrize("lab", WHOLE)
def test_examples_hold(lab):
    solved = run_reference(Workbook.find().lab(lab))
    for name in WHOLE[lab]:
        examples = doctest.DocTestParser().get_doctest(solved[name].__doc__, dict(solved), name, None, None)
        assert len(examples.examples) >= 2
        told = []
        result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples, out=told.append)
        assert result.failed == 0, "".join(told)
