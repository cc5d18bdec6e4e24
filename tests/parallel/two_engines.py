"""A decode engine and a prefill worker in one process, joined by lines that deliver at once. No threads, no waiting."""

from collections.abc import Callable

from tests.cache.integrity import check_integrity
from twophase import LLM
from twophase_features.parallel._channel import Inbox
from twophase_features.parallel._protocol import Pages
from twophase_features.parallel.disaggregation import DecodeEngine
from twophase_features.parallel.prefill_worker import PrefillWorker
from twophase_features.parallel.remote_tier import RemoteTier

OPTIONS = {
    "device": "cpu",
    "attention_backend": "torch",
    "skip_tokenizer_init": True,
    "block_size": 4,
    "num_kv_blocks": 64,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "max_model_len": 128,
}


class Instant(Inbox):
    """What is not there now will not come: the other side is this thread's."""

    asked_s = None

    def messages(self, timeout_s):
        self.asked_s = timeout_s if self.asked_s is None else self.asked_s
        return super().messages(0.0)

    def first_asked_s(self, call):
        """How long the first look into the inbox during `call` was ready to wait."""
        self.asked_s = None
        call()
        return self.asked_s


class DirectLine:
    """Stands in for a `Channel` to another part of this process; keeps what was said."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self.said = []
        self.before: Callable[[object], None] = lambda message: None
        self.loses: Callable[[Pages], bool] = lambda pages: False

    def send(self, message, times=None) -> None:
        message = message() if callable(message) else message
        self.before(message)
        self.said.append(message)
        if not (isinstance(message, Pages) and self.loses(message)):
            self.inbox.put(message)
        if times is not None:
            times.append((0.0, 1.0))

    def pages_said(self, layer=0) -> list[Pages]:
        return [said for said in self.said if isinstance(said, Pages) and said.layer == layer]

    def blocks_sent(self) -> int:
        return sum(len(said.keys) for said in self.pages_said())


class TwoEngines:
    """Attributes: `decode` and `prefill`, two LLMs; `engine` and `worker`, what disaggregation makes of them."""

    def __init__(self, folder, decode=None, prefill=None, num_tier_blocks=None, **both) -> None:
        self.folder = folder
        self.decode = LLM(folder, **(OPTIONS | both | (decode or {})))
        self.prefill = LLM(folder, **(OPTIONS | both | (prefill or {})))
        front, back = Instant(), Instant()
        self.tier = RemoteTier(self.decode.kv_cache, self.decode.scheduler.cache.tier, num_tier_blocks)
        self.to_decode = DirectLine(front)
        self.to_prefill = DirectLine(back)
        self.front, self.back = front, back
        self.worker = PrefillWorker(self.prefill, self.to_decode.send, back)
        self.engine = DecodeEngine(self.decode, {1: self.to_prefill.send}, front, self.tier)
        self.outputs = {}

    def turn(self) -> None:
        """A turn of both."""
        self.worker.turn()
        for output in self.engine.step():
            self.outputs[output.request_id] = output

    def finish(self, max_turns: int = 1000):
        """Until nothing is left; each request's last output."""
        for _ in range(max_turns):
            if not self.engine.has_unfinished_requests():
                self.worker.turn()  # hears the last messages
                self.check_idle()
                return self.outputs
            self.turn()
        raise AssertionError(f"not finished after {max_turns} turns")

    def generate(self, prompts, params):
        several = params if isinstance(params, list) else [params] * len(prompts)
        for i, (prompt, each) in enumerate(zip(prompts, several, strict=True)):
            self.engine.add_request(str(i), prompt, each)
        outputs = self.finish()
        return [outputs[str(i)] for i in range(len(prompts))]

    def check(self, prompts, params):
        """As `generate`; the outputs are those of a single engine."""
        outputs, alone = self.generate(prompts, params), LLM(self.folder, **OPTIONS)
        expected = alone.generate(prompts, params, use_tqdm=False)
        assert [output.outputs for output in outputs] == [output.outputs for output in expected]
        return outputs

    def check_integrity(self) -> None:
        for llm in (self.decode, self.prefill):
            check_integrity(llm.scheduler.cache)

    def check_idle(self) -> None:
        """Neither side holds anything."""
        self.check_integrity()
        for llm in (self.decode, self.prefill):
            scheduler = llm.scheduler
            assert (scheduler.num_waiting, scheduler.num_running, scheduler.cache.stats().num_in_use) == (0, 0, 0)
        assert not self.worker._unsent
        assert not self.engine._to_load
        assert not self.tier._expected
