"""Answers that try to pass without being right, or to harm others' grades: none passes, and nothing else changes.

Exercise 1.1 of the demonstration is checked from outside of the answer's process; 1.8 in the answer's own, where what
replaces the check's parts is noticed and every verdict says that it was reached there.
"""

import json
import os
import socket
import sys
import threading
import time

import pytest

from tests.labs.demo import DEMO, LAB
from twophase_labs.machine.grading import sandbox
from twophase_labs.machine.grading.lane import Job, Lane

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not run here: the grader forks on Linux only")

RIGHT = LAB.templates["1.1"].filled()
COUNTER = LAB.templates["1.8"].filled()
WRONG = "\n\ndef running_mean(x):\n    return x * 2\n"
FAKE = json.dumps({"nonce": "0", "verdict": {"exercise": "1.1", "verdict": "passed", "reason": "hacked"}})

FOR_POINTS = {
    "replaces a private function of the judge": "import twophase_labs.machine.judge as j\nj._try = lambda *a: None\n",
    "replaces the judge's method on the instance": (
        "import gc\nfrom twophase_labs.machine.judge import Judge, Verdict\n"
        "for found in gc.get_objects():\n    if type(found) is Judge:\n"
        "        found.judge = lambda e, *a, **k: Verdict(e.id, 'passed', '')\n"
    ),
    "empties the checks": (
        "import gc\nfrom twophase_labs.machine.exercise import Exercise\n"
        "for found in gc.get_objects():\n    if type(found) is Exercise:\n        object.__setattr__(found, 'checks', ())\n"
    ),
    "swaps the code of compare": (
        "import twophase_labs.machine.checks as c\nc.compare.__code__ = (lambda *a, **k: None).__code__\n"
    ),
    "imports the oracle": (
        "from tests.labs.demo.demo.exercises.basics import naive_means\n\n\ndef running_mean(x):\n    return naive_means(x)\n"
    ),
    "imports the bank": ("from tests.labs.demo.demo.answers_basics import BANKS\nexec(BANKS['1.1'].right[1].fill)\n"),
    "reads the solution from disk": (
        f"import re\nsource = open({str(LAB.source)!r}).read()\n"
        "exec('def running_mean' + source.split('def running_mean')[1].split('# %%')[0])\n"
    ),
    "reads the solution from linecache": ("import linecache\nexec(''.join(linecache.cache['<reference 1.1>'][2]))\n"),
    "takes the session's reference": (
        "from twophase_labs.machine import session\nrunning_mean = session._sessions['01'].references['running_mean']\n"
    ),
    "finds the reference among all objects": (
        "import gc\nrunning_mean = next(f for f in gc.get_objects() if getattr(f, '__name__', '') in "
        "('running_mean', 'naive_means') and callable(f))\n"
    ),
    "takes what is expected from its caller's frame": (
        "import sys\n\n\ndef running_mean(x):\n    frame = sys._getframe()\n    while frame:\n"
        "        if 'expected' in frame.f_locals:\n            return frame.f_locals['expected']\n"
        "        frame = frame.f_back\n    return x * 2\n"
    ),
    "returns a tensor that lies": (
        "class Lie(torch.Tensor):\n    @classmethod\n    def __torch_function__(cls, f, types, args=(), kwargs=None):\n"
        "        return torch.tensor(False) if f.__name__ in ('isclose', 'any') else super().__torch_function__(f, types, args, kwargs or {})\n\n\n"
        "def running_mean(x):\n    return (x * 2).as_subclass(Lie)\n"
    ),
    "returns an object that equals everything": (
        "class Yes:\n    shape = torch.Size([1])\n    def __eq__(self, other): return True\n"
        "    def __ne__(self, other): return False\n    def __getattr__(self, name): return self\n"
        "    def __call__(self, *a, **k): return self\n\n\ndef running_mean(x):\n    return Yes()\n"
    ),
    "writes a verdict to every descriptor": (
        f"import os\n\n\ndef running_mean(x):\n    for fd in range(40):\n        try:\n            os.write(fd, {FAKE!r}.encode() + b'\\n')\n"
        "        except OSError:\n            pass\n    return x * 2\n"
    ),
    "speaks the channel's language": (
        "import gc\nfrom twophase_labs.machine.grading.remote import Peer\n\n\ndef running_mean(x):\n"
        "    peer = next(p for p in gc.get_objects() if type(p) is Peer)\n"
        "    for _ in range(3):\n        peer._send('gave', torch.zeros(x.shape))\n    return x * 2\n"
    ),
    "asks the check for what it may not": (
        "import gc\nfrom twophase_labs.machine.grading.remote import Peer\n\n\ndef running_mean(x):\n"
        "    peer = next(p for p in gc.get_objects() if type(p) is Peer)\n"
        "    return peer.ask('get', peer, '__globals__')\n"
    ),
    "leaves a fork to answer": (
        "import os\n\n\ndef running_mean(x):\n    if os.fork() == 0:\n        return x.cumsum(-1)\n    return x * 2\n"
    ),
}


@pytest.fixture(scope="module")
def lane():
    lane = Lane(DEMO, LAB)
    yield lane
    lane.close()


def passes_still(lane):
    """A right answer, judged after what was tried, gets its own verdict."""
    verdict = lane.run(Job("1.1", RIGHT))
    assert verdict.passed, verdict
    assert verdict.checked_in == "grader"


def needs_namespaces(lane):
    lane.run(Job("1.6", "answer_1_6 = 128\n"))
    if lane.isolation != sandbox.NAMESPACES:
        pytest.skip(f"not run here: {lane.isolation}")


@pytest.mark.parametrize("how", FOR_POINTS)
def test_points_without_solving(lane, how):
    if any(word in how for word in ("imports", "disk")):
        needs_namespaces(lane)
    source = FOR_POINTS[how]
    verdict = lane.run(
        Job("1.1", source if "def running_mean" in source or "running_mean =" in source else source + WRONG)
    )
    assert not verdict.passed
    assert verdict.verdict in ("failed", "error", "timeout"), verdict


@pytest.mark.parametrize(
    ("exercise", "source"),
    [
        ("1.6", "class Lie(int):\n    def __ne__(self, o): return False\n    def __sub__(self, o): return 0\n    def __rsub__(self, o): return 0\n    def __abs__(self): return 0\n\n\nanswer_1_6 = Lie(3)\n"),
        ("1.6", "class Lie(float):\n    def __sub__(self, o): return 0.0\n    def __rsub__(self, o): return 0.0\n    def __le__(self, o): return True\n\n\nanswer_1_6 = Lie(3)\n"),
        ("1.2", "class Lie(str):\n    def strip(self): return self\n    def lower(self): return 'b'\n\n\nanswer_1_2 = Lie('c')\n"),
        ("1.2", "from twophase_labs.machine.questions import seal\nfrom tests.labs.demo.demo.exercises.basics import ANSWER_1_2\nanswer_1_2 = next(c for c in 'abc' if seal('1.2', c) == ANSWER_1_2.question.sealed)\n"),
        ("1.6", "import gc\nfrom twophase_labs.machine.questions import Number\nanswer_1_6 = next(n for n in gc.get_objects() if type(n) is Number and n.unit == 'bytes').expected()\n"),
    ],
    ids=["an int", "a float", "a string", "the seal, by trying", "the question's own arithmetic"],
)  # fmt: skip
def test_questions_without_knowing(lane, exercise, source):
    if "seal" in source:
        needs_namespaces(lane)
    assert not lane.run(Job(exercise, source)).passed


ASK = "from twophase_labs import reference, use\n"


@pytest.mark.parametrize("ask", ["reference", "use"])
@pytest.mark.parametrize("exercise", [i for i in LAB.exercises if i != "1.7"])
def test_the_reference_is_worth_no_points_whatever_the_kind(lane, exercise, ask):
    """A question's is a plain value, equal to what a learner would have written."""
    (name,) = LAB.exercises[exercise].names
    assert lane.run(Job(exercise, f"{ASK}{name} = {ask}({exercise!r})\n")).verdict == "by_reference"


@pytest.mark.parametrize(("exercise", "name"), [("1.1", "running_mean"), ("1.8", "Counter")])
def test_a_function_around_the_reference_does_not_pass(lane, exercise, name):
    for ask in ("reference", "use"):
        around = f"{ASK}theirs = {ask}({exercise!r})\n\n\ndef {name}(x):\n    return theirs(x)\n"
        verdict = lane.run(Job(exercise, around))
        assert verdict.verdict == "error"
        assert "an answer may not call the reference" in verdict.reason


@pytest.mark.parametrize("import_again", [True, False])
def test_what_an_exercise_uses_may_be_asked_for(lane, import_again):
    source = ASK * import_again + "mean = use('1.1')\n\n\ndef centred(x):\n    return 2 * (x - mean(x))\n"
    for job in (Job("1.3", source, fall_back=("1.1",)), Job("1.3", source, uses={"1.1": RIGHT})):
        assert lane.run(job).passed


WRONG_COUNTER = (
    "\n\nclass Counter:\n    def __init__(self, start):\n        pass\n\n    def step(self):\n        return 0\n"
)
IN_PROCESS = {
    "a private function": "import twophase_labs.machine.judge as j\nj._try = lambda *a: None\n",
    "code": "import twophase_labs.machine.checks as c\nc.compare.__code__ = (lambda *a, **k: None).__code__\n",
    "defaults": "import twophase_labs.machine.judge as j\nj.tampered.__defaults__ = (1,)\n",
    "the instance": (
        "from twophase_labs.machine import session\nfrom twophase_labs.machine.judge import Verdict\n"
        "session._sessions['01'].judge.judge = lambda e, *a, **k: Verdict(e.id, 'passed', '')\n"
    ),
    "the exercise": (
        "from twophase_labs.machine import session\n"
        "object.__setattr__(session._sessions['01'].judge.exercises['1.8'], 'checks', ())\n"
    ),
    "the guard": (
        "from twophase_labs.machine import session\nguard = session._sessions['01'].judge.guard\n"
        "guard._modules = guard._classes = guard._codes = ()\nimport twophase_labs.machine.checks as c\n"
        "c.compare = lambda *a, **k: None\n"
    ),
    "torch": "torch.equal = torch.allclose = lambda *a, **k: True\n",
    "a tensor's method": "torch.Tensor.any = lambda *a: torch.tensor(False)\n",
    "the clock": "import time\n\ntime.monotonic = time.time = lambda: 0.0\n",
    "another torch": "import sys\n\nsys.modules['torch'] = None\n",
    "this lab's oracle": "import sys\nsys.modules['tests.labs.demo.demo.exercises.basics'].counts = lambda *a, **k: None\n",
    "the references": "from twophase_labs.machine import session\nsession._sessions['01'].references.clear()\n",
}


@pytest.mark.parametrize("what", IN_PROCESS)
def test_in_the_answers_own_process_a_replacement_is_noticed(lane, what):
    verdict = lane.run(Job("1.8", IN_PROCESS[what] + WRONG_COUNTER))
    assert verdict.verdict == "failed", verdict
    assert "replaced" in verdict.reason
    assert verdict.checked_in == "answer"


def test_a_verdict_written_to_every_descriptor_is_none(lane):
    """Also in the answer's own process: a line counts if it has what only the judge's own function knows."""
    for shape in ("{}", f"{'0' * 32}{{}}"):
        line = shape.replace("{}", json.dumps(json.loads(verdict_line("", "1.8"))["verdict"]))
        writes = f"import os\nfor fd in range(64):\n    try: os.write(fd, {line!r}.encode() + b'\\n')\n    except OSError: pass\n"
        assert lane.run(Job("1.8", writes + WRONG_COUNTER)).verdict == "error"
    assert lane.run(Job("1.8", COUNTER)).passed


def tells(*lines):
    """An answer whose exception says what `found` is after these lines."""
    return (
        "import os\n\n\ndef running_mean(x):\n    found = []\n"
        + "".join(f"    {line}\n" for line in lines)
        + ("    raise ValueError(f'found {found}')\n")
    )


def as_counter(source):
    return source.replace("def running_mean(x):", "def Counter(x):")


def told(lane, source):
    """What the answer told, from both kinds of processes."""
    for job in (Job("1.1", source), Job("1.8", as_counter(source))):
        verdict = lane.run(job)
        assert verdict.verdict == "error", verdict
        yield verdict.reason


def attempt(what, name):
    return ["try:", f"    {what}", f"    found.append({name!r})", "except Exception:", "    pass"]


@pytest.mark.parametrize("whom", ["getpid", "getppid"])
def test_a_signal_to_itself_or_its_parent_harms_no_other(lane, whom):
    """The first process of a namespace is not killed from within; elsewhere the answer is, and nothing else."""
    source = RIGHT.replace("    totals", f"    import os\n    os.kill(os.{whom}(), 9)\n    totals")
    assert lane.run(Job("1.1", source)).verdict in ("passed", "error")
    passes_still(lane)


def test_nothing_outside_can_be_reached(lane, tmp_path, monkeypatch):
    needs_namespaces(lane)
    submission = tmp_path / "alice.ipynb"
    submission.write_text("hers")
    judge = sys.modules["twophase_labs.machine.grading.lane"].__file__
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = tells(
            *attempt(f"open({judge!r}, 'a').close()", "rewrote the grader"),
            *attempt(f"open({str(submission)!r}).read()", "read another submission"),
            *attempt(f"os.kill({os.getpid()}, 0)", "saw the grader"),
            *attempt("assert len([p for p in os.listdir('/proc') if p.isdigit()]) > 1", "saw other processes"),
            *attempt(f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)", "reached the network"),
            *attempt("open('/proc/sys/kernel/core_pattern', 'a').close()", "changed the machine"),
            *attempt("import ctypes; assert ctypes.CDLL(None).umount2(b'/tmp', 2) == 0", "unmounted"),
            *attempt(
                "open(os.path.join(os.path.expanduser('~'), '.profile'), 'a').close()", "wrote to the home folder"
            ),
        )
        for reason in told(lane, source):
            assert "found []" in reason
    assert submission.read_text() == "hers"
    passes_still(lane)


def test_a_nested_namespace_opens_nothing(lane):
    needs_namespaces(lane)
    source = tells(
        "import ctypes",
        "libc = ctypes.CDLL(None)",
        "if libc.unshare(0x10020000) == 0:",
        f"    for path in ({str(LAB.source.parent)!r}, '/proc', '/tmp'):",
        "        if libc.umount2(path.encode(), 2) == 0: found.append(path)",
        "    if libc.mount(None, b'/usr', None, 32 | 4096, None) == 0: found.append('writable')",
        f"    found += os.listdir({str(LAB.source.parent)!r})",
    )
    assert all("found []" in reason for reason in told(lane, source))


def test_secrets_of_the_environment_stay_outside(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2")
    monkeypatch.setenv("HF_TOKEN", "hunter2")
    monkeypatch.setenv("MY_GRADES", "hunter2")
    lane = Lane(DEMO, LAB)
    try:
        source = tells("found += [k for k, v in os.environ.items() if v == 'hunter2']")
        assert all("found []" in reason for reason in told(lane, source))
    finally:
        lane.close()


def test_pipes_of_other_processes_cannot_be_written(lane):
    """Not even where the answer sees its parents: their channels are sockets."""
    line = json.dumps({"nonce": "0" * 16, "verdict": {}})
    source = (
        "import glob, os\n\n\ndef running_mean(x):\n    pid = os.getppid()\n    for _ in range(3):  # keeper, answers, worker\n"
        "        for path in glob.glob(f'/proc/{pid}/fd/*'):\n            try:\n"
        f"                os.write(os.open(path, os.O_WRONLY | os.O_NONBLOCK), {line!r}.encode() + b'\\n')\n"
        "            except OSError:\n                pass\n"
        "        try:\n            pid = int(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[1])\n"
        "        except OSError:\n            break\n"
        "    return x * 2\n"
    )
    assert lane.run(Job("1.1", source)).verdict == "failed"
    passes_still(lane)
    assert lane.run(Job("1.8", as_counter(source))).verdict in ("failed", "error")
    passes_still(lane)


def test_a_daemon_ends_with_its_answer(lane):
    needs_namespaces(lane)
    source = (
        "import os, subprocess, sys\n\n\ndef running_mean(x):\n"
        "    subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(73.1)'], start_new_session=True)\n"
        "    if os.fork() == 0:\n        os.setsid()\n        import time\n        time.sleep(73.1)\n        os._exit(0)\n"
        "    return x * 2\n"
    )
    lane.run(Job("1.1", source))
    passes_still(lane)
    deadline_s = time.monotonic() + 10
    while any("73.1" in line for line in command_lines()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert not any("73.1" in line for line in command_lines())


def command_lines():
    for process in os.listdir("/proc"):
        try:
            with open(f"/proc/{process}/cmdline") as file:
                yield file.read()
        except OSError:
            continue


# -- The lane, on workers that say what they like


class Worker:
    """Stands for a worker's process; says what `answer(nonce)` gives, after `ready`."""

    pid = -1

    def __init__(self, answer):
        self.answer, self.closed = answer, False

    def poll(self):
        return None


@pytest.fixture
def scripted(monkeypatch):
    """A lane whose worker answers each job by a script, and how often one was started."""

    def make(answer):
        lane = Lane(DEMO, LAB)
        started = []

        def open_(command, environment, said):
            started.append(1)
            mine, its = socket.socketpair()
            lane._process, lane._to_worker = None, mine.makefile("wb")
            from_lane, from_worker, answers = its.makefile("rb"), mine.makefile("rb"), lane._answers
            lane._process = Worker(answer)

            def work():
                json.loads(from_lane.readline())
                its.sendall(json.dumps({"ready": True, "threads": 1, "isolation": "none"}).encode() + b"\n")
                for line in from_lane:
                    job = json.loads(line)
                    its.sendall(answer(job["nonce"], job["exercise"]))

            def pump():
                for line in from_worker:
                    answers.put(line)

            for target in (work, pump):
                threading.Thread(target=target, daemon=True).start()

        def close():
            lane._process = None

        monkeypatch.setattr(lane, "_open", open_)
        monkeypatch.setattr(lane, "close", close)
        lane.started = started
        return lane

    return make


def verdict_line(nonce, exercise, **changes):
    verdict = {
        "exercise": exercise, "verdict": "passed", "reason": "", "details": [], "hint": "", "failed_property": "",
        "held": [], "notes": [], "picture": "", "checked_in": "grader", **changes,
    }  # fmt: skip
    return json.dumps({"nonce": nonce, "verdict": verdict}).encode() + b"\n"


def test_a_worker_that_keeps_to_the_rules_is_kept(scripted):
    lane = scripted(verdict_line)
    assert [lane.run(Job("1.1", "")).verdict, lane.run(Job("1.8", "")).verdict] == ["passed", "passed"]
    assert len(lane.started) == 1


FORGED = {
    "another nonce": lambda nonce, e: verdict_line("0" * 16, e),
    "no message": lambda nonce, e: b"passed\n",
    "a list": lambda nonce, e: b"[1]\n",
    "nested without end": lambda nonce, e: b"[" * 100_000 + b"\n",
    "another exercise": lambda nonce, e: verdict_line(nonce, "1.2"),
    "more fields": lambda nonce, e: verdict_line(nonce, e, points=7),
    "an unknown verdict": lambda nonce, e: verdict_line(nonce, e, verdict="hacked"),
    "a reason that is a number": lambda nonce, e: verdict_line(nonce, e, reason=5),
    "details that are text": lambda nonce, e: verdict_line(nonce, e, details="abc"),
    "a detail that is a number": lambda nonce, e: verdict_line(nonce, e, details=[5]),
    "a hint without end": lambda nonce, e: verdict_line(nonce, e, hint="x" * 10**6),
    "a thousand notes": lambda nonce, e: verdict_line(nonce, e, notes=["x"] * 1000),
    "a script for a picture": lambda nonce, e: verdict_line(nonce, e, picture='"><script>alert(1)</script>'),
    "a picture that is none": lambda nonce, e: verdict_line(nonce, e, picture="aGVsbG8="),
}


@pytest.mark.parametrize("how", FORGED)
def test_a_forged_line_is_no_verdict_and_ends_the_worker(scripted, how):
    lane = scripted(FORGED[how])
    assert lane.run(Job("1.1", "")).verdict == "error"
    lane.run(Job("1.8", ""))
    assert len(lane.started) == 2


def test_a_line_too_many_does_not_shift_the_next_answer(scripted):
    lane = scripted(lambda nonce, e: verdict_line(nonce, e) + verdict_line(nonce, e, reason="old"))
    assert lane.run(Job("1.1", "")).passed
    time.sleep(0.05)
    assert lane.run(Job("1.8", "")).exercise == "1.8"
    assert len(lane.started) == 2
