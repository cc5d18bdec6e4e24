"""A decode engine and a prefill worker in one process, joined by lines that deliver at once. No threads, no waiting."""

from collections.abc import Callable

from twophase import LLM
from twophase_features.parallel._channel import Inbox, Link
from twophase_features.parallel._protocol import Pages
from twophase_features.parallel.disaggregation import DecodeEngine
from twophase_features.parallel.pages import KVReceiver
from twophase_features.parallel.prefill_worker import PrefillWorker

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

    def take(self, timeout_s):
        self.asked_s = timeout_s if self.asked_s is None else self.asked_s
        return super().take(0.0)

    def first_asked_s(self, call):
        """How long the first look into the inbox during `call` was ready to wait."""
        self.asked_s = None
        call()
        return self.asked_s


class DirectLine(Link):
    """A `Link` to another part of this process; keeps what was said."""

    def __init__(self, from_rank: int, inbox: Inbox, receiver: KVReceiver | None = None) -> None:
        self.from_rank, self.inbox, self.receiver = from_rank, inbox, receiver
        self.said = []
        self.pages, self.layer = Pages(()), 0
        self.before: Callable[[object], None] = lambda message: None
        self.loses: Callable[[Pages, int], bool] = lambda pages, layer: False

    def send(self, message) -> None:
        self.before(message)
        self.said.append(message)
        if isinstance(message, Pages):
            self.pages, self.layer = message, 0
        else:
            self.inbox.put((self.from_rank, message))

    def send_layer(self, buffer, noted) -> None:
        assert buffer.numel() == self.receiver.num_bytes(self.pages)
        if not self.loses(self.pages, self.layer):
            self.receiver.receive(self.pages, self.layer, buffer)
        self.said.append(self.layer)
        self.layer += 1
        noted(0.0, 1.0)

    def blocks_sent(self) -> int:
        return sum(each.num_blocks for said in self.said if isinstance(said, Pages) for each in said.ranges)


class TwoEngines:
    """Attributes: `decode` and `prefill`, two LLMs; `engine` and `worker`, what disaggregation makes of them."""

    def __init__(self, folder, decode=None, prefill=None, **both) -> None:
        self.decode = LLM(folder, **(OPTIONS | both | (decode or {})))
        self.prefill = LLM(folder, **(OPTIONS | both | (prefill or {})))
        front, back = Instant(), Instant()
        receiver = KVReceiver(self.decode.kv_cache)
        self.to_decode = DirectLine(1, front, receiver)
        self.to_prefill = DirectLine(0, back)
        self.front, self.back = front, back
        self.worker = PrefillWorker(self.prefill, self.to_decode, back)
        self.engine = DecodeEngine(self.decode, {1: self.to_prefill}, front, receiver)
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

    def check_integrity(self) -> None:
        for llm in (self.decode, self.prefill):
            llm.scheduler.cache.check_integrity()

    def check_idle(self) -> None:
        """Neither side holds anything."""
        self.check_integrity()
        for llm in (self.decode, self.prefill):
            scheduler = llm.scheduler
            assert (scheduler.num_waiting, scheduler.num_running, scheduler.cache.stats().num_in_use) == (0, 0, 0)
            queues = scheduler._queues
            assert [queues.arriving, queues.expected, scheduler.ledger.held] == [[], [], []]
        assert not self.worker._outgoing
        assert not self.engine._receiver._incoming
        assert not self.engine._num_resends
