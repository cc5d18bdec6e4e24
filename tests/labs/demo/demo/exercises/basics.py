"""Running means, and one exercise of every kind."""

import torch

from twophase_labs.machine.checks import Draw, compare, finite, fresh, reject, unchanged
from twophase_labs.machine.exercise import cases, exercise
from twophase_labs.machine.questions import Choice, Matching, Number

SHAPES = cases(shape=((1,), (5,), (2, 7)))


def naive_means(x: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(-1, x.shape[-1])
    rows = [[float(row[: i + 1].sum()) / (i + 1) for i in range(len(row))] for row in flat]
    return torch.tensor(rows).reshape(x.shape)


MEAN = exercise("1.1", "Running mean", "running_mean", points=3, minutes=5, lines=2, time_limit_s=8)
MEAN.objective = "means without starting afresh"
MEAN.hints = ("Look at the first position.", "Counting starts at one.", "arange(1, T + 1)")


@MEAN.check("returns one mean per value", *SHAPES)
def has_the_shape(answer, draw: Draw, shape):
    """The result has the input's shape."""
    x = draw.normal(*shape)
    compare(torch.zeros_like(answer.running_mean(x)), torch.zeros(shape))


@MEAN.check("matches a loop", *SHAPES)
def matches_a_loop(answer, draw: Draw, shape):
    """What is each total divided by, and along which axis?"""
    x = draw.normal(*shape)
    expected = naive_means(x)
    compare(answer.running_mean(x), expected, what="the mean", axes=("row", "position")[-len(shape) :])


@MEAN.check("leaves its inputs alone")
def leaves_inputs_alone(answer, draw: Draw):
    """Operations ending in _ write in place."""
    x = torch.ones(3, 4)  # equal to its running mean, so that returning it as it is would go unnoticed
    with unchanged(x=x):
        got = answer.running_mean(x)
    fresh(got, x=x)
    finite(got)
    y = draw.normal(3, 4)
    with unchanged(y=y):
        answer.running_mean(y)


ANSWER_1_2 = exercise("1.2", "Cost of one more", kind="choice", points=1, minutes=1)
ANSWER_1_2.objective = "cost"
ANSWER_1_2.question = Choice("abc", "b", {"a": "the total is kept, so nothing is added twice"})

CENTRED = exercise("1.3", "Centred", "centred", points=2, minutes=4, lines=2, uses=("1.1",), time_limit_s=8)
CENTRED.objective = "reuse"
CENTRED.hints = ("A mean.", "And a difference.", "Subtract, then scale:\n    mean = ...\n    return SCALE * ...")


@CENTRED.check("subtracts the mean", length=(1, 6))
def subtracts(answer, draw: Draw, length):
    """Subtract first, then scale."""
    x = draw.normal(length)
    expected = 2 * (x - naive_means(x))
    compare(answer.centred(x), expected, what="the centred value", axes=("position",))


GUESS_1_4 = exercise("1.4", "Additions", kind="prediction", points=1, minutes=1)
GUESS_1_4.objective = "growth"
GUESS_1_4.question = Number(lambda: sum(range(1, 101)), factor=1.5, unit="additions")

ANSWER_1_5 = exercise("1.5", "Which line does what", kind="matching", points=2, minutes=2)
ANSWER_1_5.objective = "reading"
ANSWER_1_5.question = Matching("abc", {"cumsum": "a", "div": "b"})

ANSWER_1_6 = exercise("1.6", "Bytes", kind="numeric", points=1, minutes=1)
ANSWER_1_6.objective = "bytes"
ANSWER_1_6.question = Number(lambda: 32 * 4, rel=0, unit="bytes")

ON_DEVICE = exercise("1.7", "On the GPU", "on_device", "kernel", points=1, minutes=1, needs=("gpu",))
ON_DEVICE.objective = "devices"


@ON_DEVICE.check("moves")
def is_on_the_device(answer, draw: Draw):
    """x.cuda()"""
    if answer.on_device(draw.normal(2)).device.type != "cuda":
        reject("the result is not on the GPU")


COUNTER = exercise("1.8", "A counter", "Counter", points=2, minutes=3, lines=2, time_limit_s=6)
COUNTER.objective = "state"


@COUNTER.check("counts up", start=(0, 5))
def counts(answer, draw: Draw, start):
    """Each step adds one."""
    counter = answer.Counter(start)
    for step in range(1, 4):
        compare(counter.step(), start + step, what=f"the value after step {step}")
