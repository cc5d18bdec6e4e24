"""A number told in one of several passages: all of them in the prompt, or the one that a search finds."""

import re
from collections.abc import Sequence

from twophase import SamplingParams
from twophase_labs.advanced.prefix_service import forget_prefixes, shared_engine
from twophase_tools.bench.perplexity import prose

NUM_PASSAGES, PASSAGE_CHARACTERS = 8, 240
FACT = "The secret number of the lighthouse is 73914."
QUESTION = "To repeat: The secret number of the lighthouse is"
IN_OTHER_WORDS = "What is the hidden code of the tower on the coast?"
PARAMS = SamplingParams(temperature=0, max_tokens=6)


def passages() -> list[str]:
    """Of a text written for measurements; the fact stands in the third."""
    words, made = prose().split(), [""]
    for word in words:
        if len(made[-1]) > PASSAGE_CHARACTERS:
            made.append("")
        made[-1] += f"{word} "
    made = made[:NUM_PASSAGES]
    made[2] = f"{FACT} {made[2]}"
    return made


def _words(text: str) -> set[str]:
    return {word for word in re.findall("[a-z]+", text.lower()) if len(word) > 3}


def best(library: Sequence[str], question: str) -> int:
    """The passage that has the most words in common with the question."""
    return max(range(len(library)), key=lambda number: len(_words(library[number]) & _words(question)))


def ask(chosen: Sequence[str], question: str) -> tuple[int, float, str]:
    """The prompt's tokens, the seconds to the first token, and the answer; nothing is found in the prefix cache."""
    llm = shared_engine()
    forget_prefixes(llm)
    (output,) = llm.generate("Note this. " + "\n\n".join([*chosen, question]), PARAMS, use_tqdm=False)
    assert output.metrics.ttft_s is not None
    return len(output.prompt_token_ids), output.metrics.ttft_s, output.outputs[0].text.strip()
