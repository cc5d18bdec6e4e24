"""What each technique of the engine gains, and where it loses: the same work done in two or three ways, in turns.

`twophase bench prefix-caching | speculative | window`. A technique gives cases, a case has a row of medians for each
way.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from twophase.core.request import RequestOutput, SamplingParams
from twophase.llm import LLM
from twophase_tools.bench.report import table
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

    def to_text(self) -> str:
        lines = []
        for case in self.cases:
            columns = list(next(iter(case.rows.values())))
            rows = ((way, *(_shown(row[name]) for name in columns)) for way, row in case.rows.items())
            lines += [case.name, "", table(("", *(f"{name}:" for name in columns)), rows), ""]
        return "\n".join([*lines, self.model])


def _shown(value: float | int | None) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


@dataclass(frozen=True, slots=True)
class Task:
    """What is measured, and how thoroughly.

    Attributes:
        options: Of `LLM`, as the user gave them.
        quick: Tiny sizes: it shows that everything runs.
    """

    model: str
    options: dict[str, Any]
    repeats: int = 3
    quick: bool = False
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
            SamplingParams(temperature=temperature, seed=seed, max_tokens=num_tokens, ignore_eos=True)
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


TECHNIQUES: dict[str, Callable[[Task], list[Case]]] = {
    "prefix-caching": prefix_caching,
    "speculative": speculative,
    "window": window,
}


def bench_technique(name: str, task: Task) -> Report:
    """Raises TwophaseError: the model, an option or the machine cannot be used; says why."""
    return Report(name, task.model, tuple(TECHNIQUES[name](task)))
