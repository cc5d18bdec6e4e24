"""What each technique of the engine gains, and where it loses: the same work done in two or three ways, in turns.

`twophase bench prefix-caching | speculative | window | disaggregation | tensor-parallel | http`. A technique gives
cases, a case has a row of medians for each way. Techniques of two processes run in ranks; rank 0 returns the report.
"""

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from twophase.core.request import RequestOutput, SamplingParams
from twophase.llm import LLM
from twophase_tools.bench.machine import MachineRecord, num_usable_cores, record_machine
from twophase_tools.bench.turns import Say, in_turns

Row = dict[str, float | int | None]


@dataclass(frozen=True, slots=True)
class Case:
    """One workload: a row for each way of doing it, all with the same columns."""

    name: str
    rows: dict[str, Row]


@dataclass(frozen=True, slots=True)
class Report:
    """What a technique's cases gave."""

    technique: str
    model: str
    cases: tuple[Case, ...]
    machine: MachineRecord

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def to_text(self) -> str:
        lines = []
        for case in self.cases:
            columns = {name: max(10, len(name) + 2) for row in case.rows.values() for name in row}
            lines += [case.name, f"  {'':<28}" + "".join(f"{name:>{width}}" for name, width in columns.items())]
            for way, row in case.rows.items():
                cells = (f"{_shown(row[name]):>{width}}" for name, width in columns.items())
                lines.append(f"  {way:<28}{''.join(cells)}")
            lines.append("")
        return "\n".join([*lines, self.model, self.machine.to_text()])


def _shown(value: float | int | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class Task:
    """What is measured, and how thoroughly.

    Attributes:
        options: Of `LLM`, as the user gave them.
        quick: Tiny sizes: it shows that everything runs.
        size: Processes that share a model, for `tensor_parallel`.
    """

    model: str
    options: dict[str, Any]
    repeats: int = 3
    quick: bool = False
    size: int = 2
    say: Say = lambda line: None

    def open(self, **more: Any) -> LLM:
        return LLM(self.model, **self.options, **more)

    def compare(self, name: str, ways: Mapping[str, Callable[[int], Row]]) -> Case:
        """The ways in turns; what each gives for a round are numbers, of which medians are kept."""
        self.say(name)
        return Case(name, {way: _medians(rows) for way, rows in in_turns(ways, self.repeats).items()})


def _medians(rows: Sequence[Row]) -> Row:
    columns = {name: [value for row in rows if (value := row[name]) is not None] for name in rows[0]}
    return {name: statistics.median(values) if values else None for name, values in columns.items()}


def _greedy(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)


def _generate(llm: LLM, prompts: Iterable[Sequence[int]], num_tokens: int, salt: str = "") -> list[RequestOutput]:
    asked = [{"prompt_token_ids": list(prompt), "cache_salt": salt} for prompt in prompts]
    return llm.generate(asked, _greedy(num_tokens), use_tqdm=False)


def _random_ids(llm: LLM, rng: random.Random, num_tokens: int) -> list[int]:
    """A text that nobody has asked for yet; what it says makes no difference to the time."""
    return rng.choices(range(llm.model_config.vocab_size), k=num_tokens)


# -- prefix caching ---------------------------------------------------------------------------------------------------


def prefix_caching(task: Task) -> list[Case]:
    """A shared system prompt; prompts that share nothing; and what a stranger learns from the clock."""
    system_len, own_len, num_users, output_len = (32, 16, 3, 4) if task.quick else (480, 32, 7, 16)
    num_prompts, prompt_len = (2, 48) if task.quick else (4, 256)
    sizes = {"num_kv_blocks": (num_users + 1) * (2 + (system_len + own_len + output_len) // 16)}
    llm, without = (
        task.open(**sizes, skip_tokenizer_init=True, enable_prefix_caching=is_on) for is_on in (True, False)
    )
    rng = random.Random(0)
    first_tokens: dict[str, list[Row]] = {"nothing known": [], "system prompt known": [], "all known": []}
    for _ in range(task.repeats + 1):
        system = _random_ids(llm, rng, system_len)
        first, other = ([*system, *_random_ids(llm, rng, own_len)] for _ in range(2))
        for name, prompt in zip(first_tokens, (first, other, first), strict=True):
            first_tokens[name].append(_first_token(llm, prompt))
    hits = {name: _medians(rows[1:]) for name, rows in first_tokens.items()}  # the first warms up
    system = _random_ids(llm, rng, system_len)
    _first_token(llm, system)
    users = [[*system, *_random_ids(llm, rng, own_len)] for _ in range(num_users)]
    sides = {"with prefix caching": llm, "without": without}
    fresh = [[_random_ids(llm, rng, prompt_len) for _ in range(num_prompts)] for _ in range(task.repeats + 1)]
    return [
        Case(f"a prompt of {system_len} tokens for all and {own_len} of one's own", hits),
        Case(
            f"{num_users} users of one system prompt at once",
            {name: _served(each, users, output_len) for name, each in sides.items()},
        ),
        task.compare(
            f"{num_prompts} prompts of {prompt_len} tokens that share nothing",
            {name: lambda i, each=each: _served(each, fresh[i], 1) for name, each in sides.items()},  # type: ignore[misc]
        ),
        _attack(task, llm, rng),
    ]


def _first_token(llm: LLM, prompt: Sequence[int], salt: str = "") -> Row:
    start_s = time.perf_counter()
    (output,) = _generate(llm, [prompt], 1, salt)
    return {"TTFT s": time.perf_counter() - start_s, "tokens found": output.metrics.num_cached_tokens}


def _served(llm: LLM, prompts: list[list[int]], output_len: int) -> Row:
    before, start_s = llm.engine.stats().num_steps, time.perf_counter()
    outputs = _generate(llm, prompts, output_len)
    elapsed_s = time.perf_counter() - start_s
    steps = [step for step in llm.engine.trace if step.step >= before]
    return {
        "seconds": elapsed_s,
        "of it scheduling": sum(step.schedule_s + step.update_s for step in steps),
        "most blocks": max(step.blocks_in_use for step in steps),
        "tokens found": sum(output.metrics.num_cached_tokens for output in outputs),
    }


def _attack(task: Task, llm: LLM, rng: random.Random) -> Case:
    """The timing side channel of a prefix cache, and what closes it, a salt per tenant (arXiv:2502.07776).

    A victim's prompt is a text that everybody knows and a secret, one of `num_candidates`. A stranger asks for the
    known text with each candidate behind it, and names the one whose first token came soonest. Lengths are whole
    blocks: only those are found.
    """
    known_len, secret_len, num_candidates, num_trials = (16, 16, 3, 2) if task.quick else (64, 32, 8, 16)
    task.say("a stranger with a clock")
    trials: dict[str, list[Row]] = {"one cache for all": [], "a salt per tenant": []}
    for _ in range(num_trials):
        for name, (victim, stranger) in zip(trials, (("", ""), ("victim", "stranger")), strict=True):
            llm.scheduler.cache.reset_prefix_cache()
            known = _random_ids(llm, rng, known_len)
            candidates = [_random_ids(llm, rng, secret_len) for _ in range(num_candidates)]
            secret = rng.randrange(num_candidates)
            # Behind the secret each has a token of its own: a prompt's last token is never taken from the cache.
            _first_token(llm, [*known, *candidates[secret], *_random_ids(llm, rng, 1)], victim)
            _first_token(llm, known, stranger)  # or the first candidate would be the slowest of those with a salt
            end = _random_ids(llm, rng, 1)
            # Once each: by asking for a candidate the stranger makes it known.
            times_s = [float(_first_token(llm, [*known, *each, *end], stranger)["TTFT s"] or 0) for each in candidates]
            hit_s = times_s.pop(secret)
            trials[name].append({"found": int(hit_s < min(times_s)), "hit s": hit_s, "miss s": min(times_s)})
    found: dict[str, Row] = {}
    for name, rows in trials.items():
        found[name] = {"secrets found": sum(bool(row["found"]) for row in rows), "of": num_trials}
        found[name]["by chance"] = num_trials / num_candidates
        found[name] |= {column: value for column, value in _medians(rows).items() if column != "found"}
    return Case(f"which of {num_candidates} candidates is in another tenant's prompt?", found)


# -- speculation ------------------------------------------------------------------------------------------------------

PASSAGE = (
    "The lighthouse at Corran Point was built in 1838 by the engineer Margaret Dunmore. It stands 41 metres above the "
    "sea and its light can be seen for 22 miles. Two keepers lived there until 1974, when the lamp was made automatic. "
    "The old cottages are now a museum that opens from April to October, and visitors may climb the 168 steps."
)
STORY = "Invent a short story about a place that nobody has ever seen. Use unusual words."
EDIT = "Write this text again with every occurrence of '{}' replaced by '{}'.\n\n" + PASSAGE
EDITS = [EDIT.format(*each) for each in (("Corran", "Arden"), ("1838", "1841"), ("museum", "school"), ("sea", "lake"))]
# Where lookup wins, alone and in a batch; and what offers a drafter nothing. Questions, temperature, new tokens.
TEXTS: dict[str, tuple[list[str], float, int]] = {
    "copy a text": ([f"Repeat this text word for word, and write nothing else.\n\n{PASSAGE}"], 0.0, 112),
    "edit a text, 4 at once": (EDITS, 0.0, 112),
    "invent, temperature 1": ([STORY], 1.0, 112),
    "invent, temperature 1, 8 at once": ([STORY] * 8, 1.0, 64),
}


def speculative(task: Task) -> list[Case]:
    """Without drafts, with drafts wherever there is room, and with drafts as long as they pay; the same weights.

    `task.options` has a `speculative_config`.
    """
    from twophase_features.speculation.gate import SpeculationGate
    from twophase_features.speculation.speculator import GatedSpeculator

    # Without the prefix cache, or every run after the first would be spared its prompts.
    llm = task.open(max_num_seqs=8, enable_prefix_caching=False)
    assert isinstance(llm.engine.speculator, GatedSpeculator)
    assert llm.tokenizer is not None
    drafter, most = llm.engine.speculator.drafter, task.options["speculative_config"].num_speculative_tokens

    def prompt(question: str) -> Any:
        if llm.tokenizer is None or llm.tokenizer.chat_template is None:
            return question
        return {"prompt_token_ids": llm.tokenizer.apply_chat_template([{"role": "user", "content": question}])}

    def write(text: str, num_drafts: int, is_gated: bool, number: int) -> Row:
        gate = SpeculationGate() if is_gated else None
        questions, temperature, num_tokens = TEXTS[text]
        num_tokens = 6 if task.quick else num_tokens
        llm.engine.speculator = speculator = GatedSpeculator(drafter, num_drafts, gate)
        params = [
            SamplingParams(
                temperature=temperature, seed=seed, max_tokens=6 if task.quick else num_tokens, ignore_eos=True
            )
            for seed in range(len(questions))
        ]
        start_s = time.perf_counter()
        llm.generate([prompt(question) for question in questions], params, use_tqdm=False)
        elapsed_s = time.perf_counter() - start_s
        drafted, accepted = sum(speculator.num_drafted), sum(speculator.num_accepted)
        return {"seconds": elapsed_s, "drafts": drafted, "share accepted": accepted / drafted if drafted else None}

    cases = []
    for text in list(TEXTS)[:: 3 if task.quick else 1]:
        ways: dict[str, Callable[[int], Row]] = {
            "without": partial(write, text, 0, False),
            "always": partial(write, text, most, False),
            "while it pays": partial(write, text, most, True),
        }
        cases.append(task.compare(text, ways))
    return cases


# -- a sliding window with attention sinks ----------------------------------------------------------------------------

CUE, PHRASE = "The pass phrase for the harbour gate is", " violet copper seventeen"


def window(task: Task) -> list[Case]:
    """All keys, a window with sinks, the same window without: blocks and decode steps at the end of a long text,
    perplexity of prose, and how surprised the model is, in nats per token, by a phrase said within the window or before
    it when it is asked for again."""
    from twophase_tools.bench.perplexity import perplexity, prose, token_losses

    width, num_tokens, num_steps = (64, 640, 4) if task.quick else (256, 4096, 48)
    views = {"all keys": (None, 0), f"window {width}, 4 sinks": (width, 4), f"window {width}, no sinks": (width, 0)}
    sizes = {"num_kv_blocks": num_tokens // 16 + 32, "max_num_seqs": 1, "max_num_batched_tokens": 128}
    llms = {
        name: task.open(**sizes, max_trace_steps=None, sliding_window=keys, num_attention_sinks=sinks)
        for name, (keys, sinks) in views.items()
    }
    rows: dict[str, Row] = {}
    for name, llm in llms.items():
        task.say(f"{name}: perplexity and phrases")
        assert llm.tokenizer is not None
        encode = llm.tokenizer.encode
        text, said, cue, phrase = map(encode, (prose(), f"\n{CUE}{PHRASE}.\n", f"\n{CUE}", PHRASE))
        text = text[: num_tokens - num_steps]
        # Other text goes first, so that the sentence is no attention sink itself.
        near, far = (
            token_losses(llm, [*text[:32], *said, *text[:between], *cue, *phrase])[-len(phrase) :].double().mean()
            for between in (max(1, width - 96), 2 * width)
        )
        rows[name] = {"perplexity": perplexity(llm, text), "phrase near": float(near), "phrase far": float(far)}
    task.say(f"a text of {num_tokens:,} tokens")
    long_text = (text * -(-num_tokens // len(text)))[: num_tokens - num_steps]
    for llm in llms.values():
        llm.engine.add_request("long", {"prompt_token_ids": long_text}, _greedy(num_steps), cache_salt="long")
    while any(llm.engine.has_unfinished_requests() for llm in llms.values()):
        for llm in llms.values():
            llm.engine.step()
    for name, llm in llms.items():
        steps = llm.engine.trace[-num_steps:]
        rows[name] |= {
            "blocks at the end": steps[-2].blocks_in_use,  # the last step frees all
            "decode step s": statistics.median(step.run_s for step in steps if step.num_decodes),
        }
    return [Case(f"{num_tokens:,} tokens; perplexity of {len(text):,}", rows)]


# -- prefill and decode apart -----------------------------------------------------------------------------------------


def disaggregation(task: Task) -> list[Case]:
    """Streams that decode while long prompts arrive: one engine with all cores, with whole prompts and with chunks,
    against two engines with half of the cores each. To be called in each of two ranks."""
    from twophase.scheduling.policy import PriorityPolicy
    from twophase_features.parallel.disaggregation import disaggregated
    from twophase_features.policies.chunked_prefill import ChunkedPrefillPolicy
    from twophase_features.policies.whole_prompts import ContinuousPolicy

    # Streams, their tokens, prompts that come, their length, tokens of the first stream between two of them.
    shapes = {"long prompts beside streams": (4, 96, 3, 768, 24), "short prompts only": (16, 24, 0, 0, 1)}
    if task.quick:
        shapes = {"long prompts beside streams": (2, 8, 1, 48, 4), "short prompts only": (2, 4, 0, 0, 1)}
    limits: dict[str, Any] = {
        "num_kv_blocks": 512, "max_num_seqs": 32, "max_num_batched_tokens": 2048, "max_model_len": 2048,
        "enable_prefix_caching": False,  # each way reads the same prompts, and must compute them
    }  # fmt: skip
    options = limits | task.options
    with disaggregated(task.model, prefill_options={"max_num_batched_tokens": 512}, **options) as apart:
        if apart is None:
            return []
        together = task.open(**limits)
        threads = {apart: torch.get_num_threads(), together: max(1, num_usable_cores())}

        def serve(llm: LLM, policy: Any, shape: tuple[int, int, int, int, int], number: int) -> Row:
            llm.scheduler.policy = policy
            torch.set_num_threads(threads[llm])
            return _pace(_arrivals(llm, number, *shape), shape[0])

        ways = {
            "one engine, whole prompts": (together, ContinuousPolicy()),
            "one engine, chunks of 64": (together, ChunkedPrefillPolicy(64)),
            "two engines": (apart, PriorityPolicy()),
        }
        return [
            task.compare(name, {way: partial(serve, *how, shape) for way, how in ways.items()})
            for name, shape in shapes.items()
        ]


def _arrivals(
    llm: LLM, seed: int, num_streams: int, stream_len: int, num_prompts: int, prompt_len: int, every: int
) -> list[RequestOutput]:
    """Outputs of the streams, then of the prompts. Arrivals go by tokens, not by the clock."""
    rng, engine = random.Random(seed), llm.engine
    for i in range(num_streams):
        engine.add_request(f"stream {i}", {"prompt_token_ids": _random_ids(llm, rng, 16)}, _greedy(stream_len))
    outputs: dict[str, RequestOutput] = {}
    num_come = 0
    while engine.has_unfinished_requests() or num_come < num_prompts:
        outputs |= {output.request_id: output for output in engine.step()}
        num_tokens = len(outputs["stream 0"].outputs[0].token_ids) if "stream 0" in outputs else 0
        if num_come < num_prompts and num_tokens >= every * (num_come + 1) - every // 2:
            ids = _random_ids(llm, rng, prompt_len)
            engine.add_request(f"prompt {num_come}", {"prompt_token_ids": ids}, _greedy(2))
            num_come += 1
    names = [f"stream {i}" for i in range(num_streams)] + [f"prompt {i}" for i in range(num_prompts)]
    return [outputs[name] for name in names]


def _pace(outputs: list[RequestOutput], num_streams: int) -> Row:
    metrics = [output.metrics for output in outputs]
    gaps_s = [b - a for each in metrics[:num_streams] for a, b in pairwise(each.token_times_s)]
    ttft_s = [each.ttft_s or 0.0 for each in metrics[num_streams:]]
    return {
        "seconds": max(each.token_times_s[-1] for each in metrics) - min(each.arrival_s for each in metrics),
        "TPOT s": statistics.fmean(gaps_s),
        "longest gap s": max(gaps_s),
        "prompts' TTFT s": statistics.fmean(ttft_s) if ttft_s else None,
    }


# -- tensor parallelism -----------------------------------------------------------------------------------------------


def tensor_parallel(task: Task) -> list[Case]:
    """One process with all cores against several that share the model. To be called in each rank; rank 0 gets beyond
    the first line, and the others sleep while its own engine runs."""
    from twophase_tools.bench.quality_cost import weight_memory_bytes

    size, sizes = task.size, {"num_kv_blocks": 128, "max_num_seqs": 16}
    shapes = {"decode, 1 sequence": (1, 16, 33), "decode, 16 sequences": (16, 16, 33), "prefill, 512": (1, 512, 1)}
    if task.quick:
        shapes = {"decode, 1 sequence": (1, 16, 4), "prefill, 32": (1, 32, 1)}
    with task.open(tensor_parallel_size=size, **sizes) as shared:
        llms = {"one process": task.open(**sizes), f"{size} processes": shared}
        threads = {"one process": max(size, num_usable_cores() // size * size)}

        def steps(way: str, number: int, num_seqs: int, prompt_len: int, output_len: int) -> Row:
            """Of a step, and of it in all-reduces, waiting included."""
            llm, rng = llms[way], random.Random(number)
            torch.set_num_threads(threads.get(way, own_threads))
            traffic = getattr(llm.runner, "traffic", {}).get("all_reduce")
            for i in range(num_seqs):
                ids = _random_ids(llm, rng, prompt_len)
                llm.engine.add_request(str(i), {"prompt_token_ids": ids}, _greedy(output_len))
            steps_s, reduces_s = [], []
            while llm.engine.has_unfinished_requests():
                before_s = traffic.elapsed_s if traffic else 0.0
                llm.engine.step()
                step = llm.engine.trace[-1]
                if (step.num_decodes == 0) == (output_len == 1):
                    steps_s.append(step.schedule_s + step.run_s + step.update_s)
                    reduces_s.append((traffic.elapsed_s if traffic else 0.0) - before_s)
            return {"step s": statistics.median(steps_s), "share of all-reduces": sum(reduces_s) / sum(steps_s)}

        own_threads = torch.get_num_threads()
        memory: dict[str, Row] = {
            way: {
                "weights MiB": weight_memory_bytes(llm.model.weights) / 2**20,
                "K/V KiB a token": llm.kv_cache.spec.bytes_per_token / 1024,
            }
            for way, llm in llms.items()
        }
        compared = [
            task.compare(name, {way: lambda i, way=way, shape=shape: steps(way, i, *shape) for way in llms})  # type: ignore[misc]
            for name, shape in shapes.items()
        ]
        return [Case("memory of the largest process", memory), *compared]


# -- HTTP -------------------------------------------------------------------------------------------------------------


def http(task: Task) -> list[Case]:
    """The same requests in this process and by a server with the same options, in a closed loop of 16 clients. The
    server shares the cores with the clients."""
    from twophase_tools.bench.http_client import HttpClient, play
    from twophase_tools.bench.serve import ServingRun, serve
    from twophase_tools.bench.server_process import ServerProcess, free_port
    from twophase_tools.load.workloads import FixedWorkload, TimedRequest

    num_clients = 16
    per_client, prompt_len, output_len = (1, 8, (3, 5)) if task.quick else (2, 64, (64, 192))
    llm = task.open(max_num_seqs=num_clients)
    vocab_size = llm.model_config.vocab_size

    def workload(number: int) -> FixedWorkload:
        """New requests in each round: the prefix cache knows none. Of unequal lengths: were all as long, all would end
        in one step, and over HTTP the next step would have whoever is back first, and nobody else."""
        rng = random.Random(number)
        names = (f"{number}-{i}" for i in range(per_client * num_clients))
        return FixedWorkload(
            "http", tuple(TimedRequest(name, 0.0, prompt_len, rng.randint(*output_len)) for name in names)
        )

    def throughput(run: ServingRun) -> Row:
        gaps_s = [gap for each in run.records for gap in each.itls_s]
        return {
            "tokens/s": sum(each.num_output_tokens for each in run.records) / (run.window[1] - run.window[0]),
            "TTFT s": statistics.median(each.ttft_s or 0.0 for each in run.records),
            "ITL s": statistics.median(gaps_s) if gaps_s else None,
            "not answered": sum(not each.is_completed for each in run.records),
        }

    words = ["--model", str(llm.model_dir), "--device", str(llm.kv_cache.device), "--backend", llm.model.backend.name]
    words += ["--dtype", str(llm.kv_cache.spec.dtype).removeprefix("torch."), "--max-num-seqs", str(num_clients)]
    words += ["--log-level", "error"]
    with tempfile.TemporaryDirectory(prefix="twophase-http-") as folder:
        log, threads = Path(folder) / "server.log", {"OMP_NUM_THREADS": str(torch.get_num_threads())}
        server = ServerProcess("twophase_tools", ["serve", *words], free_port(), log, threads)

        async def over_http(number: int) -> ServingRun:
            async with HttpClient(server.url) as client:
                await client.model()  # it is asked for once, and that is not what requests cost
                return await play(client.ask, workload(number), vocab_size, concurrency=num_clients)

        ways: dict[str, Callable[[int], Row]] = {
            "in process": lambda i: throughput(serve(llm.engine, workload(i), vocab_size, concurrency=num_clients)),
            "HTTP": lambda i: throughput(asyncio.run(over_http(i))),
        }
        try:
            asyncio.run(server.ready())
            return [task.compare(f"{num_clients} clients, {per_client} requests each", ways)]
        finally:
            asyncio.run(server.stop())


TECHNIQUES: dict[str, Callable[[Task], list[Case]]] = {
    "prefix-caching": prefix_caching,
    "speculative": speculative,
    "window": window,
    "disaggregation": disaggregation,
    "tensor-parallel": tensor_parallel,
    "http": http,
}


def bench_technique(name: str, task: Task) -> Report | None:
    """The report; None in a rank that only helped.

    Raises:
        TwophaseError: The model, an option or the machine cannot be used; says why.
    """
    cases = TECHNIQUES[name](task)
    return Report(name, task.model, tuple(cases), record_machine()) if cases else None
