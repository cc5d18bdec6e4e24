"""What a cache loses that gives each request its slots in one piece."""

from twophase_labs.autoregression.arrivals import random_requests, replay
from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number

GUESS_1_12 = exercise("1.12", "How many requests are rejected?", kind="prediction", points=1, minutes=2)
GUESS_1_12.objective = "predict what reserving memory costs"
GUESS_1_12.hints = ("What is set aside is the limit, 16 to 40 slots, not what is written.",)
GUESS_1_12.question = Number(
    lambda: len(replay(random_requests(40, seed=5), 100).rejected),
    abs=3,
    unit="requests",
    hint="The limits are 28 slots on average, so three or four requests fill the cache.",
)
