"""Running means, and one exercise of every kind."""

import torch

from twophase_labs.machine.checks import Draw, compare, finite, fresh, reject, unchanged
from twophase_labs.machine.exercise import Exercise, Property
from twophase_labs.machine.questions import Choice, Matching, Number


def naive_means(x: torch.Tensor) -> torch.Tensor:
    flat = x.reshape(-1, x.shape[-1])
    rows = [[float(row[: i + 1].sum()) / (i + 1) for i in range(len(row))] for row in flat]
    return torch.tensor(rows).reshape(x.shape)


def has_the_shape(answer, draw: Draw, shape):
    x = draw.normal(*shape)
    compare(torch.zeros_like(answer.running_mean(x)), torch.zeros(shape))


def matches_a_loop(answer, draw: Draw, shape):
    x = draw.normal(*shape)
    expected = naive_means(x)
    compare(answer.running_mean(x), expected, what="the mean", axes=("row", "position")[-len(shape) :])


def leaves_inputs_alone(answer, draw: Draw):
    x = torch.ones(3, 4)  # equal to its running mean, so that returning it as it is would go unnoticed
    with unchanged(x=x):
        got = answer.running_mean(x)
    fresh(got, x=x)
    finite(got)
    y = draw.normal(3, 4)
    with unchanged(y=y):
        answer.running_mean(y)


def subtracts(answer, draw: Draw, length):
    x = draw.normal(length)
    expected = 2 * (x - naive_means(x))
    compare(answer.centred(x), expected, what="the centred value", axes=("position",))


def counts(answer, draw: Draw, start):
    counter = answer.Counter(start)
    for step in range(1, 4):
        compare(counter.step(), start + step, what=f"the value after step {step}")


def is_on_the_device(answer, draw: Draw):
    if answer.on_device(draw.normal(2)).device.type != "cuda":
        reject("the result is not on the GPU")


SHAPES = ({"shape": (1,)}, {"shape": (5,)}, {"shape": (2, 7)})

EXERCISES = (
    Exercise(
        id="1.1",
        title="Running mean",
        kind="code",
        names=("running_mean",),
        points=3,
        minutes=5,
        lines=2,
        objective="means without starting afresh",
        hints=("Look at the first position.", "Counting starts at one.", "arange(1, T + 1)"),
        checks=(
            Property("returns one mean per value", has_the_shape, "The result has the input's shape.", SHAPES),
            Property("matches a loop", matches_a_loop, "What is each total divided by, and along which axis?", SHAPES),
            Property("leaves its inputs alone", leaves_inputs_alone, "Operations ending in _ write in place."),
        ),
        time_limit_s=8,
    ),
    Exercise(
        id="1.2",
        title="Cost of one more",
        kind="choice",
        names=("answer_1_2",),
        points=1,
        minutes=1,
        objective="cost",
        question=Choice("abc", "da68f62cce3c19b8", {"a": "the total is kept, so nothing is added twice"}),
    ),
    Exercise(
        id="1.3",
        title="Centred",
        kind="code",
        names=("centred",),
        points=2,
        minutes=4,
        lines=2,
        objective="reuse",
        uses=("1.1",),
        hints=("What is left after subtracting?",),
        checks=(
            Property("subtracts the mean", subtracts, "Subtract first, then scale.", ({"length": 1}, {"length": 6})),
        ),
        time_limit_s=8,
    ),
    Exercise(
        id="1.4",
        title="Additions",
        kind="prediction",
        names=("guess_1_4",),
        points=1,
        minutes=1,
        objective="growth",
        question=Number(lambda: sum(range(1, 101)), factor=1.5, unit="additions"),
    ),
    Exercise(
        id="1.5",
        title="Which line does what",
        kind="matching",
        names=("answer_1_5",),
        points=2,
        minutes=2,
        objective="reading",
        question=Matching("abc", {"cumsum": "fc9445c4670d3533", "div": "5d0ae8226159a649"}),
    ),
    Exercise(
        id="1.6",
        title="Bytes",
        kind="numeric",
        names=("answer_1_6",),
        points=1,
        minutes=1,
        objective="bytes",
        question=Number(lambda: 32 * 4, rel=0, unit="bytes"),
    ),
    Exercise(
        id="1.7",
        title="On the GPU",
        kind="kernel",
        names=("on_device",),
        points=1,
        minutes=1,
        objective="devices",
        needs=("gpu",),
        checks=(Property("moves", is_on_the_device, "x.cuda()"),),
    ),
    Exercise(
        id="1.8",
        title="A counter",
        kind="code",
        names=("Counter",),
        points=2,
        minutes=3,
        lines=2,
        objective="state",
        checked_in="answer",
        checks=(Property("counts up", counts, "Each step adds one.", ({"start": 0}, {"start": 5})),),
        time_limit_s=6,
    ),
)
