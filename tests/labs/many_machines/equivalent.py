"""Edits of solved answers that change nothing, with the reason; `prove --mutate` reads this."""

EQUIVALENT: dict[str, dict[str, str]] = {
    "7.1": {
        "blocks, offsets = slots_of(block_ids, len(message[0]), layer.k.shape[2]) -> blocks, offsets = slots_of(block_ids, len(message[1]), layer.k.shape[2])": (
            "every tensor of a message has a row for each token"
        ),
        "blocks, offsets = slots_of(block_ids, len(message[0]), layer.k.shape[2]) -> blocks, offsets = slots_of(block_ids, len(message[-1]), layer.k.shape[2])": (
            "every tensor of a message has a row for each token"
        ),
    },
    "7.7": {
        "there_s = spans[stage - 1][chunk][1] if stage else 0.0 -> there_s = spans[stage - 1][chunk][1] if spans else 0.0": (
            "there are spans of the stages before, and so of none in stage 0"
        ),
        "there_s = spans[stage - 1][chunk][1] if stage else 0.0 -> there_s = spans[stage - 1][chunk][1] if stage else -1.0": (
            "the stage is free at 0 or later, and the later of the two times is taken"
        ),
        "free_s, spans_here = (0.0, []) -> free_s, spans_here = (-1.0, [])": (
            "the first chunk is there at 0 or later, and the later of the two times is taken"
        ),
    },
    "7.10": {
        "order = flat.argsort(stable=True) -> order = flat.argsort(stable=False)": "within an expert any order will do",
    },
    "7.11": {
        "costs.append(self.weight * (len(prompt) - num_hit * self.block_size) + load) -> costs.append(self.weight * (len(keys) - num_hit * self.block_size) + load)": (
            "the prompt's length is the same in every engine's cost, so it decides nothing"
        ),
        "costs.append(self.weight * (len(prompt) - num_hit * self.block_size) + load) -> costs.append(self.weight * (len(loads) - num_hit * self.block_size) + load)": (
            "the prompt's length is the same in every engine's cost, so it decides nothing"
        ),
        "costs.append(self.weight * (len(prompt) - num_hit * self.block_size) + load) -> costs.append(self.weight * (min(len(prompt), 64) - num_hit * self.block_size) + load)": (
            "the prompt's length is the same in every engine's cost, so it decides nothing"
        ),
        "key, keys = (0, []) -> key, keys = (1, [])": "any key will do before the first block, the same for all prompts",
        "key, keys = (0, []) -> key, keys = (-1, [])": "any key will do before the first block, the same for all prompts",
    },
    "7.13": {
        "if wish >= num_engines: -> if wish > num_engines:": (
            "as many as there are: the largest recent number is at least that, and the answer at most"
        ),
    },
}
