"""What section 9 trains: a student of SmolLM2's first two layers, on a few stories that SmolLM2 wrote.

The stories begin alike, each is drawn from SmolLM2's distribution at temperature 0.8, and the logits of every token are
kept. The student reads with SmolLM2's embedding and has an output matrix for some tokens only: those in the stories,
and SmolLM2's likeliest at each of their places.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from torch import Tensor, nn

from twophase_labs.kit.draw import done, one_axes
from twophase_labs.kit.models import smollm2
from twophase_tools.colours import COLOURS, INK

BEGINNING = "Once upon a time, there was"
NUM_STORIES, NUM_TRAINED, NUM_NEW, NUM_LIKELIEST = 24, 18, 24, 8
SAMPLING = {"do_sample": True, "temperature": 0.8, "top_k": 0}
BATCH_SIZE, NUM_STEPS, LEARNING_RATE = 6, 18, 3e-3
MEASURE_EVERY = 3

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Stories:
    """What the teacher wrote, and what it was thinking.

    Attributes:
        ids: Each begins with the same `num_given` tokens.
        types: The tokens that the student can write, K of them.
        logits: The teacher's for each new token, of these types.
        targets: Which of the types each new token is.
        mass: Mean probability that the teacher gives to all types together.
    """

    ids: Int[Tensor, "B T"]
    num_given: int
    types: Int[Tensor, " K"]
    logits: Float[Tensor, "B n K"]
    targets: Int[Tensor, "B n"]
    mass: float


@cache
def stories() -> Stories:
    """Some seconds: SmolLM2 writes them all at once."""
    model, tokenizer = smollm2()
    given = torch.tensor([tokenizer(BEGINNING)["input_ids"]] * NUM_STORIES)
    with torch.random.fork_rng(devices=[]), torch.inference_mode():
        torch.manual_seed(0)
        out = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=NUM_NEW, min_new_tokens=NUM_NEW,
            output_logits=True, return_dict_in_generate=True, pad_token_id=0, **SAMPLING,
        )  # fmt: skip
    ids, logits = out.sequences.clone(), torch.stack(out.logits, dim=1).clone()
    likeliest = logits[:NUM_TRAINED].topk(NUM_LIKELIEST, dim=-1).indices
    types = torch.cat([ids.flatten(), likeliest.flatten()]).unique()
    targets = torch.searchsorted(types, ids[:, given.shape[1] :].contiguous())
    mass = float(logits.softmax(-1)[..., types].sum(-1).mean())
    return Stories(ids, given.shape[1], types, logits[..., types], targets, mass)


@final
class Student(nn.Module):
    """A copy of the first layers of a Llama of transformers, whose embedding is shared, with an output matrix of the
    tokens `types` only."""

    def __init__(self, large: Any, types: Int[Tensor, " K"], num_layers: int = 2) -> None:
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
        self.requires_grad_(True)
        self.body.embed_tokens.requires_grad_(False)

    def forward(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T K"]:
        logits: Tensor = self.head(self.body(ids).last_hidden_state)
        return logits


def make_student() -> Student:
    """SmolLM2's first two layers and its final norm; not trained yet."""
    return Student(smollm2()[0], stories().types)


def logits_of(student: Student, rows: slice | Tensor) -> Float[Tensor, "B n K"]:
    """At each place of these stories whose next token the teacher chose."""
    told = stories()
    logits: Tensor = student(told.ids[rows, :-1])[:, told.num_given - 1 :]
    return logits


def train(
    student: Student,
    loss: Loss,
    on: Literal["logits", "tokens"],
) -> dict[int, float]:
    """In place, the same batches each time. Returns the distance from the teacher after some of the steps, 0 to all.

    Args:
        loss: Of the student's logits [B, n, K] and the teacher's, or which token was drawn, [B, n].
    """
    told, chance = stories(), torch.Generator().manual_seed(0)
    target = told.logits if on == "logits" else told.targets
    own = [parameter for parameter in student.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(own, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=NUM_STEPS, pct_start=0.2)
    order = torch.empty(0, dtype=torch.int64)
    curve = {0: distance(student)}
    for step in range(1, NUM_STEPS + 1):
        if len(order) == 0:
            order = torch.randperm(NUM_TRAINED, generator=chance)
        rows, order = order[:BATCH_SIZE], order[BATCH_SIZE:]
        optimizer.zero_grad()
        loss(logits_of(student, rows), target[rows]).backward()
        nn.utils.clip_grad_norm_(own, 1.0)
        optimizer.step()
        schedule.step()
        if step % MEASURE_EVERY == 0 or step == NUM_STEPS:
            curve[step] = distance(student)
    return curve


def loss_on_tokens(logits: Float[Tensor, "B n K"], targets: Int[Tensor, "B n"]) -> Float[Tensor, ""]:
    """The usual one of a language model: surprise at the token that was drawn."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@torch.no_grad()
def distance(student: Student) -> float:
    """KL of the teacher from the student in the stories that were kept back, in nats per token."""
    log_q = logits_of(student, slice(NUM_TRAINED, None)).log_softmax(-1)
    log_p = stories().logits[NUM_TRAINED:].log_softmax(-1)
    return float((log_p.exp() * (log_p - log_q)).sum(-1).mean())


def draw_curves(curves: Mapping[str, Mapping[int, float]]) -> Figure:
    """Distance from the teacher against steps, a line per way of teaching."""
    figure, axes = one_axes(7.6, 3.2)
    for (name, curve), colour, mark in zip(curves.items(), (COLOURS[5], COLOURS[0]), ("s--", "o-"), strict=True):
        axes.plot(list(curve), list(curve.values()), mark, color=colour)
        step, value = list(curve.items())[-1]
        axes.annotate(f"on {name}", (step, value), (8, -3), textcoords="offset points", fontsize=9, color=INK)
    last = max(step for curve in curves.values() for step in curve)
    axes.set(xlabel="steps", ylabel="nats per token from the teacher", xlim=(0, 1.15 * last), ylim=(0, None))
    axes.set_xticks(list(next(iter(curves.values()))))
    axes.set_title("Two students of the same stories, measured on stories kept back", loc="left", fontsize=11)
    return done(figure)
