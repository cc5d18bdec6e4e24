"""Which parts of the engine are ranges of a profile, and how they become ones.

The ranges lie in each other like this:

    step N
        schedule                   the plan of the step
        draft                      tokens guessed ahead
        run
            model
                prepare            the flat batch, and attention's plan of it
                forward
                    attention      of each layer
                        attend     reads the K/V
                    mlp            of each layer
                logits
            sample
        trace                      notes for the trace of steps
        update                     the scheduler learns the new tokens
        report                     text and outputs

Where a CUDA graph is replayed, `model` has no ranges in it: no Python runs there.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

from torch.profiler import record_function

import twophase.engine.engine as engine_module
import twophase.engine.model_run as model_run_module
import twophase.engine.runner as runner_module
from twophase.llm import LLM

# Of a step, in this order.
PHASES = ("schedule", "draft", "run", "trace", "update", "report")
STEP = "step"


@contextmanager
def ranged(llm: LLM) -> Iterator[None]:
    """Inside, each part of the engine records itself under its name; outside, nothing has changed."""
    engine = llm.engine
    parts = (
        (engine, "step", lambda: f"{STEP} {_number_of_next_step(llm)}"),
        (engine, "_schedule", "schedule"),
        (engine, "_draft", "draft"),
        (engine, "_run", "run"),
        (llm.runner, "run", "model"),
        (runner_module, "pack", "prepare"),
        (llm.model.backend, "plan", "prepare"),
        (llm.model, "forward", "forward"),
        (llm.model, "_attention", "attention"),
        (llm.model.backend, "attend", "attend"),
        (llm.model, "_mlp", "mlp"),
        (llm.model, "logits", "logits"),
        (model_run_module, "sample", "sample"),
        (engine_module, "record_step", "trace"),
        (engine._stat_logger, "note_step", "trace"),
        (engine, "_update", "update"),
        (engine, "_report", "report"),
    )
    with ExitStack() as undo:
        for owner, attribute, name in parts:
            undo.enter_context(_recording(owner, attribute, name))
        yield


def _number_of_next_step(llm: LLM) -> int:
    trace = llm.engine.trace
    return trace[-1].step + 1 if trace else 0


@contextmanager
def _recording(owner: Any, attribute: str, name: str | Callable[[], str]) -> Iterator[None]:
    """`owner.attribute`, a function, is a range while this lasts."""
    whole = getattr(owner, attribute)
    is_own = attribute in vars(owner)  # of a module; a method is its class's

    @wraps(whole)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        with record_function(name if isinstance(name, str) else name()):
            return whole(*args, **kwargs)

    setattr(owner, attribute, recorded)
    try:
        yield
    finally:
        if is_own:
            setattr(owner, attribute, whole)
        else:
            delattr(owner, attribute)
