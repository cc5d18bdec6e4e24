"""The engine in a thread of its own: what callers get, and that blocks come back, whatever happens to these."""

import asyncio
import contextlib
import threading
import time
from dataclasses import replace
from unittest.mock import Mock

import pytest

from tests.engine.conftest import tiny_folder  # noqa: F401  (a fixture)
from tests.engine.engines import check_idle
from twophase import LLM, AsyncLLM, SamplingParams, StructuredOutputs
from twophase.core.errors import ConfigError, InvalidRequestError
from twophase_features.serving.errors import DeadlineError, DrainingError, EngineDeadError, QueueFullError
from twophase_tools.named_policies import policy_from_text

TEXTS = ["The quick brown fox", "naïve café", "日本", "dog"]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
PATIENCE_S = 60


@pytest.fixture(scope="module")
def llm(tiny_folder):  # noqa: F811
    return LLM(tiny_folder, num_kv_blocks=128, block_size=4)


@contextlib.contextmanager
def held(served):
    """The engine's thread stands still, just before a step."""
    is_held, go_on = threading.Event(), threading.Event()

    def hold():
        is_held.set()
        if not go_on.wait(PATIENCE_S):
            raise TimeoutError("it was held for too long")

    with served._changed:
        served._post(hold)
    assert is_held.wait(PATIENCE_S)
    try:
        yield
    finally:
        go_on.set()


async def until(is_so):
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s, "it never happened"
        await asyncio.sleep(0.001)


async def waiting(served, texts, params=GREEDY, **options):
    """A task for each text; the engine, which is held, has all of them in its queue."""
    num_before = served.num_unfinished
    tasks = [asyncio.ensure_future(last_of(served.generate(text, params, **options))) for text in texts]
    await until(lambda: served.num_unfinished == num_before + len(texts))
    return tasks


async def last_of(outputs):
    return [output async for output in outputs][-1]


def run(llm, main, **options):
    """`main` with an AsyncLLM over the llm; afterwards nothing is left in its engine."""

    async def body():
        async with AsyncLLM.of(llm, **options) as served:
            return await asyncio.wait_for(main(served), PATIENCE_S)

    result = asyncio.run(body())
    check_idle(llm.engine)
    assert not llm.engine.has_unfinished_requests()
    return result


def test_outputs_grow_and_a_slow_reader_finds_the_newest(llm):
    async def main(served):
        stream = await served.submit("The", GREEDY)
        first = await anext(stream)
        await until(lambda: not served.num_unfinished)
        rest = [output async for output in stream]
        fast = [len(output.outputs[0].token_ids) async for output in served.generate("The", GREEDY)]
        return first, rest, fast

    first, rest, fast = run(llm, main)
    assert not first.finished
    assert [output.finished for output in rest] == [True]
    assert fast == sorted(set(fast))
    assert fast[-1] == 8


def test_a_refusal_reaches_its_caller_alone(llm):
    async def main(served):
        other = asyncio.ensure_future(last_of(served.generate("The", GREEDY)))
        with pytest.raises(InvalidRequestError, match="at least one token"):
            await anext(served.generate("", GREEDY, request_id="mine"))
        with pytest.raises(InvalidRequestError, match="deadline_s must be a finite number of seconds > 0"):
            await anext(served.generate("a", GREEDY, deadline_s=0))
        assert (await last_of(served.generate("a", GREEDY, request_id="mine"))).finished
        return await other

    assert run(llm, main).finished


def test_an_id_is_somebodys_until_the_end(llm):
    async def main(served):
        stream = served.generate("The", LONG, request_id="mine")
        await anext(stream)
        with pytest.raises(InvalidRequestError, match="request id 'mine' is in use"):
            await served.submit("a", GREEDY, request_id="mine")
        await stream.aclose()
        await until(lambda: not served.num_unfinished)
        assert (await last_of(served.generate("a", GREEDY, request_id="mine"))).finished

    run(llm, main)


def test_a_late_abort_harms_nobody(llm):
    """Of a request that has ended, whose id is another's by now."""

    async def main(served):
        with held(served):
            first = asyncio.ensure_future(served.submit("The", LONG, request_id="mine"))
            await until(lambda: served.num_unfinished == 1)
        old = await first
        with held(served):
            old.abort()
            old.abort()
        await until(lambda: not served.num_unfinished)
        assert served.is_alive
        return await last_of(served.generate("a", GREEDY, request_id="mine"))

    assert run(llm, main).finished


# -- being prepared ---------------------------------------------------------------------------------------------------

GUIDED = SamplingParams(max_tokens=4, structured_outputs=StructuredOutputs(choice=["a"]))


def test_what_a_tokenizer_raises_harms_nobody_else(llm, monkeypatch):
    def broken(text, **options):
        raise RuntimeError("planted")

    async def main(served):
        with monkeypatch.context() as patch:
            patch.setattr(llm.engine._codec, "encode", broken, raising=False)
            with pytest.raises(RuntimeError, match="planted"):
                await served.submit("The", GREEDY)
        assert served.is_alive
        assert (await last_of(served.generate("a", GREEDY))).finished

    run(llm, main)


@contextlib.contextmanager
def slow_grammars(llm, monkeypatch):
    """A grammar takes as long as this lasts."""
    prepare, go_on = llm.engine.prepare, threading.Event()

    def slow(request_id, prompt, params, **options):
        if params.structured_outputs is not None and not go_on.wait(PATIENCE_S):
            raise TimeoutError("it was held for too long")
        return prepare(request_id, prompt, replace(params, structured_outputs=None), **options)

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine, "prepare", slow, raising=False)
        try:
            yield
        finally:
            go_on.set()


def test_a_grammar_that_takes_long_keeps_nobody_else_waiting(llm, monkeypatch):
    async def main(served):
        with slow_grammars(llm, monkeypatch):
            slow = asyncio.ensure_future(last_of(served.generate("The", GUIDED)))
            await until(lambda: served.num_unfinished == 1)
            assert served.num_waiting == 1
            other = await last_of(served.generate("a", GREEDY))
            second = asyncio.ensure_future(last_of(served.generate("The", GUIDED)))
            await until(lambda: served.num_unfinished == 2)
            with pytest.raises(QueueFullError, match="and 2 do"):
                await served.submit("a", GREEDY)
            assert not await served.drain(timeout_s=0.01)
        assert await served.drain()
        assert served.num_waiting == 0
        return other, await slow, await second

    assert all(output.finished for output in run(llm, main, max_queue=2))


@pytest.mark.parametrize("by", ["leaving", "deadline", "closing"])
def test_a_request_ends_while_it_is_prepared(llm, monkeypatch, by):
    async def main(served):
        with slow_grammars(llm, monkeypatch):
            options = {"deadline_s": 0.01} if by == "deadline" else {}
            task = asyncio.ensure_future(served.submit("The", GUIDED, request_id="mine", **options))
            await until(lambda: served.num_unfinished == 1 or task.done())
            if by == "leaving":
                task.cancel()
            elif by == "closing":
                await asyncio.to_thread(served.close)
            error = {"leaving": asyncio.CancelledError, "deadline": DeadlineError, "closing": EngineDeadError}[by]
            with pytest.raises(error):
                await task
            await until(lambda: not served.num_unfinished)
            if by != "closing":
                assert (await last_of(served.generate("a", GREEDY, request_id="mine"))).finished

    run(llm, main, max_queue=1)


# -- going away -------------------------------------------------------------------------------------------------------


async def close(stream):
    await stream.aclose()


async def cancel(stream):
    while True:
        task = asyncio.ensure_future(anext(stream))
        done, _ = await asyncio.wait([task], timeout=0.01)
        if not done:  # it has read what there was, and waits
            break
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("leave", [close, cancel])
def test_who_leaves_costs_one_step_at_most(llm, leave):
    async def main(served):
        stream = served.generate("The quick", LONG, request_id="leaver")
        await anext(stream)
        assert served.stats().cache.num_in_use > 0
        before = served.stats().num_aborted
        with held(served):
            num_steps = served.stats().num_steps
            await leave(stream)
        other = await last_of(served.generate("a", GREEDY))
        await until(lambda: served.stats().cache.num_in_use == 0)
        assert served.stats().num_aborted == before + 1
        later = [step for step in served.trace if step.step >= num_steps]
        # The step that was about to begin; those after it compute nothing for who has left.
        assert sum(chunk[0] == "leaver" for step in later for chunk in step.chunks) <= 1
        assert len(later) > 1
        return other

    assert run(llm, main).finished


def test_an_event_loop_that_ends_takes_its_requests_with_it(llm):
    served = AsyncLLM.of(llm)
    before = served.stats().num_aborted

    async def forget():
        stream = await served.submit("The", LONG)
        await anext(stream)

    with contextlib.ExitStack() as stack:
        asyncio.run(forget())
        stack.callback(served.close)
        asyncio.run(until(lambda: not served.num_unfinished))
    assert served.stats().num_aborted == before + 1
    check_idle(llm.engine)


def test_callers_of_two_event_loops(llm):
    served = AsyncLLM.of(llm)
    outputs = {}

    def caller(text):
        outputs[text] = asyncio.run(last_of(served.generate(text, GREEDY)))

    threads = [threading.Thread(target=caller, args=(text,)) for text in TEXTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    served.close()
    expected = llm.generate(TEXTS, GREEDY, use_tqdm=False)
    assert [outputs[text].outputs for text in TEXTS] == [output.outputs for output in expected]


# -- limits -----------------------------------------------------------------------------------------------------------


def test_the_queue_ages_while_a_step_hangs(llm):
    async def main(served):
        assert served.queue_age_s is None
        with held(served):
            first = await waiting(served, ["a"])
            await until(lambda: served.queue_age_s > 0.05)
            age_s = served.queue_age_s
            second = await waiting(served, ["b"])
            assert served.queue_age_s >= age_s
        await asyncio.gather(*first, *second)
        running = served.generate("c", LONG)
        await anext(running)  # who runs does not wait
        assert served.queue_age_s is None
        await running.aclose()

    run(llm, main)


def test_a_full_queue(llm):
    async def main(served):
        with held(served):
            tasks = await waiting(served, TEXTS[:2])
            with pytest.raises(QueueFullError, match=r"at most 2 requests may wait .* and 2 do"):
                await served.submit("dog", GREEDY)
        assert all(output.finished for output in await asyncio.gather(*tasks))
        running = [served.generate(text, LONG) for text in TEXTS]
        for stream in running:  # who runs does not wait
            await anext(stream)
        for stream in running:
            await stream.aclose()

    run(llm, main, max_queue=2)


def test_whoever_leaves_the_queue_makes_room(llm):
    async def main(served):
        with held(served):
            (task,) = await waiting(served, ["The"])
            task.cancel()
            await asyncio.wait([task])
        await until(lambda: not served.num_unfinished)
        with pytest.raises(InvalidRequestError):
            await served.submit("", GREEDY)
        return await last_of(served.generate("a", GREEDY))

    assert run(llm, main, max_queue=1).finished


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "many"])
@pytest.mark.unchecked_types
def test_a_queue_of_no_size(llm, bad):
    with pytest.raises(ConfigError, match="max_queue must be a whole number >= 1, or None"):
        AsyncLLM.of(llm, max_queue=bad)


def test_a_deadline_in_the_queue(llm):
    async def main(served):
        with held(served):
            (task,) = await waiting(served, ["The"], deadline_s=0.001)
            time.sleep(0.01)  # longer than the deadline, on any machine
        with pytest.raises(DeadlineError, match="not finished by its deadline"):
            await task
        assert (await last_of(served.generate("The", GREEDY, deadline_s=3600))).finished

    run(llm, main)


# -- policies that wait -----------------------------------------------------------------------------------------------


@pytest.fixture
def patient_llm(tiny_folder):  # noqa: F811
    """Its policy waits an hour for company."""
    policy = policy_from_text("dynamic:batch_size=2,timeout_s=3600")
    return LLM(tiny_folder, num_kv_blocks=64, block_size=4, policy=policy)


def test_a_policy_that_waits_is_woken_by_company(patient_llm):
    async def main(served):
        first = asyncio.ensure_future(last_of(served.generate("The", GREEDY)))
        await until(lambda: served.stats().num_waiting == 1)
        num_steps = served.stats().num_steps
        second = await last_of(served.generate("a", GREEDY))
        return num_steps, await first, second

    num_steps, first, second = run(patient_llm, main)
    assert num_steps == 0
    assert first.finished
    assert second.finished


def test_a_deadline_does_not_wait_for_a_policy_that_waits(patient_llm):
    async def main(served):
        with pytest.raises(DeadlineError):
            await last_of(served.generate("The", GREEDY, deadline_s=0.01))

    run(patient_llm, main)


# -- the end ----------------------------------------------------------------------------------------------------------


def test_an_idle_thread_sleeps_until_somebody_comes(llm):
    async def main(served):
        await last_of(served.generate("The", GREEDY))
        with held(served):
            return served._max_sleep_s()

    assert run(llm, main) is None


@pytest.mark.parametrize("can_abort", [True, False])
def test_a_crash_is_told_to_everybody(tiny_folder, monkeypatch, can_abort):  # noqa: F811
    llm = LLM(tiny_folder, num_kv_blocks=64, block_size=4)

    def broken(*ids):
        raise ZeroDivisionError("planted")

    async def main():
        served = AsyncLLM.of(llm)
        assert served.is_alive
        with held(served):
            tasks = await waiting(served, TEXTS)
            monkeypatch.setattr(llm.engine, "step", broken)
            if not can_abort:
                monkeypatch.setattr(llm.engine, "abort", broken)
        for task in tasks:
            with pytest.raises(EngineDeadError, match="died of ZeroDivisionError: planted"):
                await task
        assert isinstance(served.error, ZeroDivisionError)
        assert not served.is_alive
        with pytest.raises(EngineDeadError, match="planted"):
            await served.submit("a", GREEDY)
        assert await served.drain()
        await asyncio.to_thread(served.close)
        assert isinstance(served.error, ZeroDivisionError)

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    monkeypatch.undo()
    if not can_abort:
        with pytest.raises(InvalidRequestError, match=r"died of .*planted.* could not be aborted .* the model again"):
            AsyncLLM.of(llm)
    else:
        check_idle(llm.engine)
        assert llm.generate("The", GREEDY, use_tqdm=False)[0].finished


def test_an_engine_has_one_owner(llm):
    async def main(served):
        running = served.generate("The", LONG)
        await anext(running)
        for call in (lambda: AsyncLLM.of(llm), lambda: llm.generate("a"), lambda: next(llm.stream("a"))):
            with pytest.raises(InvalidRequestError, match=r"an AsyncLLM runs this LLM's engine: .* `close` it first"):
                call()
        assert (await last_of(running)).finished

    run(llm, main)
    assert llm.generate("a", GREEDY, use_tqdm=False)[0].finished


def test_a_drain_finishes_what_was_accepted(llm):
    async def main(served):
        with held(served):
            tasks = await waiting(served, TEXTS)
            assert not await served.drain(timeout_s=0.01)
            assert served.is_draining
            with pytest.raises(DrainingError, match="accepts no new ones"):
                await served.submit("a", GREEDY)
        assert await served.drain()
        assert served.is_alive
        return await asyncio.gather(*tasks)

    assert all(output.finished for output in run(llm, main))


def test_after_close_the_llm_is_yours_again(llm):
    async def main():
        served = AsyncLLM.of(llm)
        running = await served.submit("The", LONG)
        await anext(running)
        with held(served):
            tasks = await waiting(served, TEXTS, LONG)
            closing = asyncio.ensure_future(asyncio.to_thread(served.close))
            await until(lambda: not served.is_alive)
        await closing
        for task in (asyncio.ensure_future(last_of(running)), *tasks):
            with pytest.raises(EngineDeadError, match="closed"):
                await task
        with pytest.raises(EngineDeadError, match="closed"):
            await served.submit("a", GREEDY)
        assert served.error is None

    asyncio.run(asyncio.wait_for(main(), PATIENCE_S))
    check_idle(llm.engine)
    assert llm.generate("The", GREEDY, use_tqdm=False)[0].finished


def test_an_llm_that_is_busy_is_not_taken_over(llm):
    llm.engine.add_request("busy", "The", GREEDY)
    with pytest.raises(InvalidRequestError, match="unfinished requests"):
        AsyncLLM.of(llm)
    llm.engine.abort("busy")


def test_an_async_llm_opens_a_model_as_llm_does(tiny_folder):  # noqa: F811
    async def main():
        async with AsyncLLM(tiny_folder, num_kv_blocks=64, block_size=4, max_queue=3) as served:
            assert served.model_name == tiny_folder.name
            return await last_of(served.generate("The", GREEDY))

    assert asyncio.run(main()).finished


def test_observers_see_each_step_and_each_end(llm):
    class Log:
        def __init__(self):
            self.steps, self.ended = [], []

        def note_step(self, step):
            self.steps.append(step)

        def note_end(self, output):
            self.ended.append((output.request_id, output.outputs[0].finish_reason))

    log = Log()

    async def main(served):
        served.observe(log)
        first = served.stats().num_steps
        await last_of(served.generate("The", GREEDY, request_id="a"))
        stream = served.generate("The", LONG, request_id="b")
        await anext(stream)
        await stream.aclose()
        await until(lambda: not served.num_unfinished)
        return first, served.stats().num_steps

    first, end = run(llm, main)
    assert log.ended == [("a", "length"), ("b", "abort")]
    assert [step.step for step in log.steps] == list(range(first, end))


def test_an_observer_that_raises_is_dropped(llm, caplog):
    first, good, last = Mock(), Mock(), Mock()
    first.note_step.side_effect = last.note_end.side_effect = ZeroDivisionError("planted")

    async def main(served):
        for observer in (first, good, last):
            served.observe(observer)
        return [await last_of(served.generate("The", GREEDY)) for _ in range(2)]

    assert all(output.finished for output in run(llm, main))
    assert [len(mock.note_step.mock_calls) for mock in (first, good, last)] == [1, 16, 8]
    assert [len(mock.note_end.mock_calls) for mock in (first, good, last)] == [0, 2, 1]
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError] * 2
