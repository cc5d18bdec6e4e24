"""Answers that prove the demonstration lab's checks."""

from twophase_labs.machine.bank import right, wrong

LOOP, MEAN, COUNTS = "matches a loop", "subtracts the mean", "counts up"

IN_PLACE = """
def running_mean(x):
    x.cumsum_(-1)
    return x.div_(torch.arange(1, x.shape[-1] + 1))
"""
A_LOOP = """
def running_mean(x):
    return torch.stack([x[..., : i + 1].mean(-1) for i in range(x.shape[-1])], -1)
"""
A_LIST = """
class Counter:
    def __init__(self, start):
        self.past = [start]

    def step(self):
        self.past.append(self.past[-1] + 1)
        return self.past[-1]
"""
BANKS = {
    "1.1": (
        wrong("counts from zero", {2: "0, x.shape[-1]"}, by=LOOP),
        wrong("sums along the first axis", {1: "x.cumsum(0)"}, by=LOOP),
        wrong("the total everywhere", "x.cumsum(-1)", "x.sum(-1, keepdim=True)", by=LOOP),
        wrong(
            "drops a position",
            *("x.cumsum(-1)", "x.cumsum(-1)[..., 1:]", "1, x.shape[-1] + 1", "2, x.shape[-1] + 1"),
            by="returns one mean per value",
        ),
        wrong("in place", IN_PLACE, by="leaves its inputs alone"),
        right("a matrix product", {1: "x @ torch.ones(x.shape[-1], x.shape[-1]).triu()"}),
        right("a loop", A_LOOP),
    ),
    "1.3": (
        wrong("adds", {1: "return SCALE * (x + running_mean(x))"}, by=MEAN),
        wrong("forgets the scale", {1: "return x - running_mean(x)"}, by=MEAN),
        wrong("scales the mean only", {1: "return x - SCALE * running_mean(x)"}, by=MEAN),
        wrong("the wrong mean", {1: "return SCALE * (x - x.mean())"}, by=MEAN),
        wrong("nothing", {1: "pass"}, by=MEAN),
        right("multiplied out", {1: "return SCALE * x - SCALE * running_mean(x)"}),
        right("its own mean", {1: "return 2 * x - 2 * x.cumsum(-1) / torch.arange(1, len(x) + 1)"}),
    ),
    "1.8": (
        wrong("starts at zero", {1: "0"}, by=COUNTS),
        wrong("by two", {2: "2"}, by=COUNTS),
        wrong("down", {2: "-1"}, by=COUNTS),
        wrong("starts one late", {1: "start + 1"}, by=COUNTS),
        wrong("halves", {1: "start / 2"}, by=COUNTS),
        right("one line", {2: "int(True)"}),
        right("floats", {1: "float(start)"}),
        right("a list", A_LIST),
    ),
    "1.7": (
        *(wrong(f"on the CPU, {way}", {1: way}, by="moves") for way in ("x", "x.cpu()", "x + 0", "x.clone()", "x * 1")),
        right("to", {1: 'x.to("cuda")'}),
        right("by index", {1: 'x.to(torch.device("cuda", 0))'}),
    ),
}
