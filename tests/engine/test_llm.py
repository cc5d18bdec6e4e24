"""The public class: inputs, outputs, options and their errors; streams; Ctrl-C."""

import signal
import subprocess
import sys

import pytest
import torch
from tqdm import tqdm

from tests.engine.engines import check_idle, prompt_of
from tests.engine.tokenizers_for_tests import byte_level
from tests.model.tiny import make_folder
from twophase import LLM, SamplingParams
from twophase import llm as llm_module
from twophase.attention.torch_backend import TorchBackend
from twophase.cache.manager import CacheManager
from twophase.core.errors import ConfigError, InvalidRequestError, ModelFolderError
from twophase.llm import GenerationError
from twophase.model.machine import resolve_device
from twophase.scheduling.limits import SchedulerConfig
from twophase.scheduling.scheduler import Scheduler

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
TEXTS = ["The quick brown fox", "naïve café", "日本", "dog"]


def test_the_class_is_listed_before_it_is_loaded():
    """For completion and for the reference: importing twophase does not import torch."""
    code = "import sys, twophase; assert {*twophase.__all__} <= {*dir(twophase)}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request):
    yield
    if "llm" in request.fixturenames:
        llm = request.getfixturevalue("llm")
        check_idle(llm.engine)
        assert not llm.engine.has_unfinished_requests()
        assert llm._latest == {}


class TestGenerate:
    def test_outputs_are_in_the_order_of_the_prompts(self, llm):
        lengths = (6, 1, 8, 3)
        params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
        outputs = llm.generate(TEXTS, params)
        assert [output.prompt for output in outputs] == TEXTS
        assert [list(output.prompt_token_ids) for output in outputs] == [llm.tokenizer.encode(text) for text in TEXTS]
        assert [len(output.outputs[0].token_ids) for output in outputs] == list(lengths)
        assert all(output.finished for output in outputs)

    def test_one_prompt_or_several_text_or_ids(self, llm):
        (from_text,) = llm.generate(TEXTS[0], GREEDY)
        (from_ids,) = llm.generate({"prompt_token_ids": byte_level().encode(TEXTS[0])}, GREEDY)
        assert from_text.outputs == from_ids.outputs
        assert from_ids.prompt is None
        mixed = llm.generate([byte_level().encode(TEXTS[0]), TEXTS[1], (43, 44)], GREEDY)
        assert (mixed[0].outputs, mixed[2].prompt_token_ids) == (from_text.outputs, (43, 44))
        with pytest.raises(InvalidRequestError, match="at least one token, got none"):
            llm.generate([[]], GREEDY)
        assert llm.generate([TEXTS[0], TEXTS[1]], GREEDY)[0].outputs == from_text.outputs
        assert llm.generate([]) == []

    def test_params_for_another_number_of_prompts(self, llm):
        with pytest.raises(InvalidRequestError, match="one for all prompts or one for each, got 1 for 2"):
            llm.generate(TEXTS[:2], [GREEDY])

    def test_a_failed_request_raises_nothing_and_says_why(self, llm, monkeypatch):
        def broken(logits, rows, before_wait):
            raise RuntimeError("planted")

        monkeypatch.setattr("twophase.engine.model_run.sample", broken)
        (output,) = llm.generate("The")
        assert (output.outputs[0].finish_reason, output.outputs[0].error) == ("error", "RuntimeError: planted")

    def test_progress_bar_only_when_it_takes_long(self, llm, monkeypatch, capsys):
        llm.generate(TEXTS, GREEDY)
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(llm_module, "PROGRESS_DELAY_S", 1e-9)
        llm.generate(TEXTS, GREEDY)
        assert "4/4" in capsys.readouterr().err
        llm.generate(TEXTS, GREEDY, use_tqdm=False)
        assert capsys.readouterr().err == ""
        assert tqdm.monitor_interval > 0


class TestStream:
    @pytest.mark.parametrize("options", [{"temperature": 0}, {"seed": 5, "stop": "e"}])
    def test_pieces_joined_are_what_generate_gives(self, llm, options):
        params = SamplingParams(max_tokens=20, ignore_eos=True, **options)
        for text in TEXTS[1:3]:
            pieces = list(llm.stream(text, params))
            assert "".join(pieces) == llm.generate(text, params)[0].outputs[0].text
            assert all(pieces)

    def test_pieces_come_while_it_runs(self, llm):
        stream = llm.stream(TEXTS[0], SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
        next(stream)
        assert llm.engine.has_unfinished_requests()
        stream.close()
        assert not llm.engine.has_unfinished_requests()

    def test_more_than_one_completion(self, llm):
        with pytest.raises(InvalidRequestError, match="n must be 1, got 2"):
            next(llm.stream("The", SamplingParams(n=2)))

    def test_a_failed_request_raises(self, llm, monkeypatch):
        def broken(logits, rows, before_wait):
            raise RuntimeError("planted")

        monkeypatch.setattr("twophase.engine.model_run.sample", broken)
        with pytest.raises(GenerationError, match="RuntimeError: planted"):
            list(llm.stream("The"))

    def test_an_interrupted_one_aborts_its_request(self, llm, monkeypatch):
        """`generate`: test_interrupts.py."""
        stream = llm.stream(TEXTS[0], SamplingParams(max_tokens=30, ignore_eos=True))
        next(stream)
        monkeypatch.setattr(llm.engine, "step", lambda: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        assert not llm.engine.has_unfinished_requests()

    def test_several_in_turns_and_generate_in_between(self, llm):
        params = [SamplingParams(seed=i, max_tokens=20, ignore_eos=True) for i in range(3)]
        expected = [output.outputs[0].text for output in llm.generate(TEXTS[:3], params)]
        streams = [llm.stream(text, each) for text, each in zip(TEXTS, params, strict=False)]
        got = ["", "", ""]
        for i in (0, 1, 0, 2, 1):
            got[i] += next(streams[i])
        (between,) = llm.generate(TEXTS[0], params[0])
        assert between.outputs[0].text == expected[0]
        for i in (2, 0, 1):
            got[i] += "".join(streams[i])
        assert got == expected


class TestChat:
    TEMPLATE = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"

    @pytest.fixture
    def chatty(self, tiny_folder):
        llm = LLM(tiny_folder, num_kv_blocks=64, block_size=4)
        llm.tokenizer.chat_template = self.TEMPLATE
        return llm

    def test_one_conversation_or_several(self, chatty):
        hello, dog = [{"role": "user", "content": "Hello"}], [{"role": "user", "content": "dog"}]
        (expected,) = chatty.generate("[user] Hello\n[assistant]", GREEDY)
        (output,) = chatty.chat(hello, GREEDY)
        assert output.outputs == expected.outputs
        both = chatty.chat([dog, hello], GREEDY)
        assert both[1].outputs == expected.outputs

    def test_without_a_template_or_a_tokenizer(self, llm, tiny_folder):
        with pytest.raises(InvalidRequestError, match="no chat template"):
            llm.chat([{"role": "user", "content": "Hello"}])
        bare = LLM(tiny_folder, num_kv_blocks=8, skip_tokenizer_init=True)
        with pytest.raises(InvalidRequestError, match="skip_tokenizer_init"):
            bare.chat([{"role": "user", "content": "Hello"}])


class TestOptions:
    def test_skip_tokenizer_init(self, tmp_path):
        folder, _ = make_folder("qwen2", tmp_path)
        with pytest.raises(ModelFolderError, match="skip_tokenizer_init=True"):
            LLM(folder)
        llm = LLM(folder, skip_tokenizer_init=True)
        (output,) = llm.generate(prompt_of(0, 5), GREEDY)
        assert (output.outputs[0].text, len(output.outputs[0].token_ids)) == ("", 8)
        with pytest.raises(InvalidRequestError, match="no tokenizer"):
            llm.generate("text")

    def test_your_own_attention_cache_and_scheduler(self, tiny_folder):
        made = []

        def my_scheduler(config, cache):
            made.append((config, type(cache)))
            return Scheduler(config, cache)

        class MyCache(CacheManager):
            pass

        parts = {"cache_factory": MyCache, "scheduler_factory": my_scheduler}
        parts["attention_backend"] = lambda spec: made.append(spec.num_heads) or TorchBackend(spec, block_size=4)
        options = {"device": "cpu", "block_size": 4, "num_kv_blocks": 64}
        mine, ours = LLM(tiny_folder, max_num_seqs=3, **options, **parts), LLM(tiny_folder, **options)
        assert made == [6, (SchedulerConfig(3, 512, 256, True), MyCache)]
        assert [o.outputs for o in mine.generate(TEXTS, GREEDY)] == [o.outputs for o in ours.generate(TEXTS, GREEDY)]

    def test_default_limits(self, tiny_folder):
        llm = LLM(tiny_folder, device="cpu")
        assert llm.scheduler.config == SchedulerConfig(256, 512, 256, True)
        # 2 GiB would hold far more than 256 sequences of 256 tokens: no larger pool than could be used.
        assert llm.kv_cache.num_blocks == 256 * 256 // 16
        assert LLM(tiny_folder, device="cpu", max_model_len=100, max_num_seqs=2).kv_cache.num_blocks == 2 * 7
        options = {"enable_chunked_prefill": False, "max_num_seqs": 600, "num_kv_blocks": 8}
        whole = LLM(tiny_folder, device="cpu", **options)
        assert whole.scheduler.config.max_num_batched_tokens == 600

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"device": "gpu"}, "device must be 'auto', 'cpu', 'cuda' or 'cuda:N', got 'gpu'"),
            ({"device": "meta"}, "runs on 'cpu' and 'cuda', got device 'meta'"),
            ({"max_model_len": 257}, r"in \[2, 256\], got 257"),
            ({"max_model_len": 1}, r"in \[2, 256\], got 1"),
        ],
    )
    def test_what_the_model_or_this_machine_cannot_do(self, tiny_folder, options, message):
        with pytest.raises(ConfigError, match=message):
            LLM(tiny_folder, **options)

    @pytest.mark.skipif(torch.cuda.is_available(), reason="has a CUDA device")
    def test_cuda_without_a_gpu(self):
        assert resolve_device("auto") == torch.device("cpu")
        with pytest.raises(ConfigError, match="PyTorch sees 0 CUDA devices here; use device='cpu'"):
            resolve_device("cuda:1")
