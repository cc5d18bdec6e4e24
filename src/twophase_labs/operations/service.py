"""A small service in virtual time: Llama-3-8B on NVIDIA L4s, by roofline, behind clients that try again.

The scheduler, its blocks and its policies are the engine's; only the time of a step comes from a formula. A client that
asks for JSON and gets none asks again.
"""

import heapq
import math
import random
from dataclasses import dataclass, field, replace
from typing import Any

from twophase.core.plan import StepTrace
from twophase.core.request import Request, RequestOutput, SamplingParams
from twophase.scheduling.policy import Policy
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_tools.load.lengths import LogNormalLengths
from twophase_tools.load.records import RequestRecord
from twophase_tools.simulate.cost_model import RooflineCostModel
from twophase_tools.simulate.hardware import HARDWARE, Hardware
from twophase_tools.simulate.limits import make_scheduler
from twophase_tools.simulate.model_shapes import MODELS
from twophase_tools.simulate.simulator import Replica

L4 = Hardware(
    "NVIDIA L4", 121e12, 300e9, 24e9, 32e9,
    "NVIDIA L4 Tensor Core GPU data sheet: 242 TFLOPS BF16 with sparsity; 24 GB at 300 GB/s; PCIe Gen4 x16, 64 GB/s",
)  # fmt: skip
SHAPE = MODELS["llama-3-8b"]
ON_L4 = RooflineCostModel(L4, SHAPE)
ON_H100 = RooflineCostModel(HARDWARE["h100"], SHAPE)
RETRY_S = 0.25  # between an answer that is no JSON and the next attempt
MAX_ATTEMPTS = 5
SLICES = ("chat", "json", "documents")


@dataclass(frozen=True)
class Traffic:
    """Requests at random times. Some want JSON, some bring a document, and the others chat.

    Attributes:
        output_scale: How much longer the answers are than planned.
        invalid: Share of the answers to a request for JSON that are none.
    """

    rate_per_s: float = 1.5
    length_s: float = 90.0
    output_scale: float = 1.0
    invalid: float = 0.02
    json_share: float = 0.30
    document_share: float = 0.15


@dataclass(frozen=True)
class Asked:
    """What a client wants.

    Attributes:
        max_tokens: Of the answer: as many as it has, or the limit that cuts it.
        num_wanted: Tokens that the answer has without a limit.
        attempt: Counts from 1.
        task: Id of the first attempt; '' for that one itself.
    """

    kind: str
    num_prompt_tokens: int
    max_tokens: int
    num_wanted: int
    attempt: int = 1
    task: str = ""


PROMPTS = {
    "chat": LogNormalLengths(median=250, sigma=0.6, low=20, high=1500),
    "json": LogNormalLengths(median=400, sigma=0.4, low=50, high=1500),
    "documents": LogNormalLengths(median=2800, sigma=0.25, low=1500, high=5000),
}
OUTPUTS = {
    "chat": LogNormalLengths(median=150, sigma=0.5, low=16, high=500),
    "json": LogNormalLengths(median=60, sigma=0.3, low=20, high=150),
    "documents": LogNormalLengths(median=120, sigma=0.4, low=16, high=400),
}


@dataclass(frozen=True)
class Setting:
    """How the service is run.

    Attributes:
        link_bytes_per_s: Prefill and decode on a GPU each, K and V over this link; None: both on one GPU.
        link_jitter: One transfer in ten takes so many times as long.
        num_blocks: Of the K/V pool; None: all that the weights leave.
        max_tokens: Of an answer at most; None: as many as it wants.
    """

    policy: Policy = field(default_factory=lambda: ChunkedPrefillPolicy(512))
    admission: str = "optimistic"
    cost_model: RooflineCostModel = ON_L4
    link_bytes_per_s: float | None = None
    link_jitter: float = 1.0
    num_blocks: int | None = None
    max_tokens: int | None = None

    def replica(self, cost_model: RooflineCostModel | None = None) -> Replica:
        limits: dict[str, Any] = {
            "max_num_seqs": 64,
            "max_num_batched_tokens": 8192,
            "max_model_len": 8192,
            "num_blocks": self.num_blocks or self.cost_model.num_blocks(),
            "block_size": 16,
            "admission": self.admission,
        }
        return Replica(make_scheduler(limits, self.policy), cost_model or self.cost_model)


@dataclass(frozen=True)
class Transfer:
    """K and V of a prompt on their way to the engine that decodes."""

    end_s: float
    seconds: float


@dataclass(frozen=True)
class Run:
    """All that happened.

    Attributes:
        records: Of every attempt, in the order of their ends; `asked` says what each was for.
        invalid: Attempts whose answer was to be JSON and is none.
        steps: Of the engine that decodes.
        prefill_steps: Of the engine that computes prompts: the same one, unless they are apart.
    """

    records: tuple[RequestRecord, ...]
    asked: dict[str, Asked]
    invalid: frozenset[str]
    steps: tuple[StepTrace, ...]
    prefill_steps: tuple[StepTrace, ...]
    transfers: tuple[Transfer, ...]
    length_s: float

    def kind(self, record: RequestRecord) -> str:
        return self.asked[record.request_id].kind


class _Service:
    """The events of one run, in time: arrivals, transfers, ends."""

    def __init__(self, setting: Setting, traffic: Traffic, seed: int) -> None:
        self._setting, self._traffic = setting, traffic
        self._random = random.Random(f"{seed} clients")
        self._link_random = random.Random(f"{seed} link")
        self._coming: list[tuple[float, int, Asked]] = []
        self._on_their_way: list[tuple[float, int, Request, RequestOutput]] = []
        self._asked: dict[str, Asked] = {}
        self._invalid: set[str] = set()
        self._transfers: list[Transfer] = []
        self._link_free_s = 0.0
        self._decode = setting.replica()
        self._decode.after_end = self._answer
        self._prefill = self._decode
        if setting.link_bytes_per_s is not None:
            self._prefill = setting.replica()
            self._prefill.after_end = self._send

    def run(self) -> Run:
        traffic = self._traffic
        draw = random.Random(f"{traffic.json_share} {traffic.rate_per_s} {self._random.random()}")
        now_s = 0.0
        while (now_s := now_s + draw.expovariate(traffic.rate_per_s)) < traffic.length_s:
            self._push(now_s, drawn(draw, traffic, self._setting.max_tokens))
        tick_s = 0.0
        # In ticks as short as a client's pause, so that no attempt comes before a step that is done already.
        while tick_s < traffic.length_s or self._coming or self._on_their_way or self._num_outstanding(tick_s):
            tick_s += RETRY_S
            while self._coming and self._coming[0][0] <= tick_s:
                self._submit(*heapq.heappop(self._coming))
            self._prefill.run_until(tick_s)
            while self._on_their_way and self._on_their_way[0][0] <= tick_s:
                self._take_in(*heapq.heappop(self._on_their_way))
            self._decode.run_until(tick_s)
        for replica in {self._prefill, self._decode}:
            replica.run_until(math.inf)
        return Run(
            tuple(self._decode.records), self._asked, frozenset(self._invalid), self._decode.steps, self._prefill.steps,
            tuple(self._transfers), traffic.length_s,
        )  # fmt: skip

    def _num_outstanding(self, time_s: float) -> int:
        return self._prefill.num_outstanding(time_s) + self._decode.num_outstanding(time_s)

    def _push(self, arrival_s: float, asked: Asked) -> None:
        number = len(self._asked)
        self._asked[f"r{number}"] = asked
        heapq.heappush(self._coming, (arrival_s, number, asked))

    def _submit(self, arrival_s: float, number: int, asked: Asked) -> None:
        apart = self._prefill is not self._decode
        params = SamplingParams(temperature=0.0, max_tokens=1 if apart else asked.max_tokens, ignore_eos=True)
        request = Request(f"r{number}", (number,) * asked.num_prompt_tokens, params, arrival_s=arrival_s)
        self._prefill.run_until(arrival_s)
        self._prefill.submit(request)

    def _send(self, prefilled: RequestOutput) -> None:
        """One prompt's K and V after the other leave; they belong to the decoding engine when they are there."""
        finished_s, prompt = prefilled.metrics.finished_s, prefilled.prompt_token_ids
        assert finished_s is not None
        assert self._setting.link_bytes_per_s is not None
        asked = self._asked[prefilled.request_id]
        slower = self._setting.link_jitter if self._link_random.random() < 0.1 else 1.0
        num_bytes = len(prompt) * SHAPE.kv_bytes_per_token
        start_s = max(finished_s, self._link_free_s)
        self._link_free_s = start_s + slower * num_bytes / self._setting.link_bytes_per_s
        self._transfers.append(Transfer(self._link_free_s, self._link_free_s - finished_s))
        params = SamplingParams(temperature=0.0, max_tokens=asked.max_tokens, ignore_eos=True)
        whole = Request(prefilled.request_id, prompt, params, arrival_s=self._link_free_s)
        heapq.heappush(self._on_their_way, (self._link_free_s, len(self._transfers), whole, prefilled))

    def _take_in(self, arrival_s: float, _: int, request: Request, prefilled: RequestOutput) -> None:
        self._decode.run_until(arrival_s)
        self._decode.submit(request, prefilled)

    def _answer(self, output: RequestOutput) -> None:
        """A client that wanted JSON reads its answer."""
        request_id = output.request_id
        asked = self._asked[request_id]
        if asked.kind == "json" and self._random.random() < self._traffic.invalid:
            self._invalid.add(request_id)
            if asked.attempt < MAX_ATTEMPTS:
                assert output.metrics.finished_s is not None
                again = replace(asked, attempt=asked.attempt + 1, task=asked.task or request_id)
                self._push(output.metrics.finished_s + RETRY_S, again)


def drawn(draw: random.Random, traffic: Traffic, max_tokens: int | None = None) -> Asked:
    """What the next client wants."""
    share = draw.random()
    kind = "json" if share < traffic.json_share else "documents"
    if share >= traffic.json_share + traffic.document_share:
        kind = "chat"
    num_prompt, num_output = PROMPTS[kind].draw(draw), OUTPUTS[kind].draw(draw)
    scaled = min(round(num_output * (1.0 if kind == "json" else traffic.output_scale)), 8192 - num_prompt)
    return Asked(kind, num_prompt, min(scaled, max_tokens or scaled), scaled)


def serve(setting: Setting, traffic: Traffic, seed: int) -> Run:
    """The traffic on the service until its last answer has ended; the same seed, the same requests."""
    return _Service(setting, traffic, seed).run()
