"""Answers that prove the check of exercise 4.3."""

from tests.labs.scheduling.whole import opened_all
from twophase_labs.machine.exercise import Bank, Right, Wrong

ENDS, BEHIND, BUDGET, DECODES, OVERTAKES, ROOM, NOTHING = (
    "finishes a prompt of any length",
    "serves those behind it",
    "keeps the budget",
    "gives every decode its token",
    "lets nothing overtake",
    "leaves no room unused",
    "plans no job for 0 tokens",
)
FAMOUS = """
def plan_in_chunks(running, waiting, budget):
    batch = []
    for job in running:
        batch.append((job, 1))
        budget -= 1
    while waiting and waiting[0].num_prompt_tokens <= budget:
        job = waiting.popleft()
        running.append(job)
        batch.append((job, job.num_prompt_tokens))
        budget -= job.num_prompt_tokens
    return batch
"""
SKIPS_THE_HEAD = """
def plan_in_chunks(running, waiting, budget):
    batch = []
    for job in running:
        num_tokens = min(job.num_to_compute, budget)
        batch.append((job, num_tokens))
        budget -= num_tokens
    for job in list(waiting):
        if job.num_prompt_tokens <= budget:
            waiting.remove(job)
            running.append(job)
            batch.append((job, job.num_prompt_tokens))
            budget -= job.num_prompt_tokens
    return batch
"""
SHORTEST_FIRST = """
def plan_in_chunks(running, waiting, budget):
    for job in sorted(waiting, key=lambda job: job.num_prompt_tokens):
        if budget > len(running):
            waiting.remove(job)
            running.append(job)
    running.sort(key=lambda job: not job.is_decoding)
    batch = []
    for job in running:
        num_tokens = min(job.num_to_compute, budget)
        if num_tokens:
            batch.append((job, num_tokens))
            budget -= num_tokens
    return batch
"""
TOO_LONG_ALONE = """
def plan_in_chunks(running, waiting, budget):
    batch = []
    for job in running:
        batch.append((job, job.num_to_compute))
        budget -= job.num_to_compute
    while waiting and (waiting[0].num_prompt_tokens <= budget or not batch):
        job = waiting.popleft()
        running.append(job)
        batch.append((job, job.num_prompt_tokens))
        budget -= job.num_prompt_tokens
    return batch
"""
WHOLE_OR_ALONE = """
def plan_in_chunks(running, waiting, budget):
    batch = []
    for job in running:
        num_tokens = min(job.num_to_compute, budget)
        if num_tokens:
            batch.append((job, num_tokens))
            budget -= num_tokens
    while waiting and budget and (waiting[0].num_prompt_tokens <= budget or not running):
        job = waiting.popleft()
        running.append(job)
        num_tokens = min(job.num_to_compute, budget)
        batch.append((job, num_tokens))
        budget -= num_tokens
    return batch
"""
NEWCOMERS_FIRST = """
def plan_in_chunks(running, waiting, budget):
    batch = []
    prefills = [job for job in running if not job.is_decoding]
    for job in prefills + list(waiting):
        if budget:
            if job in waiting:
                waiting.remove(job)
                running.append(job)
            batch.append((job, min(job.num_to_compute, budget)))
            budget -= batch[-1][1]
    for job in running:
        if budget and job not in [other for other, _ in batch]:
            batch.append((job, min(1, budget)))
            budget -= 1
    return batch
"""
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
ADMITS_FIRST = """
def plan_in_chunks(running, waiting, budget):
    left = budget - sum(job.num_to_compute for job in running)
    while waiting and left > 0:
        running.append(waiting.popleft())
        left -= running[-1].num_to_compute
    batch = []
    for job in running:
        chunk = min(budget, job.num_to_compute)
        budget -= chunk
        if chunk > 0:
            batch.append([job, chunk])
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

BANKS = {
    "4.3": Bank(
        wrong=(
            Wrong("the famous one", FAMOUS, ENDS),
            Wrong("skips the head", SKIPS_THE_HEAD, ENDS),
            Wrong("one token at a time for those who run", {1: "1"}, ROOM),
            Wrong("all that a job has, at once", {1: "job.num_to_compute"}, BUDGET),
            Wrong("begins the whole prompt", {3: "job.num_to_compute"}, BUDGET),
            Wrong("half of what is left", {3: "min(job.num_to_compute, budget // 2)"}, ENDS),
            Wrong("forgets to count newcomers", FORGETS_NEWCOMERS, BUDGET),
            Wrong("waits until it fits", {2: "waiting[0].num_to_compute <= budget"}, ENDS),
            Wrong("one newcomer at a time", {2: "budget > 0 and len(batch) < 2"}, ROOM),
            Wrong("lets too long ones through whole", TOO_LONG_ALONE, BUDGET),
            Wrong("chunks for one that is alone", WHOLE_OR_ALONE, ROOM),
            Wrong("plans for nothing when the budget is used up", FOR_NOTHING, NOTHING),
            Wrong("shortest first", SHORTEST_FIRST, OVERTAKES),
            Wrong("newcomers before decodes", NEWCOMERS_FIRST, DECODES),
        ),
        right=(
            Right("one loop", ONE_LOOP),
            Right("with a helper", BY_LEFT),
            Right("admits first, then plans all", ADMITS_FIRST),
        ),
    ),
}

BANKS = opened_all(BANKS)
