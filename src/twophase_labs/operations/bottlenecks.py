"""Where the seconds of a request go, by roofline, and what one improvement does to the whole.

Data sheets' figures of one H100; what a GPU would do, not what this machine does. `HOST_S` is an assumption: what a
step costs beside the GPU's work, where nothing hides it. An engine's own trace tells yours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

FLOPS_PER_S = 0.6 * 989e12
BYTES_PER_S = 0.8 * 3.35e12
HOST_S = 1.5e-3

PARTS = ("prompt, seen before", "prompt, new", "weights", "K/V", "host")
# What each improvement leaves of each part.
IMPROVEMENTS: Mapping[str, Mapping[str, float]] = MappingProxyType(
    {
        "a": {"K/V": 0.5},
        "b": {"prompt, seen before": 0.1},
        "c": {"weights": 0.5, "prompt, new": 0.55, "prompt, seen before": 0.55},
        "d": {"weights": 0.28},
        "e": {"host": 0.1},
    }
)


@dataclass(frozen=True)
class Service:
    """One use of one model.

    Attributes:
        num_weights, kv_bytes, flops_per_key: Of the model; bytes of K and V per token, and operations of one query's
            attention to one key in all layers.
        seen, new, out: Tokens of a request: of its prompt, those that an earlier one began with, and the others; of
            its completion.
        batch: Sequences in a decode step.
    """

    name: str
    num_weights: float
    kv_bytes: int
    flops_per_key: int
    seen: int
    new: int
    out: int
    batch: int

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of a request by part; what a step does for all of its sequences is shared among them."""
        prompt = self.seen + self.new
        context = prompt + self.out / 2
        return {
            "prompt, seen before": self._prefill_s(0, self.seen),
            "prompt, new": self._prefill_s(self.seen, prompt),
            "weights": self.out * 2 * self.num_weights / BYTES_PER_S / self.batch,
            "K/V": self.out * self.kv_bytes * context / BYTES_PER_S,
            "host": self.out * HOST_S / self.batch,
        }

    def _prefill_s(self, start: int, end: int) -> float:
        """Products with the weights, and attention of each token to those before it."""
        num_keys = (end**2 - start**2) / 2
        return ((end - start) * 2 * self.num_weights + num_keys * self.flops_per_key) / FLOPS_PER_S

    def gain(self, improvement: str) -> float:
        """How many times as many requests one GPU serves with it: Amdahl's law."""
        left = IMPROVEMENTS[improvement]
        return sum(self.parts.values()) / sum(s * left.get(part, 1) for part, s in self.parts.items())

    @property
    def line(self) -> str:
        return f"{self.name:<11}" + "".join(f"{1000 * s:12.1f}" for s in self.parts.values())


# Llama-3-8B, and for completion Llama-3.2-1B: 4 operations for each of 32 layers and 4,096 query dimensions, or 16 and
# 2,048. K and V of a whole batch fit beside the weights.
SERVICES = (
    Service("agents", 8.03e9, 131_072, 524_288, seen=8000, new=300, out=150, batch=24),
    Service("chat", 8.03e9, 131_072, 524_288, seen=100, new=300, out=400, batch=4),
    Service("completion", 1.24e9, 32_768, 131_072, seen=0, new=400, out=120, batch=6),
    Service("documents", 8.03e9, 131_072, 524_288, seen=0, new=30_000, out=2000, batch=12),
    Service("summaries", 8.03e9, 131_072, 524_288, seen=0, new=2000, out=80, batch=8),
)


def table() -> str:
    """Milliseconds of a request in each part."""
    head = f"{'ms':<11}" + "".join(f"{part.replace('prompt, ', ''):>12}" for part in PARTS)
    return "\n".join([head, *(service.line for service in SERVICES)])


def gains() -> str:
    """What each improvement is worth to each service."""
    head = f"{'':<11}" + "".join(f"{letter:>7}" for letter in IMPROVEMENTS)
    rows = [f"{s.name:<11}" + "".join(f"{s.gain(letter):7.2f}" for letter in IMPROVEMENTS) for s in SERVICES]
    return "\n".join([head, *rows])
