"""A draft model for SmolLM2, made of its own first layers and trained on its own answers in one narrow domain.

    python -m twophase_labs.advanced.train_draft            write it to the cache folder, a minute on a CPU
    python -m twophase_labs.advanced.train_draft --try      also print what it is worth, in its domain and outside

SmolLM2 writes short stories, greedily. A copy of its first two layers learns to give the same next-token
probabilities (distillation: cross-entropy with the large model's, not with the token it chose). The stories use some
hundred of the 49,152 tokens, so the draft model's output matrix has only these rows (the idea is of FR-Spec,
arXiv:2502.14856); all other tokens have probability 0 in it. It reads with SmolLM2's own embedding, which stays as it
is and is not stored again.
"""

import argparse
import os
import random
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from twophase import LLM, SamplingParams
from twophase.core.plan import ScheduledChunk
from twophase.engine.runner import Runner, TakeLogits
from twophase_features.model_store.prepare import cache_home
from twophase_labs.advanced.one_copy import open_llm
from twophase_labs.kit.models import smollm2

WHO = ("lighthouse keeper", "baker", "young girl", "old sailor", "teacher", "gardener")
WHERE = ("by the sea", "in the mountains", "in a small village", "on an island")
WHAT = ("a lost key", "a strange letter", "a wounded bird", "an old map")
OUTSIDE = (
    "Explain what a hash table is.",
    "List five European capitals and their rivers.",
    "Write a Python function that reverses a string.",
    "What is the difference between weather and climate?",
)
NUM_ANSWERS, NUM_HELD_OUT, NUM_TOKENS = 64, 12, 36
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
PARAMS_OF_ONE = SamplingParams(temperature=0, max_tokens=1)
NUM_LAYERS, NUM_EPOCHS, BATCH_SIZE, LEARNING_RATE = 2, 5, 4, 3e-3


class Example(NamedTuple):
    """A prompt and its answer, as token ids, and the large model's logits from which each of the answer was chosen."""

    prompt: list[int]
    answer: list[int]
    logits: Float[Tensor, "n V"]


class Batch(NamedTuple):
    """Texts, the places whose next token is one of the answer, and the large model's probabilities there."""

    ids: Int[Tensor, "B T"]
    is_asked: Bool[Tensor, "B T"]
    probs: Float[Tensor, "n K"]


def file_of_draft() -> Path:
    return cache_home() / f"draft-of-smollm2-{NUM_ANSWERS}.safetensors"


def prompts() -> tuple[list[str], list[str]]:
    """Of the domain: to train on, and held out."""
    all_prompts = [f"Write a story about a {who} {where} and {what}." for who, where, what in product(WHO, WHERE, WHAT)]
    random.Random(0).shuffle(all_prompts)
    return all_prompts[:NUM_ANSWERS], all_prompts[NUM_ANSWERS : NUM_ANSWERS + NUM_HELD_OUT]


@final
class Listener:
    """A runner that keeps a copy of the logits it returns, in float16, by sequence. Its sequences have no drafts."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.rows: dict[int, list[Tensor]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, chunks: Sequence[ScheduledChunk], score: TakeLogits | None = None) -> Float[Tensor, "R V"] | None:
        logits = self._runner.run(chunks, score)
        sampled = [chunk.seq_id for chunk in chunks if chunk.num_samples]
        for seq_id, row in zip(sampled, () if logits is None else logits.half(), strict=True):
            self.rows.setdefault(seq_id, []).append(row)
        return logits


def answers_of(llm: LLM, asked: Sequence[str]) -> list[Example]:
    """SmolLM2's own, greedy, and what it chose them from: so no answer is read a second time."""
    engine: Any = llm.engine
    runner = engine._runner
    engine._runner = listener = Listener(runner)
    try:
        outputs = llm.chat([[{"role": "user", "content": one}] for one in asked], PARAMS, use_tqdm=False)
    finally:
        engine._runner = runner
    rows = [torch.stack(listener.rows[seq_id]) for seq_id in sorted(listener.rows)]  # in the order of the prompts
    return [
        Example(list(output.prompt_token_ids), list(output.outputs[0].token_ids), logits)
        for output, logits in zip(outputs, rows, strict=True)
    ]


@final
class DraftNetwork(nn.Module):
    """The first layers of a model, with an output matrix of some tokens only.

    Args:
        large: A Llama of transformers, whose embedding is shared. Its layers are copied.
        types: Token ids that get a row, K of them.
    """

    types: Tensor

    def __init__(self, large: Any, types: Int[Tensor, " K"], num_layers: int = NUM_LAYERS) -> None:
        super().__init__()
        config = large.config.__class__.from_dict(large.config.to_dict() | {"num_hidden_layers": num_layers})
        with torch.device("meta"):
            self.body = large.model.__class__(config)
        self.body.to_empty(device="cpu")
        self.body.rotary_emb = large.model.rotary_emb
        self.body.layers.load_state_dict(large.model.layers[:num_layers].state_dict())
        self.body.norm.load_state_dict(large.model.norm.state_dict())
        self.body.embed_tokens = large.model.embed_tokens
        self.head = nn.Linear(config.hidden_size, len(types), bias=False)
        self.head.weight.data.copy_(large.lm_head.weight[types])
        self.register_buffer("types", types)
        self.requires_grad_(True)
        self.body.embed_tokens.requires_grad_(False)

    def forward(self, ids: Int[Tensor, "B T"], **options: Any) -> Float[Tensor, "B T D"]:
        """What the output matrix reads."""
        return self.body(ids, **options).last_hidden_state

    def own_state(self) -> dict[str, Tensor]:
        """What is stored: all but the embedding."""
        return {name: value for name, value in self.state_dict().items() if "embed_tokens" not in name}


def batches_of(examples: Sequence[Example], types: Int[Tensor, " K"]) -> list[Batch]:
    """With the large model's probabilities among `types`."""
    made = []
    for start in range(0, len(examples), BATCH_SIZE):
        part = examples[start : start + BATCH_SIZE]
        length = max(len(one.prompt) + len(one.answer) for one in part)
        ids = torch.zeros(len(part), length, dtype=torch.long)
        is_asked = torch.zeros(len(part), length, dtype=torch.bool)
        for row, (prompt, answer, _) in enumerate(part):
            end = len(prompt) + len(answer)
            ids[row, :end] = torch.tensor([*prompt, *answer])
            is_asked[row, len(prompt) - 1 : end - 1] = True
        probs = torch.cat([one.logits[:, types] for one in part]).float().softmax(-1)
        made.append(Batch(ids, is_asked, probs))
    return made


def train(network: DraftNetwork, batches: Sequence[Batch], num_epochs: int = NUM_EPOCHS) -> float:
    """The mean loss of the last epoch, in nats per token."""
    chance, order = random.Random(0), list(batches)
    own = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(own, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=num_epochs * len(order), pct_start=0.1
    )
    losses: list[float] = []
    for _ in range(num_epochs):
        chance.shuffle(order)
        losses = []
        for ids, is_asked, probs in order:
            log_q = network.head(network(ids)[is_asked]).log_softmax(-1)
            loss = -(probs * log_q).sum(-1).mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(own, 1.0)
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
    return sum(losses) / len(losses)


def make(file: Path) -> float:
    """Let SmolLM2 answer, train, and write the file once it is complete; the last epoch's loss."""
    from safetensors.torch import save_file

    num_threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    try:
        llm = open_llm(num_kv_blocks=512, max_num_seqs=NUM_ANSWERS)
        asked = prompts()[0]
        llm.chat([{"role": "user", "content": asked[0]}], PARAMS_OF_ONE, use_tqdm=False)  # a prefix of all others
        examples = answers_of(llm, asked)
        types = torch.tensor(sorted({token for one in examples for token in (*one.prompt, *one.answer)}))
        network = DraftNetwork(smollm2()[0], types)
        loss = train(network, batches_of(examples, types))
    finally:
        torch.set_num_threads(num_threads)
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = file.with_suffix(f".{os.getpid()}")  # another process may be making it, too
    save_file({name: value.contiguous() for name, value in network.own_state().items()}, unfinished)
    unfinished.rename(file)
    return loss


def load(file: Path) -> DraftNetwork:
    """Raises: FileNotFoundError: It was not made yet."""
    from safetensors.torch import load_file

    if not file.exists():
        raise FileNotFoundError(f"{file} does not exist: python -m twophase_labs.advanced.train_draft makes it")
    state = load_file(file)
    network = DraftNetwork(smollm2()[0], state["types"])
    missing, unexpected = network.load_state_dict(state, strict=False)
    if unexpected or any("embed_tokens" not in name for name in missing):
        raise ValueError(f"{file} is not a draft model of this version: {missing + unexpected}")
    return network.eval().requires_grad_(False)


@torch.inference_mode()
def agreement(network: DraftNetwork, asked: Sequence[str]) -> tuple[float, float]:
    """Over greedy answers of SmolLM2: at which share of the places both have the same likeliest token, and the mean of
    sum(min(p, q)), which is what drafts at temperature 1 are accepted with."""
    num_same, overlap, num_places = 0, 0.0, 0
    for prompt, answer, logits in answers_of(open_llm(num_kv_blocks=256, max_num_seqs=16), asked):
        ids = torch.tensor([[*prompt, *answer]])
        places = slice(len(prompt) - 1, len(prompt) + len(answer) - 1)
        p = logits.float().softmax(-1)
        q = torch.zeros_like(p)
        q[:, network.types] = network.head(network(ids)[0, places]).softmax(-1)
        num_same += int((p.argmax(-1) == q.argmax(-1)).sum())
        overlap += float(torch.minimum(p, q).sum())
        num_places += len(answer)
    return num_same / num_places, overlap / num_places


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train the draft model of lab 5.")
    parser.add_argument("--file", type=Path, default=None, help="where to write it; default: the cache folder")
    parser.add_argument("--try", action="store_true", dest="is_tried", help="measure its acceptance afterwards")
    args = parser.parse_args(argv)
    file = args.file or file_of_draft()
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    loss = make(file)
    elapsed_s, cpu_s = time.perf_counter() - start_s, time.process_time() - start_cpu_s
    print(f"{file}: {elapsed_s:.0f} s, {cpu_s:.0f} s of CPU; a loss of {loss:.2f} nats per token at the end")
    if args.is_tried:
        for name, asked in {"held-out stories": prompts()[1], "other questions": OUTSIDE}.items():
            share, overlap = agreement(load(file), asked)
            print(
                f"{name}: the same likeliest token at {share:.0%} of the places, probabilities overlap by {overlap:.0%}"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
