"""Answers that prove the check of exercise 1.9."""

from twophase_labs.machine.bank import right, wrong

COUNTS, FOLLOWS_THE = "counts keys and values of all layers", "follows the width of a value"
BELIEVES_A, READS_FILES = "believes a head_dim that the file states", "reads files without num_key_value_heads"

A_PRODUCT_OF_A = """
def kv_bytes_per_token(config, bytes_per_value):
    heads = config["num_attention_heads"]
    size = config["head_dim"] if "head_dim" in config else config["hidden_size"] // heads
    kv_heads = config.get("num_key_value_heads") or heads
    return math.prod([2, config["num_hidden_layers"], kv_heads, size, bytes_per_value])
"""

# fmt: off
BANKS = {
    "1.9": (
        wrong("one layer only", '2 * config["num_hidden_layers"]', "2", by=COUNTS),
        wrong("head_dim from the KV heads", {2: 'config["hidden_size"] // num_kv_heads'}, by=COUNTS),
        wrong("forgets that V is kept too", '2 * config["num_hidden_layers"', "config['num_hidden_layers'", by=COUNTS),
        wrong("the whole width, as before grouped-query attention",
              {3: '2 * config["num_hidden_layers"] * config["hidden_size"] * bytes_per_value'}, by=COUNTS),
        wrong("bits", {3: '2 * config["num_hidden_layers"] * num_kv_heads * head_dim * bytes_per_value * 8'},
              by=COUNTS),
        wrong("always fp16", "* bytes_per_value", "* 2", by=FOLLOWS_THE),
        wrong("head_dim always from the width",
              {3: '2 * config["num_hidden_layers"] * num_kv_heads * (config["hidden_size"] // num_heads) * bytes_per_value'},
              by=BELIEVES_A),
        wrong("eight by default", 'num_heads = config["num_attention_heads"]', 'H = config["num_attention_heads"]',
              'num_kv_heads = config.get("num_key_value_heads", num_heads)',
              "L = config['num_hidden_layers']\n    N = config.get(\"num_key_value_heads\", 8)",
              'head_dim = config.get("head_dim", config["hidden_size"] // num_heads',
              'D = config.get("head_dim", config["hidden_size"] // H',
              '2 * config["num_hidden_layers"] * num_kv_heads * head_dim', "2 * L * N * D", by=READS_FILES),
        right("a product of a list", A_PRODUCT_OF_A),
        right("NumPy's integers",
              {3: 'np.prod([2, config["num_hidden_layers"], num_kv_heads, head_dim, bytes_per_value])'}),
    ),
}
