"""Answers that prove the demonstration lab's checks."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

BANKS = {
    "1.1": Bank(
        wrong=(
            Wrong("counts from zero", {2: "0, x.shape[-1]"}, rejected_by="matches a loop"),
            Wrong("sums along the first axis", {1: "x.cumsum(0)"}, rejected_by="matches a loop"),
            Wrong("the total everywhere", {1: "x.sum(-1, keepdim=True)"}, rejected_by="matches a loop"),
            Wrong(
                "drops a position",
                {1: "x.cumsum(-1)[..., 1:]", 2: "2, x.shape[-1] + 1"},
                rejected_by="returns one mean per value",
            ),
            Wrong(
                "in place",
                "def running_mean(x):\n    x.cumsum_(-1)\n    return x.div_(torch.arange(1, x.shape[-1] + 1))\n",
                rejected_by="leaves its inputs alone",
            ),
        ),
        right=(
            Right("a matrix product", {1: "x @ torch.ones(x.shape[-1], x.shape[-1]).triu()"}),
            Right(
                "a loop",
                "def running_mean(x):\n    return torch.stack([x[..., : i + 1].mean(-1) for i in range(x.shape[-1])], -1)\n",
            ),
        ),
    ),
    "1.3": Bank(
        wrong=(
            Wrong("adds", {1: "return SCALE * (x + running_mean(x))"}, rejected_by="subtracts the mean"),
            Wrong("forgets the scale", {1: "return x - running_mean(x)"}, rejected_by="subtracts the mean"),
            Wrong("scales the mean only", {1: "return x - SCALE * running_mean(x)"}, rejected_by="subtracts the mean"),
            Wrong("the wrong mean", {1: "return SCALE * (x - x.mean())"}, rejected_by="subtracts the mean"),
            Wrong("nothing", {1: "pass"}, rejected_by="subtracts the mean"),
        ),
        right=(
            Right("multiplied out", {1: "return SCALE * x - SCALE * running_mean(x)"}),
            Right("its own mean", {1: "return 2 * x - 2 * x.cumsum(-1) / torch.arange(1, len(x) + 1)"}),
        ),
    ),
    "1.8": Bank(
        wrong=(
            Wrong("starts at zero", {1: "0"}, rejected_by="counts up"),
            Wrong("by two", {2: "2"}, rejected_by="counts up"),
            Wrong("down", {2: "-1"}, rejected_by="counts up"),
            Wrong("starts one late", {1: "start + 1"}, rejected_by="counts up"),
            Wrong("halves", {1: "start / 2"}, rejected_by="counts up"),
        ),
        right=(
            Right("one line", {2: "int(True)"}),
            Right("floats", {1: "float(start)"}),
            Right(
                "a list",
                "class Counter:\n    def __init__(self, start):\n        self.past = [start]\n\n    def step(self):\n        self.past.append(self.past[-1] + 1)\n        return self.past[-1]\n",
            ),
        ),
    ),
    "1.7": Bank(
        wrong=tuple(
            Wrong(f"on the CPU, {way}", {1: way}, "moves") for way in ("x", "x.cpu()", "x + 0", "x.clone()", "x * 1")
        ),
        right=(Right("to", {1: 'x.to("cuda")'}), Right("by index", {1: 'x.to(torch.device("cuda", 0))'})),
    ),
}
