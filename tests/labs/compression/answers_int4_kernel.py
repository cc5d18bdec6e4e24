"""Answers that prove the checks of exercise 6.11."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

CODES, GROUPS, SUMS, HALF = (
    "finds each code",
    "gives each group its scale and minimum",
    "sums over all inputs",
    "takes 16-bit activations",
)

# Two that also change a line that is given.
KERNEL = """
@triton.jit
def int4_linear_kernel(
    x_ptr, packed_ptr, scales_ptr, minima_ptr, out_ptr, num_tokens, num_inputs, num_outputs,
    GROUP: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_O: tl.constexpr,
):
    offs_t = tl.arange(0, BLOCK_T)
    offs_o = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    has_token, has_output = offs_t < num_tokens, offs_o < num_outputs
    num_groups = num_inputs // GROUP
    acc = tl.zeros([BLOCK_T, BLOCK_O], tl.float32)
    for group in range(num_groups):
        columns = group * GROUP + tl.arange(0, GROUP)
        x_ptrs = x_ptr + offs_t[:, None] * num_inputs + columns[None, :]
        x = tl.load(x_ptrs, mask=has_token[:, None], other=0.0)
        offs_w = offs_o[:, None] * (num_inputs // 8) + columns[None, :] // 8
        words = tl.load(packed_ptr + offs_w, mask=has_output[:, None], other=0)
        codes = (words >> (columns % 8 * 4)[None, :]) & 15
        offs_s = offs_o * num_groups + group
        scale = tl.load(scales_ptr + offs_s, mask=has_output, other=0.0)
        minimum = tl.load(minima_ptr + offs_s, mask=has_output, other=0.0)
        weight = codes.to(tl.float32) * scale[:, None] + minimum[:, None]
        factor = tl.trans(weight.to(x.dtype))
        acc += tl.dot(x, factor, input_precision="ieee")
    mask = has_token[:, None] & has_output[None, :]
    out_ptrs = out_ptr + offs_t[:, None] * num_outputs + offs_o[None, :]
    tl.store(out_ptrs, acc.to(out_ptr.dtype.element_ty), mask=mask)
"""
ADD = 'acc += tl.dot(x, factor, input_precision="ieee")'
ROUNDED_SUM = KERNEL.replace("[BLOCK_T, BLOCK_O], tl.float32", "[BLOCK_T, BLOCK_O], x_ptr.dtype.element_ty").replace(
    ADD, 'acc += tl.dot(x, factor, input_precision="ieee").to(x.dtype)'
)


def added(new: str) -> str:
    """The kernel with another line in place of the given one that adds a group's product."""
    assert ADD in KERNEL
    return KERNEL.replace(ADD, new)


BANKS = {
    "6.11": Bank(
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
                "not transposed, broadcast",
                {5: "tl.trans(weight.to(x.dtype) * 0 + minimum[:, None].to(x.dtype))"},
                CODES,
            ),
            Wrong("codes, not weights", {5: "tl.trans(codes.to(x.dtype))"}, GROUPS),
            Wrong(
                "the last group only",
                added('acc = tl.dot(x, factor, input_precision="ieee")'),
                GROUPS,
            ),
            Wrong(
                "the sum so far, twice",
                added('acc += tl.dot(x, factor, acc, input_precision="ieee")'),
                GROUPS,
            ),
            Wrong(
                "the minimum once per group, not per input",
                added('acc += tl.dot(x, factor, input_precision="ieee") + minimum[None, :]').replace(
                    " + minimum[:, None]", ""
                ),
                GROUPS,
            ),
            Wrong(
                "the words of group 0 for every group",
                {1: "offs_o[:, None] * (num_inputs // 8) + tl.arange(0, GROUP)[None, :] // 8"},
                SUMS,
            ),
            Wrong("rows of one group's words", {1: "offs_o[:, None] * (GROUP // 8) + columns[None, :] // 8"}, SUMS),
            Wrong(
                "a group is one word further",
                {1: "offs_o[:, None] * (num_inputs // 8) + group + tl.arange(0, GROUP)[None, :] // 8"},
                SUMS,
            ),
            Wrong(
                "all in half precision",
                added("acc += tl.dot(x.to(tl.float16), factor.to(tl.float16))"),
                GROUPS,
            ),
            Wrong(
                "each group's product rounded to 16 bits",
                added('acc += tl.dot(x, factor, input_precision="ieee").to(x.dtype)'),
                HALF,
            ),
            Wrong(
                "products of x's dtype",
                added('acc += tl.dot(x, factor, input_precision="ieee", out_dtype=x.dtype)'),
                HALF,
            ),
            Wrong("a running sum of x's dtype", ROUNDED_SUM, HALF),
            Wrong(
                "the running sum rounded after each group",
                added('acc = (acc + tl.dot(x, factor, input_precision="ieee")).to(x.dtype).to(tl.float32)'),
                HALF,
            ),
            Wrong(
                "float32 beside float16",
                {5: "tl.trans(weight)"},
                HALF,
            ),
        ),
        right=(
            Right("transposed by an attribute", {5: "weight.to(x.dtype).T"}),
            Right("bits by operators", {2: "(words >> ((columns & 7) << 2)[None, :]) & 0xF"}),
            Right("offsets multiplied out", {1: "(offs_o[:, None] * num_inputs + columns[None, :]) // 8"}),
            Right(
                "scaled by group in another order",
                {4: "minimum[:, None] + scale[:, None] * codes"},
            ),
            Right(
                "scaled by group, after the product",
                added(
                    'acc += tl.dot(x, factor, input_precision="ieee") * scale[None, :]'
                    " + tl.sum(x.to(tl.float32), 1)[:, None] * minimum[None, :]"
                ).replace(" * scale[:, None] + minimum[:, None]", ""),
            ),
            Right("added up by tl.dot", added('acc = tl.dot(x, factor, acc, input_precision="ieee")')),
            Right(
                "in float32 throughout",
                added('acc += tl.dot(x.to(tl.float32), factor, input_precision="ieee")').replace(".to(x.dtype))", ")"),
            ),
        ),
    ),
}
