"""Answers that prove the check of exercise 6.7."""

from twophase_labs.machine.bank import right, wrong

CODES, GROUPS, SUMS = "finds each code", "gives each group its scale and minimum", "sums over all inputs"
HALF = "takes 16-bit activations"


# fmt: off
BANKS = {
    "6.7": (
        wrong("a word for each code", "[None, :] // 8", "[None, :]", by=CODES),
        wrong("rows as long as x's", "num_inputs // 8", "num_inputs", by=CODES),
        wrong("one row of scales for all outputs", {3: "offs_o * 0 + group"}, by=GROUPS),
        wrong("the row's first group for all", {3: "offs_o * num_groups"}, by=GROUPS),
        wrong("the words of group 0 for every group", "columns[None, :] // 8", "tl.arange(0, GROUP)[None, :] // 8",
              by=SUMS),
        wrong("a group is one word further",
              {1: "offs_o[:, None] * (num_inputs // 8) + group + tl.arange(0, GROUP)[None, :] // 8"}, by=SUMS),
        wrong("float32 beside float16", ".to(x.dtype)", "", by=HALF),
        wrong("each group's product rounded to 16 bits", '.dot(x, factor, input_precision="ieee"',
              ".dot(x, factor, input_precision='ieee').to(x.dtype", by=HALF),
        right("scaled by group, after the product", ".to(tl.float32) * scale[:, None] + minimum[:, None]",
              ".to(tl.float32)", '.dot(x, factor, input_precision="ieee")',
              ".dot(x, factor, input_precision='ieee') * scale[None, :] + tl.sum(x.to(tl.float32), 1)[:, None] * minimum[None, :]"),
        right("offsets multiplied out", {1: "(offs_o[:, None] * num_inputs + columns[None, :]) // 8"}),
    ),
}
