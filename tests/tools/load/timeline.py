"""A run made by hand, small enough to compute every number on paper.

Three requests, two places, ten blocks of four slots; steps of schedule 1, run 8 and update 1 (think of milliseconds):

    step 0   [ 0, 10)   A's prompt, all 8 tokens                                   A: token 0 at 10
    step 1   [10, 20)   A decodes; B's prompt, the first 3 of 5 tokens             A: token 1 at 20
    step 2   [20, 30)   A decodes; B's prompt, the last 2 tokens                   A: token 2 at 30; B: token 0 at 30
    step 3   [40, 50)   B decodes, A is passed over (and 10 nothing happens)       B: token 1 at 50, B ends
    step 4   [50, 60)   A loses its blocks; C's prompt of 4 tokens, 2 from cache   C: token 0 at 60, C ends
    step 5   [60, 70)   A again, 8 + 2 tokens                                      A: token 3 at 70, A ends

A arrives at 0, B at 4, C at 12. D arrives at 15 and is aborted at 65, never scheduled.
"""

from twophase.core.plan import StepTrace
from twophase_tools.load.records import RequestRecord

BLOCK_SIZE = 4

A = RequestRecord("A", 0, 1, (10, 20, 30, 70), 70, num_prompt_tokens=8, num_preemptions=1, finish_reason="length")
B = RequestRecord("B", 4, 11, (30, 50), 50, num_prompt_tokens=5, finish_reason="stop")
C = RequestRecord("C", 12, 51, (60,), 60, num_prompt_tokens=4, num_cached_tokens=2, finish_reason="length")
D = RequestRecord("D", 15, None, (), 65, num_prompt_tokens=6, finish_reason="abort")
RECORDS = (A, B, C, D)


def step(
    number, start_s, chunks, num_decodes, in_use, slots, *, cached=0, waiting=0, running=1, preempted=(), finished=()
):
    return StepTrace(
        step=number,
        start_s=float(start_s),
        schedule_s=1.0,
        run_s=8.0,
        update_s=1.0,
        chunks=tuple(chunks),
        num_decodes=num_decodes,
        preempted=tuple(preempted),
        finished=tuple(finished),
        num_waiting=waiting,
        num_running=running,
        blocks_in_use=in_use,
        blocks_cached=cached,
        blocks_free=10 - in_use - cached,
        slots_in_use=slots,
    )


STEPS = (
    step(0, 0, [("A", 0, 0, 8)], 0, 2, 8, waiting=1),
    step(1, 10, [("A", 0, 8, 1), ("B", 0, 0, 3)], 1, 5, 14, waiting=2, running=2),
    step(2, 20, [("A", 0, 9, 1), ("B", 0, 3, 2)], 1, 5, 15, waiting=2, running=2),
    step(3, 40, [("B", 0, 5, 1)], 1, 3, 10, waiting=2, finished=[("B", 0)]),
    step(4, 50, [("C", 0, 2, 2)], 0, 0, 0, cached=1, waiting=2, running=0, preempted=[("A", 0)], finished=[("C", 0)]),
    step(5, 60, [("A", 0, 0, 10)], 0, 0, 0, cached=2, waiting=0, running=0, finished=[("A", 0)]),
)
