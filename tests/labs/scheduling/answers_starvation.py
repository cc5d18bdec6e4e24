"""Answers that prove the check of exercise 4.3."""

from twophase_labs.machine.bank import right, wrong

ENDS, BUDGET, DECODES = "finishes a prompt of any length", "keeps the budget", "gives every decode its token"
OVERTAKES, ROOM, NOTHING = "lets nothing overtake", "leaves no room unused", "plans no job for 0 tokens"

FORGETS_NEWCOMERS = """
def plan_in_chunks(running, waiting, budget):
    batch = []
    for job in running:
        num_tokens = min(job.num_to_compute, budget)
        if num_tokens:
            batch.append((job, num_tokens))
            budget -= num_tokens
    while waiting and budget > 0:
        job = waiting.popleft()
        running.append(job)
        batch.append((job, min(job.num_to_compute, budget)))
    return batch
"""
FOR_NOTHING = """
def plan_in_chunks(running, waiting, budget):
    batch = []
    for job in running:
        num_tokens = min(job.num_to_compute, budget)
        batch.append((job, num_tokens))
        budget -= num_tokens
    while waiting and budget > 0:
        job = waiting.popleft()
        running.append(job)
        batch.append((job, min(job.num_to_compute, budget)))
        budget -= batch[-1][1]
    return batch
"""
ONE_LOOP = """
def plan_in_chunks(running, waiting, budget):
    batch = []
    position = 0
    while budget > 0:
        if position == len(running):
            if not waiting:
                break
            running.append(waiting.popleft())
        job = running[position]
        batch.append((job, min(job.num_to_compute, budget)))
        budget -= batch[-1][1]
        position += 1
    return batch
"""
BY_LEFT = """
def plan_in_chunks(running, waiting, budget):
    left, batch = budget, []

    def give(job):
        nonlocal left
        chunk = job.num_to_compute if job.num_to_compute < left else left
        if chunk > 0:
            batch.append((job, chunk))
            left = left - chunk

    for job in tuple(running):
        give(job)
    while left > 0 and len(waiting) > 0:
        running += [waiting.popleft()]
        give(running[-1])
    return batch
"""

# fmt: off
BANKS = {
    "4.3": (
        wrong("waits until it fits", "budget > 0", "waiting[0].num_to_compute <= budget", by=ENDS),
        wrong("forgets to count newcomers", FORGETS_NEWCOMERS, by=BUDGET),
        wrong("newcomers before decodes", "for job in running:",
              "for job in sorted(running, key=lambda job: job.is_decoding):", by=DECODES),
        wrong("shortest first", "running.append(waiting.popleft())",
              "job = min(waiting, key=lambda job: job.num_prompt_tokens)\n        waiting.remove(job)\n        running.append(job)",
              by=OVERTAKES),
        wrong("at most 256 tokens a step", "batch = []", "batch, budget = ([], min(budget, 256))", by=ROOM),
        wrong("one newcomer at a time", "waiting and budget > 0", "waiting and budget > 0 and (len(batch) < 2)",
              by=ROOM),
        wrong("plans for nothing when the budget is used up", FOR_NOTHING, by=NOTHING),
        right("one loop", ONE_LOOP),
        right("with a helper", BY_LEFT),
    ),
}
