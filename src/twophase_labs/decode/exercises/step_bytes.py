"""3.2 How close a step comes to the ceiling that its bytes set."""

from twophase_labs.decode.step_time import share_of_ceiling
from twophase_labs.machine.exercise import exercise
from twophase_labs.machine.questions import Number

GUESS_3_2 = exercise(
    "3.2", "How close to the ceiling?", kind="prediction", points=1, minutes=3, needs=("model",), time_limit_s=120
)
GUESS_3_2.objective = "use a bound as a prediction"
GUESS_3_2.hints = ("A step that did nothing but read would reach 100. What else does a step of one sequence do?",)
GUESS_3_2.question = Number(
    share_of_ceiling,
    factor=1.4,
    unit="%",
    hint="If reading were everything, 100. What does a step do besides: attention, sampling, Python?",
)
