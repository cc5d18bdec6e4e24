"""The engine of a learner's parts: each is asked, so that none could go unseen behind the engine's own."""

import pytest

from twophase_labs.machine.own_parts import own_parts
from twophase_labs.your_engine import engine

# The type hooks of these tests stand between @triton.jit and the labs' kernels, so torch attends here.
KERNELS = {"own_write", "own_prefill", "paged_decode_split_kernel", "merge_splits"}


@pytest.mark.full  # the references of four labs, and a model
def test_each_part_is_asked(tmp_path):
    asked = set()

    def watched(name, part):
        def call(*args, **options):
            asked.add(name)
            return part(*args, **options)

        return call

    mine = own_parts(*engine.NAMES, folder=tmp_path)
    watching = {name: watched(name, part) for name, part in mine.items()}
    engine.serve(engine.open_engine(watching, without="kernels"), engine.workload()[:2])
    assert asked - {"token_mask"} == set(engine.NAMES) - KERNELS
