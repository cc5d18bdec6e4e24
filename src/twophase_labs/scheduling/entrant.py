"""A stranger's policy: run in a process of its own, which tells its moves and nothing else.

What a file says of its own score is not believed. Its process (without network and without the files of this machine,
where Linux allows that) plays the challenge and writes down every rank and every move. Here they are made once more, on
the same traffic, by a policy that does nothing but repeat them; the score is that of the repetition. So a file that
breaks, never ends, or changes what is around it costs its own entry.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, final

from twophase.core.errors import TwophaseError
from twophase.scheduling.policy import Policy, Step
from twophase.scheduling.sequence import Sequence as SchedulerSequence
from twophase_labs.machine.grading import sandbox
from twophase_labs.machine.limits import limit_this_process
from twophase_labs.scheduling import challenge

TIME_LIMIT_S = 300
MEMORY_GIB = 4
MOST_BYTES = 200 * 2**20  # of moves; the process may write no larger file than 256 MiB


class EntrantError(TwophaseError):
    """A file that does not play: broken, without a policy, too slow, or with moves that cannot be repeated."""


def play_file(source: str, seeds: Sequence[int], time_limit_s: float | int = TIME_LIMIT_S) -> challenge.Entry:
    """Score a file that defines `Challenger(cost, slo)` and, if it likes, `my_limits`; its name is left empty.

    Raises:
        EntrantError: It does not play; says why.
    """
    told = _told_by(source, seeds, time_limit_s)
    try:
        limits, runs = dict(told["limits"]), [Repeated(run["ranks"], run["steps"]) for run in told["runs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise EntrantError(f"its process told nonsense ({type(error).__name__}: {error}).") from error
    if len(runs) != len(seeds):
        raise EntrantError(f"its process told of {len(runs)} runs, and there are {len(seeds)}.")
    again = iter(runs)
    try:
        return challenge.entry("", lambda: next(again), limits, seeds)
    except EntrantError:
        raise
    except (TwophaseError, TypeError, ValueError, LookupError) as error:
        raise EntrantError(f"what it did cannot be repeated: {error}") from error


def _told_by(source: str, seeds: Sequence[int], time_limit_s: float | int) -> Any:
    """What the process of the file writes, as plain data."""
    asked = json.dumps({"source": source, "seeds": list(seeds)}).encode()
    command = [sys.executable, "-m", "twophase_labs.scheduling.entrant"]
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "HOME", "LANG") if name in os.environ}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as said:
        try:
            ended = subprocess.run(
                command,
                input=asked,
                stdout=said,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=environment | {"OMP_NUM_THREADS": "1"},
                timeout=time_limit_s,
            )
        except subprocess.TimeoutExpired:
            raise EntrantError(f"it does not come to an end within {time_limit_s:g} s.") from None
        if said.tell() > MOST_BYTES:
            raise EntrantError(f"it made more moves than {MOST_BYTES / 2**20:.0f} MiB hold.")
        said.seek(0)
        try:
            told = json.loads(said.read())
        except (ValueError, RecursionError):
            raise EntrantError(f"its process ended (status {ended.returncode}) and told no moves.") from None
    if not isinstance(told, dict) or "error" in told:
        raise EntrantError(str(told.get("error") if isinstance(told, dict) else told)[:500])
    return told


# -- here: the repetition


@final
class Repeated(Policy):
    """Makes the moves that were told, step by step, and knows nothing."""

    def __init__(self, ranks: Mapping[str, Any], steps: Sequence[Sequence[Sequence[Any]]]) -> None:
        self._ranks = {name: _as_rank(rank) for name, rank in ranks.items()}
        self._steps = iter(steps)

    def rank(self, sequence: SchedulerSequence) -> tuple[Any, ...]:
        name = sequence.request.request_id
        if name not in self._ranks:
            raise EntrantError(f"it told no rank of request {name}.")
        return self._ranks[name]

    def plan(self, step: Step) -> None:
        moves = next(self._steps, None)
        if moves is None:
            raise EntrantError("it told of fewer steps than there are.")
        known = {sequence.request.request_id: sequence for sequence in (*step.running, *step.waiting)}
        for kind, *told in moves:
            if kind == "limit":
                step.limit(int(told[0]))
            elif kind == "wait_until":
                step.wait_until(float(told[0]))
            elif told[0] not in known:
                raise EntrantError(f"it made a move with request {str(told[0])[:50]}, which is not there.")
            elif kind == "decode":
                step.decode(known[told[0]])
            elif kind == "prefill":
                step.prefill(known[told[0]], told[1])
            else:
                step.admit(known[told[0]], told[1], whole=bool(told[2]))


def _as_rank(told: Any) -> tuple[Any, ...]:
    return tuple(_as_rank(part) if isinstance(part, list) else part for part in told)


# -- there: the file's own process


@final
class _Recorded(Policy):
    """Another policy, with its ranks and moves written down."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy.fresh()
        self.ranks: dict[str, Any] = {}
        self.steps: list[list[Any]] = []

    def rank(self, sequence: SchedulerSequence) -> tuple[Any, ...]:
        rank = self._policy.rank(sequence)
        self.ranks[sequence.request.request_id] = rank
        return rank

    def plan(self, step: Step) -> None:
        self.steps.append([])
        self._policy.plan(_RecordedStep(step, self.steps[-1]))

    def note_waiting(self, sequence: SchedulerSequence) -> None:
        self._policy.note_waiting(sequence)

    def note_computed(self, sequence: SchedulerSequence, num_prefill_tokens: int, num_output_tokens: int) -> None:
        self._policy.note_computed(sequence, num_prefill_tokens, num_output_tokens)

    def note_ended(self, sequence: SchedulerSequence) -> None:
        self._policy.note_ended(sequence)


class _RecordedStep:
    def __init__(self, step: Step, moves: list[Any]) -> None:
        self._step, self._moves = step, moves

    def __getattr__(self, name: str) -> Any:
        return getattr(self._step, name)

    def decode(self, sequence: SchedulerSequence) -> bool:
        self._moves.append(("decode", sequence.request.request_id))
        return self._step.decode(sequence)

    def prefill(self, sequence: SchedulerSequence, max_tokens: int | None = None) -> int:
        max_tokens = None if max_tokens is None else int(max_tokens)
        self._moves.append(("prefill", sequence.request.request_id, max_tokens))
        return self._step.prefill(sequence, max_tokens)

    def admit(self, sequence: SchedulerSequence, max_tokens: int | None = None, *, whole: bool = False) -> int:
        max_tokens = None if max_tokens is None else int(max_tokens)
        self._moves.append(("admit", sequence.request.request_id, max_tokens, bool(whole)))
        return self._step.admit(sequence, max_tokens, whole=whole)

    def limit(self, max_tokens: int) -> None:
        self._moves.append(("limit", int(max_tokens)))
        self._step.limit(int(max_tokens))

    def wait_until(self, when_s: float | int) -> None:
        self._moves.append(("wait_until", float(when_s)))
        self._step.wait_until(when_s)


def _play(source: str, seeds: Sequence[int]) -> dict[str, Any]:
    """What the file did; or, under 'error', why it did nothing."""
    module = ModuleType("entrant")
    sys.modules[module.__name__] = module  # a dataclass in it looks there for its module
    try:
        exec(compile(source, "the file", "exec"), module.__dict__)
        limits = dict(getattr(module, "my_limits", {}))
        if not hasattr(module, "Challenger"):
            return {"error": "it defines no Challenger(cost, slo)."}
        runs = []
        for seed in seeds:
            policy = module.Challenger(challenge.COST, challenge.SLO)
            if not isinstance(policy, Policy):
                return {"error": f"Challenger(cost, slo) gives a {type(policy).__name__}; it should be a Policy."}
            recorded = _Recorded(policy)
            challenge.serve(recorded, limits, seed)
            runs.append({"ranks": recorded.ranks, "steps": recorded.steps})
        return {"limits": limits, "runs": runs}
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def _number(value: Any) -> Any:
    """NumPy's scalars, which JSON does not know."""
    return value.item()


def _main() -> None:
    asked = json.loads(sys.stdin.buffer.read())
    answer_to = os.dup(1)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)  # what it prints is nobody's business

    def run(descriptor: int) -> None:
        limit_this_process(MEMORY_GIB)
        told = _play(asked["source"], asked["seeds"])
        try:
            text = json.dumps(told, default=_number)
        except (TypeError, ValueError, AttributeError) as error:
            text = json.dumps({"error": f"its ranks and limits are no numbers: {error}"[:500]})
        with os.fdopen(answer_to, "w", encoding="utf-8") as file:
            file.write(text)
        os._exit(0)

    _in_a_world_of_its_own(run, answer_to)


def _in_a_world_of_its_own(run: Callable[[int], None], keep: int) -> None:
    """Namespaces where they are allowed; else this process, which has its own memory and its own end."""
    world = sandbox.World(tuple(Path(path) for path in sandbox.importable()))
    if sandbox.isolation_of(world) != sandbox.NAMESPACES:
        run(0)
    sandbox.call(world, run, TIME_LIMIT_S, (keep,))


if __name__ == "__main__":
    _main()
