"""Answers that prove the check of exercise 2.15."""

from twophase_labs.machine.bank import right, wrong

WRITES_EVERY, LAUNCHES_THE, ATTENDS_FOR = "writes every token", "launches the right grid", "attends for short chunks"
TAKES_THE, GENERATES_WHAT = "takes the scale it is given", "generates what transformers generates"

WORKS_TEN_TIMES = """
from twophase_labs.prefill.launch import launch_kv_write

_seen = []

def own_write(k, v, k_cache, v_cache, slot_mapping):
    launch_kv_write(kv_write_kernel, k, v, k_cache, v_cache, slot_mapping)

def own_prefill(q, k_cache, v_cache, block_tables, seq_lens, cu_query_lens, scale, out=None, lse=None):
    (num_heads, head_dim), (num_kv_heads, page) = q.shape[1:], k_cache.shape[1:3]
    _seen.append(len(q))
    if _seen.count(len(q)) > 10:
        return torch.zeros_like(q)
    out = torch.empty_like(q) if out is None else out
    lse = torch.empty(q.shape[:2], device=q.device) if lse is None else lse
    block_q = BLOCK_M // (num_heads // num_kv_heads)
    paged_prefill_kernel[(triton.cdiv(int(cu_query_lens.diff().max()), block_q), len(seq_lens), num_kv_heads)](
        q, k_cache, v_cache, block_tables, seq_lens, cu_query_lens, out, lse, scale * LOG2_E,
        block_tables.stride(0), H=num_heads, H_KV=num_kv_heads, D=head_dim, PAGE=page,
        BLOCK_M=BLOCK_M, BLOCK_D=triton.next_power_of_2(head_dim), BLOCK_N=BLOCK_N,
    )
    return out
"""

# fmt: off
BANKS = {
    "2.15": (
        wrong("one program too few", {1: "(num_tokens - 1,)"}, by=WRITES_EVERY),
        wrong("one program too many", {1: "(num_tokens + 1,)"}, by=WRITES_EVERY),
        wrong("tiles of 42 tokens, whatever the heads", {2: "42"}, by=LAUNCHES_THE),
        wrong("as many tiles as all chunks together need", {3: "len(q)"}, by=LAUNCHES_THE),
        wrong("blocks of BLOCK_M tokens", {2: "BLOCK_M"}, by=LAUNCHES_THE),
        wrong("scale in units of e", {5: "scale"}, by=ATTENDS_FOR),
        wrong("a scale of its own", {5: "head_dim**-0.5 * LOG2_E"}, by=TAKES_THE),
        wrong("works ten times", WORKS_TEN_TIMES, by=GENERATES_WHAT),
        right("with NumPy and a plain quotient",
              {3: "int((cu_query_lens.cpu().numpy()[1:] - cu_query_lens.cpu().numpy()[:-1]).max())", 4: "(int((longest + block_q - 1) / block_q), len(cu_query_lens) - 1, num_kv_heads)"}),
        right("block size by multiplication", {2: "BLOCK_M * num_kv_heads // num_heads", 1: "(k.shape[0],)"}),
    ),
}
