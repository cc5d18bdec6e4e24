"""Run by each rank of a launch: what argv[1] names."""

import os
import signal
import sys
import time
from pathlib import Path

RANK = int(os.environ["RANK"])
LIMIT_S = 1.5


def idle_then_lose_one() -> int:
    """Three ranks: two wait for work for longer than the limit, add something up, and then the last one dies."""
    import torch

    from twophase_features.parallel.peers import PeerLostError, Peers

    with Peers("cpu", step_timeout_s=LIMIT_S) as peers:
        message = [0, 0, 0]
        if RANK == 0:
            time.sleep(LIMIT_S + 1)
            for rank in (1, 2):
                peers.call([7, 8, rank], rank, "a worker")
        else:
            message = peers.wait_for_call(0, "work")
        total = torch.tensor(message).float()
        peers.all_reduce(total, "a sum")
        passed_on = torch.full((2,), float(RANK))
        if RANK:
            peers.send(passed_on * 10, 0, "rank 0 to listen")
        else:
            for rank in (2, 1):
                peers.recv(passed_on, rank, "a greeting")
        print(message, total.tolist(), passed_on.tolist(), peers.traffic["all_reduce"].num_bytes)
        if RANK == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(2):
            try:
                peers.all_reduce(total, "the last sum")
            except PeerLostError as error:
                print(2 in error.ranks, "the last sum" in str(error))
    return 4


def driver_dies() -> int:
    """Two ranks: the driver is killed while its worker has nothing to do."""
    from twophase_features.parallel.peers import PeerLostError, Peers

    with Peers("cpu", step_timeout_s=LIMIT_S) as peers:
        if RANK == 0:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            peers.wait_for_call(0, "work")
        except PeerLostError as error:
            time.sleep(0.5)  # the SIGTERM of the launcher comes meanwhile
            print(error.ranks)
    return 6


def fail() -> int:
    """Rank 1 fails while rank 0 works on."""
    print(f"rank {RANK} has {os.environ['OMP_NUM_THREADS']} threads and arguments {sys.argv[2:]}")
    if RANK == 1:
        time.sleep(1)
        raise ValueError("planted")
    time.sleep(60)
    return 0


def sleep_for_ever() -> int:
    """Deaf to SIGTERM; the last rank is stopped besides."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(sys.argv[2], f"{RANK}.pid").write_text(str(os.getpid()))
    print("asleep", flush=True)
    if RANK == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(300)
    return 0


if __name__ == "__main__":
    sys.exit(globals()[sys.argv[1]]())
