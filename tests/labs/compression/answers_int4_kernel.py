"""Answers that prove the checks of exercise 6.9."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

CODES, GROUPS, HALF = (
    "finds each code",
    "gives each group its scale and minimum",
    "takes 16-bit activations",
)

BANKS = {
    "6.9": Bank(
        wrong=(
            Wrong("a word for each code", {1: "offs_o[:, None] * (num_inputs // 8) + columns[None, :]"}, CODES),
            Wrong("rows as long as x's", {1: "offs_o[:, None] * num_inputs + columns[None, :] // 8"}, CODES),
            Wrong("always the first word", {1: "offs_o[:, None] * (num_inputs // 8) + columns[None, :] * 0"}, CODES),
            Wrong("no mask", {2: "words >> (columns % 8 * 4)[None, :]"}, CODES),
            Wrong("shifts by codes, not by bits", {2: "(words >> (columns % 8)[None, :]) & 15"}, CODES),
            Wrong("the last code first", {2: "(words >> (28 - columns % 8 * 4)[None, :]) & 15"}, CODES),
            Wrong("three bits", {2: "(words >> (columns % 8 * 4)[None, :]) & 7"}, CODES),
            Wrong(
                "signed codes",
                {2: "(((words >> (columns % 8 * 4)[None, :]) & 15) ^ 8) - 8"},
                CODES,
            ),
            Wrong("groups first", {3: "group * num_outputs + offs_o"}, GROUPS),
            Wrong("the row's first group for all", {3: "offs_o * num_groups"}, GROUPS),
            Wrong("one row of scales for all outputs", {3: "offs_o * 0 + group"}, GROUPS),
            Wrong("no minimum", {4: "codes.to(tl.float32) * scale[:, None]"}, GROUPS),
            Wrong(
                "the minimum as a zero point",
                {4: "(codes.to(tl.float32) + minimum[:, None]) * scale[:, None]"},
                GROUPS,
            ),
            Wrong(
                "the last group only",
                {5: 'tl.dot(x, tl.trans(weight.to(x.dtype)), input_precision="ieee") - acc'},
                GROUPS,
            ),
            Wrong(
                "not in x's dtype", {5: 'tl.dot(x.to(tl.float32), tl.trans(weight), input_precision="ieee") * 2'}, CODES
            ),
            Wrong(
                "float32 beside float16",
                {5: 'tl.dot(x, tl.trans(weight), input_precision="ieee")'},
                HALF,
            ),
        ),
        right=(
            Right("bits by operators", {2: "(words >> ((columns & 7) << 2)[None, :]) & 0xF"}),
            Right("offsets multiplied out", {1: "(offs_o[:, None] * num_inputs + columns[None, :]) // 8"}),
            Right(
                "scaled by group in another order",
                {4: "minimum[:, None] + scale[:, None] * codes"},
            ),
            Right(
                "in float32 throughout",
                {5: 'tl.dot(x.to(tl.float32), tl.trans(weight), input_precision="ieee")'},
            ),
        ),
    ),
}
