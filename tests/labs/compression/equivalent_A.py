"""Edits of the solutions of 6.2, 6.3 and 6.16 that change nothing, with the reason."""

ZERO_BY_ANYTHING = (
    "in a constant group 0 is divided, and by whatever, the code is 0 (NaN as uint8 is 0 on the CPUs at hand)"
)

EQUIVALENT: dict[str, dict[str, str]] = {
    "6.2": {
        "steps = torch.where(scales > 0, scales, 1) -> steps = torch.where(scales >= 0, scales, 1)": ZERO_BY_ANYTHING,
        "steps = torch.where(scales > 0, scales, 1) -> steps = torch.where(scales > 0, scales, 2)": ZERO_BY_ANYTHING,
        "steps = torch.where(scales > 0, scales, 1) -> steps = torch.where(scales > 0, scales, 0)": ZERO_BY_ANYTHING,
        "codes = ((groups - minima[..., None]) / steps[..., None]).round() -> codes = ((groups - minima[..., None]) / scales[..., None]).round()": (
            ZERO_BY_ANYTHING
        ),
    },
    "6.3": {
        "halves = blocks[:, :4].contiguous().view(torch.float16).float() -> halves = blocks[:, :4].view(torch.float16).float()": (
            "rows of 20 bytes can be seen as float16 where they lie"
        ),
    },
    "6.16": {
        "SHIFTS = torch.arange(0, 32, 4, dtype=torch.int32) -> SHIFTS = torch.arange(0, 31, 4, dtype=torch.int32)": (
            "the last shift is 28"
        ),
    },
}
