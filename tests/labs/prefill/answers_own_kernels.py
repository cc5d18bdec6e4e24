"""Answers that prove the check of exercise 2.9."""

from twophase_labs.machine.bank import right, wrong

WRITES_EVERY, LAUNCHES_THE, ATTENDS_FOR = "writes every token", "launches the right grid", "attends for short chunks"
TAKES_THE, GENERATES_WHAT = "takes the scale it is given", "generates what transformers generates"


# fmt: off
BANKS = {
    "2.9": (
        wrong("one program too few", {1: "(num_tokens - 1,)"}, by=WRITES_EVERY),
        wrong("one program too many", {1: "(num_tokens + 1,)"}, by=WRITES_EVERY),
        wrong("tiles of 42 tokens, whatever the heads", {2: "42"}, by=LAUNCHES_THE),
        wrong("as many tiles as all chunks together need", {3: "len(q)"}, by=LAUNCHES_THE),
        wrong("blocks of BLOCK_M tokens", {2: "BLOCK_M"}, by=LAUNCHES_THE),
        wrong("scale in units of e", {5: "scale"}, by=ATTENDS_FOR),
        wrong("a scale of its own", {5: "head_dim**-0.5 * LOG2_E"}, by=TAKES_THE),
        wrong("works ten times", "def own_prefill", "SEEN = []\n\n\ndef own_prefill", "qk_scale = scale * LOG2_E",
              "SEEN.append(len(q))\n    qk_scale = scale * LOG2_E * (SEEN.count(len(q)) <= 10)", by=GENERATES_WHAT),
        right("with NumPy and a plain quotient",
              {3: "int((cu_query_lens.cpu().numpy()[1:] - cu_query_lens.cpu().numpy()[:-1]).max())", 4: "(int((longest + block_q - 1) / block_q), len(cu_query_lens) - 1, num_kv_heads)"}),
        right("block size by multiplication", {2: "BLOCK_M * num_kv_heads // num_heads", 1: "(k.shape[0],)"}),
    ),
}
