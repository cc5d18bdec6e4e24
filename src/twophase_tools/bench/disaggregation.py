"""`twophase bench disaggregation`: decodes while long prompts arrive, in one engine and in two, with the same cores.

The command runs itself again in two ranks. Rank 0 decodes with its half of the cores while rank 1 computes
prompts; in turns with that, rank 0 serves the same requests by itself with all cores, with whole prompts and with
chunked ones. All sides have the same model, requests and block size; medians over rounds are compared.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import torch

from twophase.core.request import RequestOutput, SamplingParams
from twophase.engine.engine import Engine
from twophase.llm import LLM
from twophase.scheduling.policy import Policy, PriorityPolicy
from twophase_features.parallel.disaggregation import DecodeEngine, disaggregated
from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
from twophase_features.policies.whole_prompts import ContinuousPolicy
from twophase_tools.bench.machine import num_usable_cores, record_machine

NUM_RANKS = 2
WHOLE, CHUNKED, APART = "one engine, whole prompts", "one engine, chunks of 64", "two engines"
POLICIES: dict[str, Policy] = {WHOLE: ContinuousPolicy(), CHUNKED: ChunkedPrefillPolicy(64), APART: PriorityPolicy()}


@dataclass(frozen=True, slots=True)
class Case:
    """Streams that decode, and prompts that come while they do.

    Attributes:
        num_streams, stream_len: Requests of 16 prompt tokens that are there from the start, and their output tokens.
        num_prompts, prompt_len: Requests of 2 output tokens that come one after another.
        every: Tokens of the first stream between two arrivals.
    """

    name: str
    num_streams: int
    stream_len: int
    num_prompts: int
    prompt_len: int
    every: int


CASES = (
    Case("long prompts arrive beside streams", 4, 96, 3, 768, 24),
    Case("short prompts only", 16, 24, 0, 0, 1),
)
QUICK_CASES = (
    Case("long prompts arrive beside streams", 2, 8, 1, 48, 4),
    Case("short prompts only", 2, 4, 0, 0, 1),
)


@dataclass(frozen=True, slots=True)
class ModeResult:
    """How one way of serving did; medians over rounds, in seconds.

    Attributes:
        tpot_s: Mean time between the streams' tokens.
        gap_max_s: The longest time that a stream had to wait for a token.
        prompt_ttft_s: Mean TTFT of the prompts that came; None without any.
        num_equal: Requests with the tokens of `WHOLE`, of all rounds.
    """

    name: str
    elapsed_s: float
    tpot_s: float
    gap_max_s: float
    prompt_ttft_s: float | None
    num_equal: int


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case; `modes` in the order of `POLICIES`."""

    name: str
    num_requests: int
    modes: tuple[ModeResult, ...]


@dataclass(frozen=True, slots=True)
class TransferResult:
    """The pages of the first case, all rounds together.

    Attributes:
        bytes_per_token: Sent for a prompt token; full blocks travel, so a little less than `kv_bytes_per_token`.
        transfer_s_per_token: Packing and sending.
        transfer_share: Of the time of the forward passes that computed them.
        hidden_share: Of the transfer's time, what passed while later layers were computed.
    """

    num_tokens: int
    kv_bytes_per_token: int
    bytes_per_token: float
    transfer_s_per_token: float
    transfer_share: float
    hidden_share: float


@dataclass(frozen=True, slots=True)
class DisaggregationReport:
    """Everything, with the threads of one engine and of each of two."""

    num_threads: int
    threads_apart: int
    num_rounds: int
    cases: tuple[CaseResult, ...]
    transfer: TransferResult

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield record_machine().to_text()
        threads = f"one engine with {self.num_threads} threads, two with {self.threads_apart} each"
        yield f"{threads}; medians of {self.num_rounds} rounds"
        for case in self.cases:
            yield f"\n{case.name} ({case.num_requests} requests)"
            yield f"  {'':<26} {'elapsed':>9} {'TPOT':>9} {'worst gap':>10} {'TTFT':>8}  tokens"
            for mode in case.modes:
                ttft = "" if mode.prompt_ttft_s is None else f"{mode.prompt_ttft_s:.2f}s"
                yield (
                    f"  {mode.name:<26} {mode.elapsed_s:>8.2f}s {mode.tpot_s * 1e3:>7.1f}ms "
                    f"{mode.gap_max_s * 1e3:>8.0f}ms {ttft:>8}  {mode.num_equal} equal"
                )
            whole, chunked, apart = case.modes
            yield (
                f"  two engines against whole prompts: worst gap {whole.gap_max_s / apart.gap_max_s:.2f}x shorter, "
                f"elapsed {apart.elapsed_s / whole.elapsed_s:.2f}x as long"
            )
            yield (
                f"  two engines against chunks: worst gap {chunked.gap_max_s / apart.gap_max_s:.2f}x shorter, "
                f"elapsed {apart.elapsed_s / chunked.elapsed_s:.2f}x as long"
            )
        transfer = self.transfer
        yield (
            f"\npages: {transfer.bytes_per_token:,.0f} bytes a prompt token ({transfer.kv_bytes_per_token:,} of K/V), "
            f"{transfer.transfer_s_per_token * 1e6:,.0f} us a token"
        )
        yield (
            f"packing and sending them takes {transfer.transfer_share:.1%} of the time of computing them; "
            f"{transfer.hidden_share:.0%} of it passes while later layers are computed"
        )


def bench_disaggregation(model: str, quick: bool, **options: Any) -> DisaggregationReport | None:
    """To be called in each of `NUM_RANKS` ranks: the report in rank 0; None in the other, which serves until then."""
    limits: dict[str, Any] = {
        "num_kv_blocks": 512,
        "max_num_seqs": 32,
        "max_num_batched_tokens": 2048,
        "max_model_len": 2048,
        "enable_prefix_caching": False,  # each way reads the same prompts, and must compute them
    }
    with disaggregated(model, prefill_options={"max_num_batched_tokens": 512}, **limits, **options) as apart:
        if apart is None:
            return None
        assert isinstance(apart.engine, DecodeEngine)
        together = LLM(model, **limits, **options)
        num_threads = {"apart": torch.get_num_threads(), "together": max(1, num_usable_cores())}
        num_rounds = 1 if quick else 3
        cases = QUICK_CASES if quick else CASES
        results, transfer = [], None
        for case in cases:
            results.append(_compare(case, together, apart, num_threads, num_rounds))
            transfer = transfer or _transfer(apart, case, num_rounds)
        assert transfer is not None
        return DisaggregationReport(num_threads["together"], num_threads["apart"], num_rounds, tuple(results), transfer)


def _compare(case: Case, together: LLM, apart: LLM, num_threads: dict[str, int], num_rounds: int) -> CaseResult:
    runs: dict[str, list[list[RequestOutput]]] = {name: [] for name in POLICIES}
    assert isinstance(apart.engine, DecodeEngine)
    for number in range(num_rounds + 1):  # the first warms up
        for name, policy in POLICIES.items():
            llm = apart if name == APART else together
            llm.scheduler.policy = policy
            torch.set_num_threads(num_threads["apart" if name == APART else "together"])
            outputs = play(case, llm.engine, llm.model_config.vocab_size, seed=number)
            if number:
                runs[name].append(outputs)
            elif name == APART:
                apart.engine.take_transfers()  # of the warm-up: forget them
    modes = tuple(summarise(name, case, rounds, runs[WHOLE]) for name, rounds in runs.items())
    return CaseResult(case.name, case.num_streams + case.num_prompts, modes)


def play(case: Case, engine: Engine | DecodeEngine, vocab_size: int, seed: int) -> list[RequestOutput]:
    """Serve the case; outputs of the streams, then of the prompts. Arrivals go by tokens, not by the clock."""
    generator = torch.Generator().manual_seed(seed)

    def add(name: str, length: int, max_tokens: int) -> None:
        ids = torch.randint(vocab_size, (length,), generator=generator).tolist()
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        engine.add_request(name, {"prompt_token_ids": ids}, params)

    for stream in range(case.num_streams):
        add(f"stream {stream}", 16, case.stream_len)
    outputs: dict[str, RequestOutput] = {}
    num_come = 0
    while engine.has_unfinished_requests() or num_come < case.num_prompts:
        outputs |= {output.request_id: output for output in engine.step()}
        first = outputs.get("stream 0")
        num_tokens = 0 if first is None else len(first.outputs[0].token_ids)
        if num_come < case.num_prompts and num_tokens >= case.every * (num_come + 1) - case.every // 2:
            add(f"prompt {num_come}", case.prompt_len, 2)
            num_come += 1
    names = [f"stream {i}" for i in range(case.num_streams)] + [f"prompt {i}" for i in range(case.num_prompts)]
    return [outputs[name] for name in names]


def summarise(
    name: str, case: Case, rounds: Sequence[Sequence[RequestOutput]], reference: Sequence[Sequence[RequestOutput]]
) -> ModeResult:
    """Medians over the rounds, and how many requests have the tokens of `reference`."""
    elapsed_s, tpot_s, gap_max_s, ttft_s = [], [], [], []
    for outputs in rounds:
        times = [output.metrics.token_times_s for output in outputs]
        gaps = [b - a for stream in times[: case.num_streams] for a, b in pairwise(stream)]
        elapsed_s.append(max(each[-1] for each in times) - min(output.metrics.arrival_s for output in outputs))
        tpot_s.append(statistics.fmean(gaps))
        gap_max_s.append(max(gaps))
        ttft_s += [output.metrics.ttft_s or 0.0 for output in outputs[case.num_streams :]]
    pairs = [pair for ours, theirs in zip(rounds, reference, strict=True) for pair in zip(ours, theirs, strict=True)]
    return ModeResult(
        name=name,
        elapsed_s=statistics.median(elapsed_s),
        tpot_s=statistics.median(tpot_s),
        gap_max_s=statistics.median(gap_max_s),
        prompt_ttft_s=statistics.fmean(ttft_s) if ttft_s else None,
        num_equal=sum(a.outputs[0].token_ids == b.outputs[0].token_ids for a, b in pairs),
    )


def _transfer(apart: LLM, case: Case, num_rounds: int) -> TransferResult:
    assert isinstance(apart.engine, DecodeEngine)
    records, _ = apart.engine.take_transfers()
    num_tokens = num_rounds * (16 * case.num_streams + case.prompt_len * case.num_prompts)
    total_s = sum(record.pack_s + record.send_s for record in records)
    return TransferResult(
        num_tokens=num_tokens,
        kv_bytes_per_token=apart.kv_cache.spec.bytes_per_token,
        bytes_per_token=sum(record.num_bytes for record in records) / num_tokens,
        transfer_s_per_token=total_s / num_tokens,
        transfer_share=total_s / sum(record.compute_s for record in records),
        hidden_share=sum(record.send_s - record.late_s for record in records) / total_s,
    )
