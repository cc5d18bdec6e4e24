"""Six prompts on SmolLM2 in the real engine, in a pool of whatever size a cell asks for."""

from dataclasses import dataclass
from typing import Any

from twophase.core.plan import StepTrace
from twophase.core.request import RequestOutput, SamplingParams
from twophase.engine.engine import Engine
from twophase.engine.runner import ModelRunner
from twophase_labs.scheduling.real_engine import POOL_BLOCKS, smollm2_engine
from twophase_tools.load.records import RequestRecord
from twophase_tools.simulate.limits import make_scheduler

LIMITS: dict[str, Any] = {
    "max_num_seqs": 32,
    "max_num_batched_tokens": 256,
    "max_model_len": 1024,
    "num_blocks": POOL_BLOCKS,
    "block_size": 16,
}
PROMPTS = (
    "The capital of France is",
    "One, two, three, four, five, six, seven,",
    "Once upon a time, in a small village by the sea, there lived an old",
    "Water is made of",
    "The best way to learn a language is",
    "My favourite colour is blue, because it reminds me of",
)


@dataclass(frozen=True)
class Generated:
    """Greedy continuations and how they came about."""

    tokens: list[tuple[int, ...]]
    records: list[RequestRecord]
    steps: tuple[StepTrace, ...]


def generate_under_pressure(num_new: int = 24, **limits: Any) -> Generated:
    """The six prompts, continued together by `num_new` tokens each, by a fresh engine on the loaded model's pool, of
    which it may use fewer blocks, not more."""
    llm, scheduler = smollm2_engine(), make_scheduler(LIMITS | limits, None)
    assert llm.tokenizer is not None
    runner = ModelRunner(llm.model, llm.kv_cache, scheduler.config.max_model_len)
    engine = Engine(runner, scheduler, vocab_size=llm.model_config.vocab_size, max_trace_steps=None)
    params = SamplingParams(temperature=0.0, max_tokens=num_new, ignore_eos=True)
    for name, prompt in zip("ABCDEF", PROMPTS, strict=True):
        engine.add_request(name, {"prompt_token_ids": llm.tokenizer.encode(prompt)}, params, stream=False)
    outputs: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests():
        outputs |= {output.request_id: output for output in engine.step() if output.finished}
    ended = [outputs[name] for name in "ABCDEF"]
    tokens = [output.outputs[0].token_ids for output in ended]
    return Generated(tokens, [RequestRecord.from_output(output) for output in ended], engine.trace)
