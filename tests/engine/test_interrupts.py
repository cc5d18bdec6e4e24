"""Ctrl-C at any line of a run: the engine goes on afterwards as if it had not happened."""

import linecache
import os
import random
import signal
import sys

import pytest

import twophase
from tests.cache.integrity import check_integrity
from tests.engine.engines import check_idle, make_engine, prompt_of
from twophase import LLM
from twophase.core.request import SamplingParams
from twophase.engine.engine import uninterrupted

PACKAGE_FOLDER = os.path.dirname(twophase.__file__)
# Six sequences under memory pressure: admission, chunks, forks, copy-on-write, preemption and prefix hits all occur.
PROMPTS = [prompt_of(seed, length) for seed, length in enumerate((5, 13, 9, 13))]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=9, ignore_eos=True),
    SamplingParams(seed=1, max_tokens=8, ignore_eos=True, n=2),
    SamplingParams(temperature=0, max_tokens=12, ignore_eos=True),
    SamplingParams(seed=2, max_tokens=6, ignore_eos=True, n=2),
]


class InterruptAt:
    """Raises SIGINT in this process at the n-th line of the package that runs inside its `with` blocks; counts them."""

    def __init__(self, line: int | None) -> None:
        self.line = line
        self.num_lines = 0
        self.where = None

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *exc_info):
        sys.settrace(None)

    def _trace(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(PACKAGE_FOLDER):
            return None
        if event == "line":
            self.num_lines += 1
            if self.num_lines == self.line:
                file, number = frame.f_code.co_filename, frame.f_lineno
                self.where = f"{os.path.basename(file)}:{number}: {linecache.getline(file, number).strip()}"
                signal.raise_signal(signal.SIGINT)
        return self._trace


def start(model):
    engine = make_engine(model, num_blocks=13, budget=10, max_num_seqs=6)
    for i, (prompt, params) in enumerate(zip(PROMPTS, PARAMS, strict=True)):
        engine.add_request(str(i), prompt, params)
    return engine


def tokens(outputs):
    return {i: [completion.token_ids for completion in output.outputs] for i, output in outputs.items()}


def run(model, interrupt):
    """Step to the end; returns the engine, all outputs, and whether an interrupt was felt."""
    engine = start(model)
    outputs, was_felt = {}, False
    while engine.has_unfinished_requests():
        try:
            with interrupt:
                stepped = engine.step()
        except KeyboardInterrupt:
            was_felt = True
            check_integrity(engine._scheduler.cache)
        else:
            outputs |= {output.request_id: output for output in stepped}
    check_idle(engine)
    return engine, outputs, was_felt


@pytest.fixture(scope="module")
def undisturbed(tiny_model):
    counter = InterruptAt(None)
    engine, outputs, _ = run(tiny_model, counter)
    assert engine.stats().num_preemptions > 0
    return tokens(outputs), counter.num_lines


def check_lines(model, undisturbed, lines):
    expected, _ = undisturbed
    num_felt = 0
    for line in lines:
        interrupt = InterruptAt(line)
        _, outputs, was_felt = run(model, interrupt)
        where = interrupt.where
        assert was_felt, f"the interrupt at {where} was lost"
        # Outputs handed over in the very act of returning are the caller's loss, not the engine's.
        if where.endswith("return outputs"):
            continue
        num_felt += 1
        assert tokens(outputs) == expected, f"after an interrupt at {where}"
    assert num_felt > len(list(lines)) // 2


def test_at_a_sample_of_lines(tiny_model, undisturbed):
    check_lines(tiny_model, undisturbed, random.Random(0).sample(range(1, undisturbed[1]), 10))


@pytest.mark.full
def test_at_many_lines(tiny_model, undisturbed):
    check_lines(tiny_model, undisturbed, range(1, undisturbed[1], 97))


def test_generate_at_a_sample_of_lines(tiny_folder):
    """Whichever line it hits, the requests are gone afterwards and the same LLM serves them anew."""
    llm = LLM(tiny_folder, num_kv_blocks=13, block_size=4, max_num_batched_tokens=10, max_num_seqs=6)
    with InterruptAt(None) as counter:
        expected = [output.outputs for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]
    for line in random.Random(1).sample(range(1, counter.num_lines), 6):
        llm.scheduler.cache.reset_prefix_cache()
        with pytest.raises(KeyboardInterrupt), InterruptAt(line):
            llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        check_idle(llm.engine)
        assert not llm.engine.has_unfinished_requests()
        assert [output.outputs for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)] == expected


class TestUninterrupted:
    def test_the_interrupt_is_felt_after_the_outermost_block(self):
        reached = []

        def body():
            with uninterrupted():
                with uninterrupted():
                    signal.raise_signal(signal.SIGINT)
                    reached.append(1)
                reached.append(2)
            reached.append("too far")

        with pytest.raises(KeyboardInterrupt):
            body()
        assert reached == [1, 2]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_someone_elses_handler_is_called(self):
        calls = []
        previous = signal.signal(signal.SIGINT, lambda number, frame: calls.append(number))
        try:
            with uninterrupted():
                signal.raise_signal(signal.SIGINT)
                assert calls == []
            assert calls == [signal.SIGINT]
        finally:
            signal.signal(signal.SIGINT, previous)
