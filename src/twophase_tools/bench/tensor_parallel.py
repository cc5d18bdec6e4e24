"""`twophase bench tensor-parallel`: one process against N that share the model, with the same cores for both sides.

The command runs itself again in N ranks. Rank 0 opens both engines: the shared one, with its share of the
cores, and one of its own, with all of them; the other ranks sleep while that one runs. They take turns, and medians of
step times are compared, so that a slow minute of the machine hurts both.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from twophase.core.plan import StepTrace
from twophase.core.request import SamplingParams
from twophase.llm import LLM
from twophase.model.linear import Linear
from twophase.model.weights import DenseMLP, ModelWeights
from twophase_features.experts.weights import SparseMLP
from twophase_features.parallel.peers import Traffic
from twophase_features.parallel.tensor_parallel import DriverRunner
from twophase_tools.bench.machine import num_usable_cores, record_machine

KIB, MIB = 1024, 1024**2


@dataclass(frozen=True, slots=True)
class Case:
    """`num_seqs` prompts of `prompt_len` random ids; what is timed are the prompts' steps or the decodes after them."""

    name: str
    num_seqs: int
    prompt_len: int
    output_len: int
    is_prefill: bool


CASES = (
    Case("decode, 1 sequence", 1, 16, 33, False),
    Case("decode, 16 sequences", 16, 16, 33, False),
    Case("prefill, 512 tokens", 1, 512, 1, True),
)
QUICK_CASES = (Case("decode, 1 sequence", 1, 16, 4, False), Case("prefill, 32 tokens", 1, 32, 1, True))


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Medians over steps, in seconds.

    Attributes:
        ratio: Time of a step of one process over that of N: above 1, sharing is faster.
        all_reduce_share: Of the shared engine's step time, what rank 0 spent in all-reduces, waiting included.
        num_all_reduces: Per step.
        bytes_per_token: Handed to all-reduces and collected as logits, by one rank, for one token of a step.
    """

    name: str
    alone_s: float
    shared_s: float
    ratio: float
    all_reduce_share: float
    num_all_reduces: float
    bytes_per_token: float


@dataclass(frozen=True, slots=True)
class TensorParallelReport:
    """Both sides' step times, and the memory that a rank saves.

    Attributes:
        weight_bytes, kv_bytes_per_token: Of one process that has everything.
        rank_weight_bytes, rank_kv_bytes_per_token: Of rank 0, which has no smaller part than the others.
    """

    size: int
    num_threads: int
    weight_bytes: int
    rank_weight_bytes: int
    kv_bytes_per_token: int
    rank_kv_bytes_per_token: int
    cases: tuple[CaseResult, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield record_machine().to_text()
        yield f"1 process with {self.num_threads} threads against {self.size} with {self.num_threads // self.size} each"
        for case in self.cases:
            verdict = "sharing is faster" if case.ratio > 1 else "sharing loses here"
            yield (
                f"{case.ratio:.2f}x  {case.name}: {case.alone_s * 1e3:.1f} ms a step alone, "
                f"{case.shared_s * 1e3:.1f} ms shared: {verdict}"
            )
            yield (
                f"       {case.num_all_reduces:.0f} all-reduces a step take {case.all_reduce_share:.0%} of its time; "
                f"{case.bytes_per_token:,.0f} bytes a token"
            )
        yield f"weights of the largest rank: {_part(self.rank_weight_bytes, self.weight_bytes, MIB)} MiB"
        yield f"K/V of a token there: {_part(self.rank_kv_bytes_per_token, self.kv_bytes_per_token, KIB)} KiB"


def _part(part: int, whole: int, unit: int) -> str:
    return f"{part / unit:,.1f} of {whole / unit:,.1f} ({1 - part / whole:.0%} saved)"


def bench_tensor_parallel(model: str, size: int, quick: bool, **options: Any) -> TensorParallelReport:
    """To be called in each of `size` ranks; only rank 0 gets beyond the first line, and returns."""
    with LLM(model, tensor_parallel_size=size, num_kv_blocks=128, max_num_seqs=16, **options) as shared:
        alone = LLM(model, num_kv_blocks=128, max_num_seqs=16, **options)
        threads = {"alone": max(size, num_usable_cores() // size * size), "shared": torch.get_num_threads()}
        cases = tuple(
            _compare(case, alone, shared, threads, repeats=1 if quick else 3)
            for case in (QUICK_CASES if quick else CASES)
        )
        return TensorParallelReport(
            size=size,
            num_threads=threads["alone"],
            weight_bytes=weight_bytes(alone.model.weights),
            rank_weight_bytes=weight_bytes(shared.model.weights),
            kv_bytes_per_token=alone.kv_cache.spec.bytes_per_token,
            rank_kv_bytes_per_token=shared.kv_cache.spec.bytes_per_token,
            cases=cases,
        )


def _compare(case: Case, alone: LLM, shared: LLM, threads: dict[str, int], repeats: int) -> CaseResult:
    assert isinstance(shared.runner, DriverRunner)
    steps: dict[str, list[StepTrace]] = {"alone": [], "shared": []}
    sums, logits = Traffic(), Traffic()
    for repeat in range(repeats + 1):  # the first warms up
        for name, llm in (("alone", alone), ("shared", shared)):
            torch.set_num_threads(threads[name])
            before = [_copy(shared.runner.traffic[kind]) for kind in ("all_reduce", "recv")]
            all_steps = _run(case, llm, repeat)
            if repeat and name == "shared":
                _add(sums, before[0], shared.runner.traffic["all_reduce"])
                _add(logits, before[1], shared.runner.traffic["recv"])
            steps[name] += all_steps if repeat else []
    medians = {
        name: statistics.median(_seconds(step) for step in every if (step.num_decodes == 0) == case.is_prefill)
        for name, every in steps.items()
    }
    num_tokens = sum(chunk[3] for step in steps["shared"] for chunk in step.chunks)
    return CaseResult(
        name=case.name,
        alone_s=medians["alone"],
        shared_s=medians["shared"],
        ratio=medians["alone"] / medians["shared"],
        all_reduce_share=sums.elapsed_s / sum(map(_seconds, steps["shared"])),
        num_all_reduces=sums.num_calls / len(steps["shared"]),
        bytes_per_token=(sums.num_bytes + logits.num_bytes) / num_tokens,
    )


def _run(case: Case, llm: LLM, repeat: int) -> Sequence[StepTrace]:
    generator = torch.Generator().manual_seed(repeat)
    shape = (case.num_seqs, case.prompt_len)
    ids = torch.randint(llm.model_config.vocab_size, shape, generator=generator).tolist()
    num_before = len(llm.engine.trace)
    params = SamplingParams(temperature=0.0, max_tokens=case.output_len, ignore_eos=True)
    llm.generate([{"prompt_token_ids": each} for each in ids], params, use_tqdm=False)
    return llm.engine.trace[num_before:]


def _seconds(step: StepTrace) -> float:
    return step.schedule_s + step.run_s + step.update_s


def _copy(traffic: Traffic) -> Traffic:
    return Traffic(traffic.num_calls, traffic.num_bytes, traffic.elapsed_s)


def _add(total: Traffic, before: Traffic, after: Traffic) -> None:
    total.num_calls += after.num_calls - before.num_calls
    total.num_bytes += after.num_bytes - before.num_bytes
    total.elapsed_s += after.elapsed_s - before.elapsed_s


def _linears_of(mlp: DenseMLP | SparseMLP) -> Sequence[Linear]:
    if isinstance(mlp, SparseMLP):
        return (mlp.router, *mlp.gate_up.layers, *mlp.down.layers)
    return (mlp.gate_up, mlp.down)


def weight_bytes(weights: ModelWeights) -> int:
    """Of everything that a forward pass reads, norms and biases left out."""
    linears = [weights.lm_head]
    for layer in weights.layers:
        linears += (layer.qkv, layer.o, *_linears_of(layer.mlp))
    return weights.embed.nbytes + sum(each.num_bytes for each in linears)
