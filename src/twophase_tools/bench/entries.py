"""Who takes part in `bench engine` with which weights: a line for each row of a table."""

from dataclasses import dataclass, replace

from twophase.core.errors import ConfigError
from twophase_tools.bench.contenders import (
    CONTENDERS,
    Contender,
    Setup,
    TransformersBatch,
    TransformersSequential,
    Twophase,
)
from twophase_tools.bench.peers.contender import LLAMA_CPP, VLLM, Peers, open_peer
from twophase_tools.bench.peers.process import NotRunError
from twophase_tools.bench.workload import Workload

OURS, BATCH, ONE_BY_ONE = Twophase.name, TransformersBatch.name, TransformersSequential.name
NEEDS_ANOTHER_PACKAGE = "quantises only with another package, which this benchmark does not bring"


@dataclass(frozen=True, slots=True)
class Entry:
    """A contender in one form of the weights.

    Attributes:
        who: A name of `CONTENDERS`, or a peer.
        dtype: What it computes in.
        quantization: What linear layers are rounded to, in that engine's own words; None: they are plain.
        why_not: Why this one never runs; None: it may.
    """

    who: str
    dtype: str
    quantization: str | None = None
    why_not: str | None = None

    @property
    def name(self) -> str:
        return self.who if self.quantization is None else f"{self.who}, {self.quantization}"

    @property
    def is_ours(self) -> bool:
        return self.who == OURS


def _plain(dtype: str) -> tuple[Entry, ...]:
    return tuple(Entry(who, dtype) for who in (OURS, BATCH, ONE_BY_ONE, VLLM, LLAMA_CPP))


ENTRIES: dict[str, tuple[Entry, ...]] = {
    "fp32": _plain("float32"),
    "fp16": _plain("float16"),
    "bf16": _plain("bfloat16"),
    "int8": (
        Entry(OURS, "bfloat16", "int8"),
        Entry(OURS, "bfloat16", "int8_dynamic"),
        Entry("transformers", "bfloat16", "int8", why_not=NEEDS_ANOTHER_PACKAGE),
        Entry(VLLM, "bfloat16", "W8A8"),
        Entry(LLAMA_CPP, "bfloat16", "Q8_0"),
    ),
    "int4": (
        Entry(OURS, "bfloat16", "int4"),
        Entry("transformers", "bfloat16", "int4", why_not=NEEDS_ANOTHER_PACKAGE),
        Entry(VLLM, "bfloat16", "W4A16"),
        Entry(LLAMA_CPP, "bfloat16", "Q4_1"),
    ),
}
PLAIN = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}  # by dtype


def entries(weights: str, workload: Workload) -> tuple[Entry, ...]:
    """Who runs this workload. For one request, a batch and one by one are the same."""
    return tuple(entry for entry in ENTRIES[weights] if len(workload.prompts) > 1 or entry.who != BATCH)


def setup_of(entry: Entry, shared: Setup) -> Setup:
    return replace(shared, dtype=entry.dtype, quantization=entry.quantization)


def open_contender(entry: Entry, shared: Setup, workload: Workload, peers: Peers) -> Contender:
    """The entry's model, loaded.

    Raises:
        NotRunError: It cannot take part here.
        PeerFailedError: A peer that could not load it.
    """
    setup = setup_of(entry, shared)
    if entry.why_not is not None:
        raise NotRunError(entry.why_not)
    if entry.who not in CONTENDERS:
        return open_peer(entry.who, setup, workload, peers)
    try:
        return CONTENDERS[entry.who](setup, workload)
    except ConfigError as error:
        if setup.quantization is None:
            raise
        raise NotRunError(str(error)) from error  # groups that do not divide this model's layers, say
