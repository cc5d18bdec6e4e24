"""Steps, outputs, metrics and the trace of the engine itself."""

import pytest

from tests.engine.engines import GREEDY, finish, make_engine, prompt_of, run, tokens_of
from tests.engine.tokenizers_for_tests import byte_level
from twophase.core.request import SamplingParams


class Clock:
    """Every reading is one second later than the last."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1
        return self.now_s


class TestStep:
    def test_the_trace_is_a_timeline(self, tiny_model):
        """A prompt of 10 in chunks of 4 beside a decode; decodes come first."""
        engine = make_engine(tiny_model, budget=4, max_num_seqs=4)
        engine.add_request("a", prompt_of(0, 3), SamplingParams(temperature=0, max_tokens=5, ignore_eos=True))
        engine.add_request("b", prompt_of(1, 10), SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
        finish(engine)
        assert [step.chunks for step in engine.trace] == [
            (("a", 0, 0, 3), ("b", 0, 0, 1)),
            (("a", 0, 3, 1), ("b", 0, 1, 3)),
            (("a", 0, 4, 1), ("b", 0, 4, 3)),
            (("a", 0, 5, 1), ("b", 0, 7, 3)),
            (("a", 0, 6, 1), ("b", 0, 10, 1)),
        ]
        assert [step.num_decodes for step in engine.trace] == [0, 1, 1, 1, 2]
        assert [step.finished for step in engine.trace] == [(), (), (), (), (("a", 0), ("b", 0))]
        assert [step.num_running for step in engine.trace] == [2, 2, 2, 2, 0]
        assert [step.blocks_in_use for step in engine.trace] == [1 + 3, 1 + 3, 2 + 3, 2 + 3, 0]
        assert all(step.blocks_in_use + step.blocks_cached + step.blocks_free == 96 for step in engine.trace)
        assert [step.step for step in engine.trace] == list(range(5))

    @pytest.mark.parametrize(("max_steps", "kept"), [(3, [5, 6, 7]), (None, list(range(8))), (0, [])])
    def test_the_trace_keeps_the_newest_steps(self, tiny_model, max_steps, kept):
        engine = make_engine(tiny_model, max_trace_steps=max_steps)
        run(engine, [prompt_of(0, 5)])
        assert [step.step for step in engine.trace] == kept

    def test_durations_and_metrics_come_from_the_engines_clock(self, tiny_model):
        engine = make_engine(tiny_model, clock=Clock())
        (output,) = run(engine, [prompt_of(0, 5)], SamplingParams(temperature=0, max_tokens=3, ignore_eos=True))
        step = engine.trace[0]
        assert (step.start_s, step.schedule_s, step.run_s, step.update_s) == (2, 1, 1, 2)
        metrics = output.metrics
        assert (metrics.arrival_s, metrics.first_scheduled_s, metrics.first_token_s) == (1, 3, 5)
        assert metrics.token_times_s == (5, 10, 15)
        assert (metrics.finished_s, metrics.ttft_s, metrics.tpot_s, metrics.latency_s) == (15, 4, 5, 14)
        assert (metrics.num_prompt_tokens, metrics.num_cached_tokens, metrics.num_preemptions) == (5, 0, 0)

    def test_progress_is_reported_to_those_who_stream(self, tiny_model):
        engine = make_engine(tiny_model)
        engine.add_request("quiet", prompt_of(0, 5), GREEDY, stream=False)
        engine.add_request("loud", prompt_of(1, 5), GREEDY)
        reports = []
        while engine.has_unfinished_requests():
            reports.append({output.request_id: len(output.outputs[0].token_ids) for output in engine.step()})
        assert reports == [{"loud": n} for n in range(1, 8)] + [{"quiet": 8, "loud": 8}]

    def test_block_tables_of_what_runs(self, tiny_model):
        engine = make_engine(tiny_model)
        engine.add_request("a", prompt_of(0, 9), GREEDY)
        engine.add_request("b", prompt_of(1, 6), SamplingParams(n=2, seed=0, max_tokens=4, ignore_eos=True))
        assert engine.block_tables() == {}
        engine.step()
        tables = engine.block_tables()
        assert {name: num_tokens for name, (_, num_tokens) in tables.items()} == {"a": 9, "b.0": 6, "b.1": 6}
        assert tables["b.0"] == tables["b.1"]
        engine.step()
        tables = engine.block_tables()
        assert {name: num_tokens for name, (_, num_tokens) in tables.items()} == {"a": 10, "b.0": 7, "b.1": 7}
        first, second = tables["b.0"][0], tables["b.1"][0]
        assert first[0] == second[0]
        assert first[1] != second[1], "the partial block was to be copied"
        finish(engine)
        assert engine.block_tables() == {}

    def test_stats(self, tiny_model):
        engine = make_engine(tiny_model)
        run(engine, [prompt_of(0, 5), prompt_of(1, 7)])
        engine.add_request("a", prompt_of(2, 6))
        engine.step()
        engine.abort("a")
        stats = engine.stats()
        assert (stats.num_finished, stats.num_aborted, stats.num_failed) == (2, 1, 0)
        assert stats.num_output_tokens == 2 * 8 + 1
        # Each prompt once and each output token but the last; then the prompt of the aborted request.
        assert stats.num_computed_tokens == (5 + 7) + (7 + 7) + 6
        assert stats.num_steps == len(engine.trace) == 9
        assert stats.busy_s > 0

    def test_the_age_of_the_queue(self, tiny_model):
        now_s = 0.0
        engine = make_engine(tiny_model, max_num_seqs=1, clock=lambda: now_s)
        for number, arrival_s in enumerate((1.0, 3.0, 7.0)):
            now_s = arrival_s
            engine.add_request(str(number), prompt_of(number, 5))
        engine.add_request("before", prompt_of(3, 5), arrival_s=2.0)  # told of late
        now_s = 12.0
        engine.step()  # lets in the first
        assert engine.trace[-1].queue_age_s == 10
        engine.abort("before")
        now_s = 13.0
        engine.step()
        assert engine.trace[-1].queue_age_s == 10, "'1', which came at 3.0"
        finish(engine)
        assert engine.trace[-1].queue_age_s is None


class TestEnds:
    def test_a_stop_token_is_in_the_tokens_but_not_in_the_text(self, tiny_model):
        codec = byte_level()
        prompt = {"prompt_token_ids": codec.encode("The quick brown fox")}
        tokens = tokens_of(run(make_engine(tiny_model), [prompt])[0])
        stop = next(token for i, token in enumerate(tokens) if i >= 3 and token not in tokens[:i])
        expected = tokens[: tokens.index(stop) + 1]
        for include in (False, True):
            params = SamplingParams(
                temperature=0, max_tokens=8, ignore_eos=True, stop_token_ids=[stop], include_stop_str_in_output=include
            )
            (output,) = run(make_engine(tiny_model, codec=codec), [prompt], params)
            completion = output.outputs[0]
            assert (list(completion.token_ids), completion.finish_reason) == (expected, "stop")
            assert completion.stop_reason == stop
            text = codec.decode(expected if include else expected[:-1])
            assert completion.text == text.rstrip("\ufffd")


class TestAbort:
    def test_text_held_back_is_released(self, tiny_model):
        codec = byte_level()
        (whole,) = run(make_engine(tiny_model, codec=codec), [prompt_of(0, 9)])
        text = whole.outputs[0].text
        params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, stop=text + "never")
        engine = make_engine(tiny_model, codec=codec)
        engine.add_request("a", prompt_of(0, 9), params)
        for _ in range(8):
            (output,) = engine.step()
        assert output.outputs[0].text == ""
        assert engine.abort("a").outputs[0].text == text
