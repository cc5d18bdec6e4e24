"""What pool.c promises, checked in a process of its own: `python pool_checks.py pool.so kernel.so [check ...]`.

A mutant of the pool may hang, so its process is killed after a while. Neither torch nor Triton is loaded here.
"""

import ctypes
import os
import random
import struct
import sys
import threading
import time

# Three kernels in one. kind 0: out[p] = 3 in[(7 p + salt) % n] + p, so that a launch depends on all of the one before;
# 1: out[p] += 1, and who[p] is the thread; 2, 4: as 1, after salt microseconds; in kind 2, program 0
# takes 50 times as long; 3: until the launch is stopped.
KERNEL = r"""
#define _GNU_SOURCE
#include "runtime.h"
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
void run_programs(const launch *l, int32_t first, int32_t last) {
  const uint32_t *in = (const uint32_t *)l->args[0];
  uint32_t *out = (uint32_t *)l->args[1];
  int32_t n = l->args[2], kind = l->args[3], salt = l->args[4];
  for (int32_t p = first; p < last; p++) {
    if (kind == 0) { out[p] = 3 * in[(7 * p + salt) % n] + p; continue; }
    if (kind == 2 || kind == 4) {
      struct timespec t = {0, 1000L * salt * (p || kind == 4 ? 1 : 50)};
      nanosleep(&t, 0);
    }
    while (kind == 3 && !*l->stop) usleep(100);
    out[p] += 1;
    ((uint32_t *)in)[p] = (uint32_t)syscall(SYS_gettid);
  }
}
"""


class Jobs:
    """A list of launches: rows of (grid, input, output, n, kind, salt)."""

    def __init__(self, kernel, rows, stop=None):
        self.kept, self.number = rows, len(rows)
        self.pointer = (ctypes.c_char_p * len(rows))(*[self._launch(kernel, stop, *row) for row in rows])

    def _launch(self, kernel, stop, grid, source, target, n, kind, salt):
        """As runtime.h has it."""
        run = ctypes.cast(kernel.run_programs, ctypes.c_void_p).value
        head = run, *grid, 5, 0, 0, 0 if stop is None else ctypes.addressof(stop)
        return struct.pack("<Q4i3Q5Q", *head, ctypes.addressof(source), ctypes.addressof(target), n, kind, salt)


def buffer(n, values=None):
    return (ctypes.c_uint32 * n)(*(values or []))


def load(pool, kernel):
    pool, kernel = ctypes.CDLL(pool), ctypes.CDLL(kernel)
    pool.pool_run.argtypes = pool.pool_start.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32]
    pool.pool_run.restype = None
    pool.pool_wait.argtypes = [ctypes.c_int64]
    return pool, kernel


def run_lists(pool, kernel, seed, count, with_limit=True):
    """Lists of launches that hand a buffer to and fro, grids of all sizes, any number of threads, against Python."""
    rng = random.Random(seed)
    n = 60
    for _ in range(count):
        a, b = buffer(n, range(n)), buffer(n)
        want = [list(range(n)), [0] * n]
        rows = []
        for i in range(rng.randint(1, 40)):
            grid = rng.choice([(1, 1, 1), (60, 1, 1), (5, 4, 3), (0, 3, 1), (3, 1, 1), (1, 30, 1), (4, 1, 2)])
            total, salt = grid[0] * grid[1] * grid[2], rng.randrange(n)
            source, target = (a, b) if i % 2 == 0 else (b, a)
            rows.append((grid, source, target, n, 0, salt))
            for p in range(total):
                want[1 - i % 2][p] = (3 * want[i % 2][(7 * p + salt) % n] + p) % 2**32
        jobs = Jobs(kernel, rows)
        threads = rng.choice([1, 2, 3, 5])
        if with_limit and rng.random() < 0.3:
            while not pool.pool_start(jobs.pointer, jobs.number, threads):
                time.sleep(0)
            while not pool.pool_wait(rng.choice([0, 1000, 10**8])):
                pass
        else:
            pool.pool_run(jobs.pointer, jobs.number, threads)
        assert [list(a), list(b)] == want, "a launch did not see what the one before had written"


def check_lists(pool, kernel):
    run_lists(pool, kernel, 0, 300)


def check_several_callers(pool, kernel):
    failures = []

    def call(seed):
        try:
            run_lists(pool, kernel, seed, 100)
        except AssertionError as error:
            failures.append(error)

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures, failures[0]


def run_timed(pool, kernel, number, sleep_us, threads, start=False):
    """The thread of each program."""
    who, counts = buffer(number), buffer(number)
    jobs = Jobs(kernel, [((number, 1, 1), who, counts, number, 2, sleep_us)])
    if start:
        assert pool.pool_start(jobs.pointer, 1, threads)
        while not pool.pool_wait(10**8):
            pass
    else:
        pool.pool_run(jobs.pointer, 1, threads)
    assert list(counts) == [1] * number, "each program runs once"
    return list(who)


def workers(pool, kernel, threads, pause_s=0.0, start=False):
    """Who works on one of several launches that all `threads` had a part in. (A loaded machine may keep one waiting.)"""
    for _ in range(20):
        time.sleep(pause_s)
        who = set(run_timed(pool, kernel, 40, 200, threads, start))
        assert len(who) <= threads, f"{len(who)} threads worked, {threads} were asked for"
        if len(who) == threads:
            return who
    raise AssertionError(f"{threads} threads were asked for, and never did as many work")


def check_threads(pool, kernel):
    """As many as were asked for, no more, whether they are awake or asleep."""
    own = threading.get_native_id()
    for threads in (4, 2, 3):
        for pause_s in (0.0, 0.005):
            assert own in workers(pool, kernel, threads, pause_s)
    assert set(run_timed(pool, kernel, 6, 100, 1)) == {own}, "alone"
    assert own not in workers(pool, kernel, 2, start=True), "a launch with a time limit leaves the caller free"


def check_threads_that_are_still_awake(pool, kernel):
    """A launch with fewer threads, microseconds after one with more."""
    who, counts = buffer(40), buffer(40)
    short = Jobs(kernel, [((4, 1, 1), who, counts, 40, 4, 50)])
    jobs = Jobs(kernel, [((40, 1, 1), who, counts, 40, 4, 50)])
    for _ in range(40):
        pool.pool_run(short.pointer, 1, 4)
        pool.pool_run(jobs.pointer, 1, 2)
        assert len(set(who)) <= 2, f"{len(set(who))} threads worked, 2 were asked for"


def check_each_program_runs_once(pool, kernel):
    """Many small programs, for which the threads compete."""
    n = 4000
    who, counts = buffer(n), buffer(n)
    jobs = Jobs(kernel, [((n, 1, 1), who, counts, n, 1, 0)] * 400)
    pool.pool_run(jobs.pointer, jobs.number, 3)
    assert list(counts) == [400] * n, "a program ran twice, or not at all"


def check_an_absent_thread(pool, kernel):
    """A thread whose program has no processor (here: sleeps) gets no more of its list, and is back for the next."""
    for _ in range(20):
        first, then, counts = buffer(2), buffer(40), buffer(40)
        rows = [
            ((2, 1, 1), first, counts, 2, 2, 400),
            ((1, 1, 1), then, counts, 40, 1, 0),
            ((40, 1, 1), then, counts, 40, 4, 50),
        ]
        jobs = Jobs(kernel, rows)
        pool.pool_run(jobs.pointer, jobs.number, 2)
        if first[0] != first[1] and set(then) == {first[1]}:
            break
    else:
        raise AssertionError("a thread without a processor is given programs")
    workers(pool, kernel, 2)


def check_limit(pool, kernel):
    who, counts, stop = buffer(4), buffer(4), ctypes.c_int32(0)
    jobs = Jobs(kernel, [((4, 1, 1), who, counts, 4, 3, 0)], stop)
    assert pool.pool_start(jobs.pointer, 1, 2)
    begin = time.monotonic()
    assert not pool.pool_wait(30_000_000)
    assert 0.029 < time.monotonic() - begin < 5
    assert not pool.pool_start(jobs.pointer, 1, 2), "the pool is taken"
    run_lists(pool, kernel, 5, 5, with_limit=False)  # by whom finds it taken, alone
    stop.value = 1
    while not pool.pool_wait(10**8):
        pass
    assert list(counts) == [1] * 4


def check_fork(pool, kernel):
    """A child has none of its parent's threads, even when it is forked in the middle of a launch."""
    run_timed(pool, kernel, 20, 100, 3)
    who, counts, stop = buffer(4), buffer(4), ctypes.c_int32(0)
    jobs = Jobs(kernel, [((4, 1, 1), who, counts, 4, 3, 0)], stop)
    for busy in (False, True):
        if busy:
            assert pool.pool_start(jobs.pointer, 1, 2)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                check_threads(pool, kernel)
                run_lists(pool, kernel, 1, 20)
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        if busy:
            stop.value = 1
            while not pool.pool_wait(10**8):
                pass
    run_lists(pool, kernel, 2, 20)


CHECKS = {name: check for name, check in globals().items() if name.startswith("check_")}

if __name__ == "__main__":
    loaded = load(*sys.argv[1:3])
    for name in sys.argv[3:] or CHECKS:
        CHECKS[name](*loaded)
