"""Answers that try to harm others: none changes another's grade, a file, the network or the machine.

An answer runs in one process with its check and can deceive that: such code is flagged (test_flags.py), and here it is
shown to end with its own exercise.
"""

import os
import socket
import sys
import time

import pytest

from tests.labs.demo import DEMO, LAB
from twophase_labs.machine.grading import lane as lanes
from twophase_labs.machine.grading import sandbox
from twophase_labs.machine.grading.lane import Job, Lane, clean_environment
from twophase_labs.machine.grading.run_one import as_line, from_line
from twophase_labs.machine.judge import Verdict

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="not run here: the grader forks on Linux only")

RIGHT = LAB.templates["1.1"].filled()
RETURN = "return x.cumsum(-1) / torch.arange(1, x.shape[-1] + 1)"


def answer(*lines):
    """A right `running_mean` that does this first."""
    return "import os, sys, time\n\n\ndef running_mean(x):\n" + "".join(f"    {line}\n" for line in (*lines, RETURN))


WRONG = answer("x = x * 2")
ANY = ("passed", "failed", "error")
# The cell; what may be said of it. Loops, crashes and memory are in test_bad_input.py.
HOSTILE = {
    "kills itself": (answer("os.kill(os.getpid(), 9)"), ("passed", "error")),  # a namespace's first process is spared
    "writes a huge file": (answer("with open('big', 'wb') as f: f.seek(2**30), f.write(b'x')"), ("error",)),
    "fills its disk": (answer("for n in range(9): open(f'big{n}', 'xb').write(bytes(2**27))"), ("error",)),
    "forks a hundred times": (
        answer("for _ in range(100):", "    if os.fork() == 0: time.sleep(71.3)"),
        ("passed", "error", "timeout"),
    ),
    "computes in forty processes": (
        answer("for _ in range(40):", "    if os.fork() == 0:", "        while True: pass", "time.sleep(60)"),
        ("error",),
    ),
    "leaves a fork to answer": (answer("if os.fork() == 0: return x.cumsum(-1)", "return x * 2"), ("failed",)),
    "leaves a daemon": (answer("if os.fork() == 0:", "    os.setsid()", "    time.sleep(71.3)"), ("passed",)),
    "leaves a thread": (answer("import threading", "threading.Thread(target=time.sleep, args=(50,)).start()"), ("passed",)),
    "writes to every descriptor": (
        answer("for fd in range(64):", '    try: os.write(fd, b\'{"verdict": "passed"}\\n\')', "    except OSError: pass"),
        ("error",),
    ),
    "says a gigabyte": (answer("raise ValueError('x' * 2**28)"), ("error",)),
    "prints a gigabyte": ("import sys\n\nfor _ in range(16):\n    sys.stdout.write('x' * 2**26)\n" + RIGHT, ("passed",)),
    "asks for input": ("import sys\n\nsys.stdin.read()\n" + RIGHT, ("passed",)),
    "checks itself": (RIGHT + '\nfrom twophase_labs import check\n\ncheck("1.1")\n', ("passed",)),
    "draws and seeds": (answer("torch.manual_seed(0)", "torch.rand(3)"), ("passed",)),
    "puts another judge in place": (
        answer("from twophase_labs.machine.judge import Judge", "Judge.judge = Judge._run = lambda *a, **k: None"),
        ANY,
    ),
    "patches torch while defining": ("torch.equal = torch.allclose = lambda *a, **k: True\n" + WRONG, ANY),
    "patches torch while running": (answer("torch.isclose = lambda a, *b, **k: torch.ones_like(a, dtype=bool)", "x = x * 2"), ANY),
    "patches the checks": ("import twophase_labs.machine.checks as c\n\nc.compare = lambda *a, **k: None\n" + WRONG, ANY),
    "patches the clock": ("import time\n\ntime.monotonic = time.time = lambda: 0.0\n" + WRONG, ANY),
    "takes torch away": ("import sys\n\nsys.modules['torch'] = None\n" + WRONG, ANY),
    "loops and holds on": (answer("while True:", "    try: time.sleep(9)", "    except BaseException: pass"), ("timeout",)),
    "forks and loops": (answer("os.fork(), os.fork()", "while True: pass"), ("timeout",)),
}  # fmt: skip
SLOW = {"loops and holds on", "forks and loops"}


@pytest.fixture(scope="module")
def lane():
    lane = Lane(DEMO, LAB)
    lane.run(Job("1.6", "answer_1_6 = 128\n"))
    yield lane
    lane.close()


def processes():
    """The id, the parent's id and the state of each."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{process}/stat") as stat:
                state, parent = stat.read().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        yield int(process), int(parent), state


def descendants(of):
    children = [child for child, parent, _ in processes() if parent == of]
    return [*children, *(below for child in children for below in descendants(child))]


@pytest.mark.parametrize("what", [pytest.param(w, marks=pytest.mark.full) if w in SLOW else w for w in HOSTILE])
def test_it_costs_that_answer_at_most(lane, what):
    source, allowed = HOSTILE[what]
    worker = lane._process
    assert lane.run(Job("1.1", source)).verdict in allowed
    assert lane._process is worker, "the worker has to be started again"
    assert lane.run(Job("1.1", RIGHT)).passed, "the next answer pays for it"
    assert lane.run(Job("1.1", WRONG)).verdict == "failed", "the next answer profits by it"
    if lane.isolation == sandbox.NAMESPACES:
        deadline = time.monotonic() + 10
        while descendants(worker.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert descendants(worker.pid) == []


def found_by(lane, *attempts):
    """What an answer says it could do, of (code, words)."""
    lines = [f"    try: {code}; found.append({words!r})\n    except BaseException: pass\n" for code, words in attempts]
    source = "import os\n\n\ndef running_mean(x):\n    found = []\n" + "".join(lines) + "    raise ValueError(found)\n"
    return lane.run(Job("1.1", source)).reason


def test_nothing_outside_can_be_reached(lane, tmp_path):
    if lane.isolation != sandbox.NAMESPACES:
        pytest.skip(f"not run here: {lane.isolation}")
    submission = tmp_path / "alice.ipynb"
    submission.write_text("hers")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        reason = found_by(
            lane,
            (f"open({lanes.__file__!r}, 'a').close()", "rewrote the grader"),
            (f"open({str(submission)!r}).read()", "read another submission"),
            (f"open({str(LAB.source)!r}).read()", "read the solutions"),
            (f"os.kill({os.getpid()}, 0)", "saw the grader"),
            ("assert len([p for p in os.listdir('/proc') if p.isdigit()]) > 1", "saw other processes"),
            (f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)", "reached the network"),
            ("open('/proc/sys/kernel/core_pattern', 'a').close()", "changed the machine"),
            ("import ctypes; assert ctypes.CDLL(None).umount2(b'/tmp', 2) == 0", "unmounted"),
            ("open(os.path.expanduser('~/.profile'), 'a').close()", "wrote to the home folder"),
            (
                "import ctypes; c = ctypes.CDLL(None); assert c.unshare(0x10020000) == c.umount2(b'/proc', 2) == 0",
                "unmounted in a namespace of its own",
            ),
            ("import ctypes; assert ctypes.CDLL(None).unshare(0x10000000) == 0", "got every capability back"),
            ("import ctypes; assert ctypes.CDLL(None).shmget(0, 2**29, 0o1600) >= 0", "had memory beyond its limit"),
            ("assert open('/proc/self/oom_score_adj').read() != '1000\\n'", "outlived others where memory ended"),
            ("[os.mknod(f'{n}') for n in range(2**17)]", "made files without end"),
            ("import resource; assert resource.getrlimit(7)[0] > 1024", "opened files without end"),
        )
    assert reason == "your code raised ValueError: []"
    assert submission.read_text() == "hers"


def test_a_private_folder_is_there_and_new_each_time(lane):
    for _ in range(2):
        assert "['wrote']" in found_by(lane, ("open('mine', 'x').close()", "wrote"))  # not if there is such a file


def test_secrets_of_the_environment_stay_outside(monkeypatch):
    for name in ("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "MY_GRADES"):
        monkeypatch.setenv(name, "hunter2")
    assert "hunter2" not in clean_environment().values()
    assert "PATH" in clean_environment()


ASK = "from twophase_labs import reference, use\n"


@pytest.mark.parametrize("ask", ["reference", "use"])
@pytest.mark.parametrize("exercise", [i for i in LAB.exercises if i != "1.7"])
def test_the_reference_is_worth_no_points_whatever_the_kind(lane, exercise, ask):
    """A question's is a plain value, equal to what a learner would have written."""
    (name,) = LAB.exercises[exercise].names
    assert lane.run(Job(exercise, f"{ASK}{name} = {ask}({exercise!r})\n")).verdict == "by_reference"


def test_a_verdict_travels_as_a_line():
    verdict = Verdict("1.1", "failed", "a\udcff" * 10**5, ("d",) * 10**4, picture="AA==")
    got = from_line(as_line(verdict), "1.1")
    assert (got.verdict, got.picture, len(got.reason), len(got.details)) == ("failed", "AA==", 20_000, 200)
    assert from_line(as_line(verdict), "1.2").exercise == "1.2"
    for line in (b"", b"[1]", b"{}", b"[" * 10**5, as_line(verdict).replace(b'"failed"', b'"hacked"'),
                 as_line(verdict).replace(b'"hint": ""', b'"hint": 3')):  # fmt: skip
        with pytest.raises(ValueError):
            from_line(line, "1.1")


@pytest.mark.parametrize(
    ("source", "verdict"),
    [(RIGHT, "passed"), (WRONG, "failed"), (answer("os._exit(0)"), "error")],
)
def test_without_fork_the_verdicts_are_the_same(source, verdict):
    lane = Lane(DEMO, LAB, fork=False)
    try:
        assert lane.run(Job("1.1", source)).verdict == verdict
        assert lane.isolation == sandbox.LIMITS_ONLY
    finally:
        lane.close()
