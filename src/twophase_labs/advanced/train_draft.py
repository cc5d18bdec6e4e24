"""A draft model for SmolLM2, made of its own first layers and trained on its own answers in one narrow domain.

    python -m twophase_labs.advanced.train_draft            write it to the cache folder, some minutes on a CPU
    python -m twophase_labs.advanced.train_draft --try      also print what it is worth, in its domain and outside

SmolLM2 writes short stories, greedily. A copy of its first two layers learns to give the same next-token
probabilities (distillation: cross-entropy with the large model's, not with the token it chose). The stories use about
a thousand of the 49,152 tokens, so the draft model's output matrix has only these rows (the idea is of FR-Spec,
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
from twophase.model.prepare import cache_home
from twophase_labs.kit.models import smollm2

WHO = ("lighthouse keeper", "baker", "young girl", "old sailor", "teacher", "gardener", "clockmaker", "shepherd")
WHERE = ("by the sea", "in the mountains", "in a small village", "in a big city", "on an island", "near a forest")
WHAT = ("a lost key", "a strange letter", "a wounded bird", "an old map", "a hidden door", "a small red boat")
OUTSIDE = (
    "Explain what a hash table is.",
    "List five European capitals and their rivers.",
    "Write a Python function that reverses a string.",
    "What is the difference between weather and climate?",
)
NUM_ANSWERS, NUM_HELD_OUT, NUM_TOKENS = 160, 12, 48
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
NUM_LAYERS, NUM_EPOCHS, BATCH_SIZE, LEARNING_RATE = 2, 8, 8, 1e-3


class Example(NamedTuple):
    """A prompt and its answer, as token ids."""

    prompt: list[int]
    answer: list[int]


class Batch(NamedTuple):
    """Texts, the places whose next token is one of the answer, and the large model's probabilities there."""

    ids: Int[Tensor, "B T"]
    is_asked: Bool[Tensor, "B T"]
    probs: Float[Tensor, "n K"]


def file_of_draft() -> Path:
    return cache_home() / "draft-of-smollm2.safetensors"


def prompts() -> tuple[list[str], list[str]]:
    """Of the domain: to train on, and held out."""
    all_prompts = [f"Write a story about a {who} {where} and {what}." for who, where, what in product(WHO, WHERE, WHAT)]
    random.Random(0).shuffle(all_prompts)
    return all_prompts[:NUM_ANSWERS], all_prompts[NUM_ANSWERS : NUM_ANSWERS + NUM_HELD_OUT]


def answers_of(llm: LLM, asked: Sequence[str]) -> list[Example]:
    """SmolLM2's own, greedy."""
    outputs = llm.chat([[{"role": "user", "content": one}] for one in asked], PARAMS, use_tqdm=False)
    return [Example(list(output.prompt_token_ids), list(output.outputs[0].token_ids)) for output in outputs]


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


def batches_of(large: Any, examples: Sequence[Example], types: Int[Tensor, " K"]) -> list[Batch]:
    """With the large model's probabilities among `types`."""
    made = []
    for start in range(0, len(examples), BATCH_SIZE):
        part = examples[start : start + BATCH_SIZE]
        length = max(len(prompt) + len(answer) for prompt, answer in part)
        ids = torch.zeros(len(part), length, dtype=torch.long)
        is_asked = torch.zeros(len(part), length, dtype=torch.bool)
        for row, (prompt, answer) in enumerate(part):
            end = len(prompt) + len(answer)
            ids[row, :end] = torch.tensor([*prompt, *answer])
            is_asked[row, len(prompt) - 1 : end - 1] = True
        with torch.inference_mode():
            hidden = large.model(ids).last_hidden_state[is_asked]
            probs = (hidden @ large.lm_head.weight[types].T).softmax(-1)
        made.append(Batch(ids, is_asked, probs.clone()))
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


def make(file: Path, num_answers: int = NUM_ANSWERS, num_epochs: int = NUM_EPOCHS) -> float:
    """Let SmolLM2 answer, train, and write the file once it is complete; the last epoch's loss."""
    from safetensors.torch import save_file

    large, _ = smollm2()
    examples = answers_of(LLM(num_kv_blocks=512, max_num_seqs=16), prompts()[0][:num_answers])
    types = torch.tensor(sorted({token for prompt, answer in examples for token in (*prompt, *answer)}))
    network = DraftNetwork(large, types)
    loss = train(network, batches_of(large, examples, types), num_epochs)
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
    large, _ = smollm2()
    num_same, overlap, num_places = 0, 0.0, 0
    for prompt, answer in answers_of(LLM(num_kv_blocks=256, max_num_seqs=16), asked):
        ids = torch.tensor([[*prompt, *answer]])
        places = slice(len(prompt) - 1, len(prompt) + len(answer) - 1)
        p = large(ids).logits[0, places].softmax(-1)
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
