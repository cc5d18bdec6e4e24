"""Answers that prove the check of exercise 6.4."""

from twophase_labs.machine.bank import right, wrong

WHOLE, TOKEN = "multiplies whole numbers exactly", "rounds each token with a scale of its own"
ZEROS = "gives zeros for a token of zeros"


# fmt: off
BANKS = {
    "6.4": (
        wrong("the tokens' scales alone", {4: "sums * x_scales"}, by=WHOLE),
        wrong("sums in int8", {3: "x_codes @ codes.t()"}, by=WHOLE),
        wrong("sums in half precision", {3: "(x_codes.bfloat16() @ codes.t().bfloat16())"}, by=WHOLE),
        wrong("the largest, not its magnitude", ".abs()", "", by=TOKEN),
        wrong("the weights' scales alone", {4: "sums * scales"}, by=TOKEN),
        wrong("cut off, not rounded", {2: "(x / x_scales).to(torch.int8)"}, by=TOKEN),
        wrong("0 / 0 as a code", {1: "x.abs().amax(dim=1, keepdim=True) / 127"}, by=ZEROS),
        wrong("nothing for a 0 token",
              {1: "x.abs().amax(dim=1, keepdim=True) / 127", 3: "(x / x_scales).round() @ codes.t().float()"},
              by=ZEROS),
        right("the maximum of the row and of its negative",
              {1: "torch.maximum(x, -x).max(1).values.clamp(min=1e-20)[:, None] / 127"}),
        right("whole numbers in int32", {3: "x_codes.int() @ codes.t().int()"}),
    ),
}
