"""`LLM(drafter=...)`: whoever guesses, outputs are those of the model."""

from twophase import LLM, SamplingParams, SpeculativeConfig

PROMPTS = [{"prompt_token_ids": [5, 6, 7, 5, 6]}, {"prompt_token_ids": [9, 3, 9]}]
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


class Constant:
    """Always guesses the same tokens, and notes for whom it was asked."""

    def __init__(self, *tokens):
        self.tokens = list(tokens)
        self.seen, self.forgotten = [], []

    def note_plan(self, plan):
        pass

    def propose(self, requests):
        self.seen += [(request.chunk.seq_id, list(request.token_ids)) for request in requests]
        return [self.tokens[: request.chunk.num_drafts] for request in requests]

    def forget(self, seq_id):
        self.forgotten.append(seq_id)


def tokens_of(llm):
    return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


def test_outputs_do_not_depend_on_the_drafter(tiny_folder):
    options = {"num_kv_blocks": 64, "skip_tokenizer_init": True, "max_trace_steps": None}
    expected = tokens_of(LLM(tiny_folder, **options))
    drafter = Constant(expected[0][3], expected[0][4], 1, 2, 3, 4)
    config = SpeculativeConfig(num_speculative_tokens=3, disable_when_losing=False)
    llm = LLM(tiny_folder, **options, drafter=drafter, speculative_config=config)
    assert tokens_of(llm) == expected
    stats = llm.engine.stats()
    assert 0 < stats.num_accepted_tokens < stats.num_draft_tokens, "some guesses are right, and some are wrong"
    assert max(step.num_draft_tokens for step in llm.engine.trace) == 6, "two sequences, three drafts each"
    assert sorted(drafter.forgotten) == sorted({seq_id for seq_id, _ in drafter.seen})
    texts = [[*prompt["prompt_token_ids"], *answer] for prompt, answer in zip(PROMPTS, expected, strict=True)]
    assert all(any(text[: len(seen)] == seen for text in texts) for _, seen in drafter.seen), "it sees the text so far"


def test_without_a_config_it_gets_the_default_one(tiny_folder):
    llm = LLM(tiny_folder, num_kv_blocks=64, skip_tokenizer_init=True, drafter=Constant(1))
    assert llm.engine.speculator.max_drafts == SpeculativeConfig().num_speculative_tokens
    assert llm.engine.speculator.gate is not None
