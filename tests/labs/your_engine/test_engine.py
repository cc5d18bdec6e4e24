"""The engine of a learner's parts: each is asked, so that none could go unseen behind the engine's own."""

import pytest

from twophase_labs.machine.kernels import are_compiled
from twophase_labs.machine.own_parts import own_parts
from twophase_labs.your_engine import engine

KERNELS = {"own_write", "own_prefill", "merge_splits"}
LAUNCHED = "paged_decode_split_kernel"  # a kernel is no function that could be watched; `merge_splits` follows it


@pytest.mark.full  # the references of four labs, and a model
def test_each_part_is_asked(tmp_path):
    asked = set()

    def watched(name, part):
        def call(*args, **options):
            asked.add(name)
            return part(*args, **options)

        return call

    mine = own_parts(*engine.NAMES, folder=tmp_path)
    watching = {name: part if name == LAUNCHED else watched(name, part) for name, part in mine.items()}
    engine.serve(engine.open_engine(watching), engine.workload()[:2])
    assert asked == set(engine.NAMES) - {LAUNCHED} - (set() if are_compiled() else KERNELS)
