"""Pools of unequal hardware, as `twophase plan` proposes them for the documents of this lab, in a few words."""

import re

from twophase_tools.capacity.config import EXAMPLE, parse_config
from twophase_tools.capacity.plan import Plan

POOLS = """
pools:
  prefill:
    hardware: {prefill}
  decode:
    hardware: {decode}
  link_bytes_per_s: 50e9
  link_latency_s: 20e-6
"""


ASKED = {"rate": "144", "prompt_tokens": "4800", "output_tokens": "140", "ttft_s": "1.0", "tpot_s": "0.012"}


def asked() -> str:
    """The traffic and the SLO, four times those of the lab's eight engines, in a line."""
    return (
        f"{ASKED['rate']} requests per second of {int(ASKED['prompt_tokens']):,} + {ASKED['output_tokens']} tokens; on "
        f"average TTFT within {ASKED['ttft_s']} s, TPOT within {1e3 * float(ASKED['tpot_s']):g} ms"
    )


def plan_of(prefill: str, decode: str) -> Plan:
    """What `asked` says, on these GPUs."""
    lines = [line.split("#")[0].rstrip() for line in EXAMPLE.read_text(encoding="utf-8").splitlines()]
    text = "\n".join(line for line in lines if line)
    for key, value in {**ASKED, "max_model_len": "16384"}.items():
        text = re.sub(rf"(?m)^(\s*){key}:.*$", rf"\g<1>{key}: {value}", text)
    return Plan(parse_config(text + "\n" + POOLS.format(prefill=prefill, decode=decode)))


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
