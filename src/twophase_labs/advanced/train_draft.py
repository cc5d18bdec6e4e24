"""A draft model for SmolLM2, distilled on this machine from its own greedy answers in one narrow domain.

    python -m twophase_labs.advanced.train_draft            write it to the cache folder, a few minutes on a CPU
    python -m twophase_labs.advanced.train_draft --try      also say what it is worth, inside its domain and outside

The student is a Llama of two narrow layers with SmolLM2's tokenizer. The domain uses some hundreds of the 49,152
tokens, so only these get an embedding, which is the output matrix as well. All others keep a row of zeros, and so a
logit of 0 each; the loss counts them by one more column of ln(how many). That is the same loss, exactly, at a fiftieth
of its price.
"""

import argparse
import math
import random
import shutil
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor

from twophase import LLM, SamplingParams, SpeculativeConfig
from twophase.model.prepare import DEFAULT_MODEL, cache_home, resolve_model

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
LEFT_OUT = -100  # a target that the loss skips


def folder_of_draft() -> Path:
    return cache_home() / "draft-of-smollm2"


def prompts() -> tuple[list[str], list[str]]:
    """Of the domain: to train on, and held out."""
    all_prompts = [f"Write a story about a {who} {where} and {what}." for who, where, what in product(WHO, WHERE, WHAT)]
    random.Random(0).shuffle(all_prompts)
    return all_prompts[:NUM_ANSWERS], all_prompts[NUM_ANSWERS : NUM_ANSWERS + NUM_HELD_OUT]


def answers_of(llm: LLM, asked: Sequence[str]) -> list[tuple[list[int], list[int]]]:
    """Prompt and answer of each, as token ids; greedy."""
    outputs = llm.chat([[{"role": "user", "content": one}] for one in asked], PARAMS, use_tqdm=False)
    return [(list(output.prompt_token_ids), list(output.outputs[0].token_ids)) for output in outputs]


def student(num_types: int) -> Any:
    """Two layers, 192 wide."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config: Any = LlamaConfig(
        vocab_size=num_types,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LlamaForCausalLM(config)


def batches(
    texts: Sequence[tuple[list[int], list[int]]], number_of: dict[int, int], batch_size: int, chance: random.Random
) -> list[tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]]:
    """Inputs and targets in the student's own numbers, in random order; prompts are no targets."""
    order = list(texts)
    chance.shuffle(order)
    made = []
    for start in range(0, len(order), batch_size):
        part = order[start : start + batch_size]
        length = max(len(prompt) + len(answer) for prompt, answer in part)
        ids = torch.zeros(len(part), length, dtype=torch.long)
        targets = torch.full((len(part), length), LEFT_OUT)
        for row, (prompt, answer) in enumerate(part):
            numbers = torch.tensor([number_of[token] for token in (*prompt, *answer)])
            ids[row, : len(numbers)] = numbers
            targets[row, len(prompt) - 1 : len(numbers) - 1] = numbers[len(prompt) :]
        made.append((ids, targets))
    return made


def train(
    model: Any, texts: Sequence[tuple[list[int], list[int]]], types: Sequence[int], vocab_size: int, num_epochs: int
) -> float:
    """The mean loss of the last epoch."""
    number_of = {token: number for number, token in enumerate(types)}
    chance, total = random.Random(0), 0.0
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    num_steps = num_epochs * -(-len(texts) // 16)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=num_steps, pct_start=0.1)
    for _ in range(num_epochs):
        losses = []
        for ids, targets in batches(texts, number_of, 16, chance):
            logits = model(ids).logits
            others = logits.new_full((*logits.shape[:2], 1), math.log(vocab_size - len(types)))
            loss = F.cross_entropy(
                torch.cat([logits, others], -1).flatten(0, 1), targets.flatten(), ignore_index=LEFT_OUT
            )
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(float(loss.detach()))
        total = sum(losses) / len(losses)
    return total


def save(model: Any, types: Sequence[int], vocab_size: int, folder: Path) -> None:
    """In SmolLM2's vocabulary, with its tokenizer beside it; the folder appears when it is complete."""
    from transformers.utils import logging

    whole = student(vocab_size)
    state = {
        name: value
        for name, value in model.state_dict().items()
        if "embed_tokens" not in name and "lm_head" not in name
    }
    rows = torch.zeros(vocab_size, whole.config.hidden_size)
    rows[list(types)] = model.model.embed_tokens.weight.detach()
    whole.load_state_dict(state, strict=False)
    with torch.no_grad():
        whole.model.embed_tokens.weight.copy_(rows)
    whole.tie_weights()
    unfinished = folder.with_name(folder.name + ".new")
    shutil.rmtree(unfinished, ignore_errors=True)
    logging.disable_progress_bar()
    try:
        whole.save_pretrained(unfinished)
    finally:
        logging.enable_progress_bar()
    for file in resolve_model(DEFAULT_MODEL).iterdir():
        if "token" in file.name or file.name in ("vocab.json", "merges.txt", "chat_template.jinja"):
            shutil.copy(file, unfinished / file.name)
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)


def make(folder: Path, num_answers: int = NUM_ANSWERS, num_epochs: int = 30) -> float:
    """Let SmolLM2 answer, train, save; the last epoch's loss."""
    llm = LLM(num_kv_blocks=512, max_num_seqs=16)
    texts = answers_of(llm, prompts()[0][:num_answers])
    types = sorted({token for prompt, answer in texts for token in (*prompt, *answer)})
    vocab_size = llm.model_config.vocab_size
    model = student(len(types))
    loss = train(model, texts, types, vocab_size, num_epochs)
    save(model, types, vocab_size, folder)
    return loss


def acceptance(folder: Path, asked: Sequence[str], num_drafts: int = 4) -> tuple[float, bool]:
    """Accepted drafts over those looked at, and whether the tokens are those without drafts."""
    config = SpeculativeConfig(
        method="draft_model", num_speculative_tokens=num_drafts, model=str(folder), disable_when_losing=False
    )
    drafting, plain = LLM(num_kv_blocks=256, max_num_seqs=4, speculative_config=config), LLM(num_kv_blocks=256)
    same = [answers_of(drafting, [one]) == answers_of(plain, [one]) for one in asked]
    speculator = drafting.engine.speculator
    assert speculator is not None
    accepted = sum(speculator.num_accepted.values())
    # Of a run, what comes after the first wrong draft was not looked at.
    looked_at = speculator.num_drafted[0] + sum(speculator.num_accepted[i] for i in range(num_drafts - 1))
    return accepted / looked_at, all(same)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train the draft model of lab 5.")
    parser.add_argument("--folder", type=Path, default=None, help="where to write it; default: the cache folder")
    parser.add_argument("--try", action="store_true", dest="is_tried", help="measure its acceptance afterwards")
    args = parser.parse_args(argv)
    folder = args.folder or folder_of_draft()
    start_s = time.perf_counter()
    loss = make(folder)
    print(f"{folder}: {time.perf_counter() - start_s:.0f} s, a loss of {loss:.2f} nats per token at the end")
    if args.is_tried:
        for name, asked in {"held-out stories": prompts()[1], "other questions": OUTSIDE}.items():
            share, is_same = acceptance(folder, asked)
            print(f"{name}: {share:.0%} of the drafts looked at were right; the same tokens: {is_same}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
