"""Answers that prove the check of exercise 1.9."""

from twophase_labs.machine.exercise import Bank, Right, Wrong

COUNTS = "counts keys and values of all layers"

BANKS = {
    "1.9": Bank(
        wrong=(
            Wrong(
                "forgets that V is kept too",
                {3: 'config["num_hidden_layers"] * num_kv_heads * head_dim * bytes_per_value'},
                rejected_by=COUNTS,
            ),
            Wrong(
                "one layer only",
                {3: "2 * num_kv_heads * head_dim * bytes_per_value"},
                rejected_by=COUNTS,
            ),
            Wrong(
                "every query head keeps K and V",
                {3: '2 * config["num_hidden_layers"] * num_heads * head_dim * bytes_per_value'},
                rejected_by=COUNTS,
            ),
            Wrong(
                "the whole width, as before grouped-query attention",
                {3: '2 * config["num_hidden_layers"] * config["hidden_size"] * bytes_per_value'},
                rejected_by=COUNTS,
            ),
            Wrong(
                "KiB",
                {3: '2 * config["num_hidden_layers"] * num_kv_heads * head_dim * bytes_per_value / 1024'},
                rejected_by=COUNTS,
            ),
            Wrong(
                "always fp16",
                {3: '2 * config["num_hidden_layers"] * num_kv_heads * head_dim * 2'},
                rejected_by="follows the width of a value",
            ),
            Wrong(
                "bits",
                {3: '2 * config["num_hidden_layers"] * num_kv_heads * head_dim * bytes_per_value * 8'},
                rejected_by=COUNTS,
            ),
            Wrong(
                "head_dim from the KV heads",
                {2: 'config["hidden_size"] // num_kv_heads'},
                rejected_by=COUNTS,
            ),
            Wrong(
                "head_dim always from the width",
                {
                    3: '2 * config["num_hidden_layers"] * num_kv_heads * (config["hidden_size"] // num_heads)'
                    " * bytes_per_value"
                },
                rejected_by="believes a head_dim that the file states",
            ),
            Wrong(
                "insists on num_key_value_heads",
                "def kv_bytes_per_token(config, bytes_per_value):\n"
                '    head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])\n'
                '    heads = config["num_key_value_heads"]\n'
                '    return 2 * config["num_hidden_layers"] * heads * head_dim * bytes_per_value\n',
                rejected_by="reads files without num_key_value_heads",
            ),
        ),
        right=(
            Right(
                "K and V apart",
                {
                    3: '(num_kv_heads * head_dim + num_kv_heads * head_dim) * config["num_hidden_layers"]'
                    " * bytes_per_value"
                },
            ),
            Right(
                "a product of a list",
                "def kv_bytes_per_token(config, bytes_per_value):\n"
                '    heads = config["num_attention_heads"]\n'
                '    size = config["head_dim"] if "head_dim" in config else config["hidden_size"] // heads\n'
                '    kv_heads = config.get("num_key_value_heads") or heads\n'
                '    return math.prod([2, config["num_hidden_layers"], kv_heads, size, bytes_per_value])\n',
            ),
        ),
    ),
}
