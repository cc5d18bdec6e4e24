"""Workloads: prompts of random ids and the number of tokens to generate for each, end-of-text ignored."""

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests that all arrive at once; request i has `prompts[i]` and generates exactly `output_lens[i]` tokens."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    output_lens: tuple[int, ...]

    @property
    def num_input_tokens(self) -> int:
        return sum(len(prompt) for prompt in self.prompts)

    @property
    def num_output_tokens(self) -> int:
        return sum(self.output_lens)

    def num_blocks(self, block_size: int) -> int:
        """Blocks that hold every sequence to its end, so that nothing is preempted."""
        lengths = (len(prompt) + n for prompt, n in zip(self.prompts, self.output_lens, strict=True))
        return sum(-(-length // block_size) for length in lengths)


def random_workload(
    name: str,
    num_requests: int,
    prompt_lens: tuple[int, int],
    output_lens: tuple[int, int],
    vocab_size: int,
    seed: int = 0,
) -> Workload:
    """Lengths uniform in closed ranges, ids uniform over the vocabulary; the same for the same seed everywhere."""
    rng = random.Random(seed)
    prompts = tuple(
        tuple(rng.randrange(vocab_size) for _ in range(rng.randint(*prompt_lens))) for _ in range(num_requests)
    )
    return Workload(name, prompts, tuple(rng.randint(*output_lens) for _ in range(num_requests)))


def engine_workloads(vocab_size: int, quick: bool = False) -> dict[str, Workload]:
    """What `bench engine` runs, by name: one stream, and a ragged batch."""
    if quick:
        sizes = {"single": (1, (8, 8), (4, 4)), "ragged": (3, (2, 12), (2, 6))}
    else:
        sizes = {"single": (1, (128, 128), (128, 128)), "ragged": (32, (16, 512), (16, 256))}
    return {name: random_workload(name, *shape, vocab_size) for name, shape in sizes.items()}
