"""Pools of unequal hardware, as `twophase plan` proposes them for the documents of this lab, in a few words."""

from twophase_tools.capacity.config import config_of
from twophase_tools.capacity.plan import Plan

TRAFFIC = {"rate": 144, "prompt_tokens": 4800, "output_tokens": 140}
SLO = {"ttft_s": 1.0, "tpot_s": 0.012}


def asked() -> str:
    """The traffic and the SLO, four times those of the lab's eight engines, in a line."""
    return (
        f"{TRAFFIC['rate']} requests per second of {TRAFFIC['prompt_tokens']:,} + {TRAFFIC['output_tokens']} tokens; "
        f"on average TTFT within {SLO['ttft_s']} s, TPOT within {1e3 * SLO['tpot_s']:g} ms"
    )


def plan_of(prefill: str, decode: str) -> Plan:
    """What `asked` says, on these GPUs."""
    pools = {"prefill": {"hardware": prefill}, "decode": {"hardware": decode}}
    engine = {"model": "llama-3-8b", "hardware": "h100", "max_model_len": 16384}
    steps = {"max_num_seqs": 128, "max_num_batched_tokens": 4096}
    link = {"link_bytes_per_s": 50e9, "link_latency_s": 20e-6}
    return Plan(config_of({**engine, **steps, "workload": TRAFFIC, "slo": SLO, "pools": {**pools, **link}}))


def line(prefill: str, decode: str) -> str:
    """Engines of each pool, and the latencies that they give."""
    pools = plan_of(prefill, decode).pools
    assert pools is not None
    ttft_s, tpot_s = pools.ttft_s or 0.0, pools.tpot_s or 0.0
    return (
        f"prefill on {prefill}, decode on {decode}: {pools.num_prefill} + {pools.num_decode} engines; one engine "
        f"finishes {pools.prefills_per_s or 0:.1f} prompts/s, or {pools.decodes_per_s or 0:.1f} completions/s; TTFT "
        f"{1e3 * ttft_s:.0f} ms, TPOT {1e3 * tpot_s:.1f} ms"
    )
