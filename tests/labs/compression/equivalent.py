"""Edits of the solutions of lab 6 that change nothing, with the reason."""

NO_ROW = "rows that do not exist have sums of their own, which are not stored"
NO_OUTPUT = "outputs that do not exist have weights of their own, and sums that are not stored"


EQUIVALENT: dict[str, dict[str, str]] = {
    "6.2": {
        "steps = torch.where(scales > 0, scales, 1) -> steps = torch.where(scales > 0, scales, 2)": (
            "in a constant group 0 is divided, and by whatever, the code is 0"
        ),
    },
    "6.3": {
        "halves = blocks[:, :4].contiguous().view(torch.float16).float() -> halves = blocks[:, :4].view(torch.float16).float()": (
            "rows of 20 bytes can be seen as float16 where they lie"
        ),
    },
    "6.4": {
        "SHIFTS = torch.arange(0, 32, 4, dtype=torch.int32) -> SHIFTS = torch.arange(0, 31, 4, dtype=torch.int32)": (
            "the last shift is 28"
        ),
    },
    "6.8": {
        "for step in range(num_steps): -> for step in range(min(num_steps, 64)):": (
            "no test of more steps: neighbours of so many differ by less than rounding does"
        ),
        "if error < best_error: -> if error <= best_error:": "of two alphas with the same error either will do",
    },
    "6.11": {
        "words = tl.load(packed_ptr + offs_w, mask=has_output[:, None], other=0) -> words = tl.load(packed_ptr + offs_w, mask=has_output[:, None], other=1)": NO_OUTPUT,
        "words = tl.load(packed_ptr + offs_w, mask=has_output[:, None], other=0) -> words = tl.load(packed_ptr + offs_w, mask=has_output[:, None], other=-1)": NO_OUTPUT,
        "scale = tl.load(scales_ptr + offs_s, mask=has_output, other=0.0) -> scale = tl.load(scales_ptr + offs_s, mask=has_output, other=1.0)": NO_OUTPUT,
        "scale = tl.load(scales_ptr + offs_s, mask=has_output, other=0.0) -> scale = tl.load(scales_ptr + offs_s, mask=has_output, other=-1.0)": NO_OUTPUT,
        "minimum = tl.load(minima_ptr + offs_s, mask=has_output, other=0.0) -> minimum = tl.load(minima_ptr + offs_s, mask=has_output, other=1.0)": NO_OUTPUT,
        "minimum = tl.load(minima_ptr + offs_s, mask=has_output, other=0.0) -> minimum = tl.load(minima_ptr + offs_s, mask=has_output, other=-1.0)": NO_OUTPUT,
        "x = tl.load(x_ptrs, mask=has_token[:, None], other=0.0) -> x = tl.load(x_ptrs, mask=has_token[:, None], other=-1.0)": NO_ROW,
        "x = tl.load(x_ptrs, mask=has_token[:, None], other=0.0) -> x = tl.load(x_ptrs, mask=has_token[:, None], other=1.0)": NO_ROW,
    },
    "6.13": {
        "order = fours.abs().sort(dim=-1, descending=True, stable=True).indices -> order = fours.abs().sort(dim=-1, descending=True, stable=False).indices": (
            "on a CPU torch sorts four elements stably either way"
        ),
    },
    "6.15": {
        "step = torch.where(step == 0, 1.0, step) -> step = torch.where(step == 0, 2.0, step)": (
            "a group that is all alike has code 0 with any step"
        ),
    },
    "6.17": {
        "for chosen in itertools.product(*(range(len(formats)) for formats in options)): -> for chosen in itertools.product(*(range(min(len(formats), 64)) for formats in options)):": (
            "no part has more than a few formats: combinations are tried one by one"
        ),
        "best, least = (list(chosen), damage) -> best, least = (chosen, damage)": "a tuple of the same indices will do",
        "if size <= budget and damage < least: -> if size <= budget and damage <= least:": (
            "of several equally good choices any will do"
        ),
    },
}
