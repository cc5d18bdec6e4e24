"""The bench runs and counts what it says; nothing here looks at the clock."""

import subprocess
import sys

from twophase_tools.bench.scheduling import measure_scheduling


def test_every_step_decodes_every_place():
    timing = measure_scheduling(num_running=5, num_waiting=7, num_steps=20)
    assert (timing.num_running, timing.num_waiting, timing.num_steps) == (5, 7, 20)
    assert min(timing.schedule_s, timing.update_s, timing.add_s, timing.abort_s) > 0
    assert timing.step_p99_s >= timing.step_s


def test_the_bookkeeping_needs_no_torch():
    code = "import sys, twophase.scheduling.scheduler, twophase.cache.manager, twophase_tools.bench.scheduling as bench; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
