"""The mixture of experts by itself: against a loop over tokens, by hand, and what is counted of it."""

import pytest
import torch

from tests.engine.engines import make_engine, prompt_of, run
from tests.model.tiny import load_model, make_folder
from tests.mutation import KillTable, Mutant
from twophase.model.linear import TorchLinear, make_linear
from twophase_features.experts import mixture as experts
from twophase_features.experts.config import ExpertsConfig
from twophase_features.experts.load import ExpertLoad
from twophase_features.experts.weights import GroupedLinear, make_grouped_linear

NUM_EXPERTS, HIDDEN = 5, 12


def token_by_token(x, router, matrices, config):
    """The oracle: fp64, one token after the other, one expert after the other."""
    out = torch.zeros_like(x, dtype=torch.float64)
    for token, row in enumerate(x.double()):
        probs = (router.double() @ row).softmax(dim=0)
        chosen = sorted(range(config.num_experts), key=lambda expert: -float(probs[expert]))
        chosen = chosen[: config.num_experts_per_tok]
        total = sum(probs[expert] for expert in chosen) if config.norm_topk_prob else 1
        for expert in chosen:
            out[token] += probs[expert] / total * (matrices[expert].double() @ row)
    return out


def check_mixing(module=experts, num_tokens=17) -> None:
    for seed, (top_k, is_normed) in enumerate([(1, True), (2, True), (2, False), (5, False)]):
        config = ExpertsConfig(NUM_EXPERTS, top_k, 0, is_normed, (0,))
        torch.manual_seed(seed)
        x, router = torch.randn(num_tokens, HIDDEN), torch.randn(NUM_EXPERTS, HIDDEN)
        matrices = torch.randn(NUM_EXPERTS, HIDDEN, HIDDEN)
        layer = make_grouped_linear(NUM_EXPERTS, lambda number, m=matrices: make_linear(m[number]))
        got = module.mix_experts(x, layer, make_linear(router), config)
        torch.testing.assert_close(got.double(), token_by_token(x, router, matrices, config), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 17, 200])
def test_mixing_is_what_a_loop_over_tokens_does(num_tokens):
    check_mixing(experts, num_tokens)


def check_routing(module=experts) -> None:
    """By hand: softmax of (log 1, log 2, log 5, log 2) is (0.1, 0.2, 0.5, 0.2)."""
    logits = torch.tensor([[1.0, 2.0, 5.0, 2.1]]).log()
    for is_normed, expected in ((False, [5 / 10.1, 2.1 / 10.1]), (True, [5 / 7.1, 2.1 / 7.1])):
        chosen, weights = module.route(logits, ExpertsConfig(4, 2, 8, is_normed, (0,)))
        assert chosen.tolist() == [[2, 3]]
        assert weights.tolist() == [pytest.approx(expected)]
        assert weights.dtype == torch.float32


def test_routing_by_hand():
    check_routing()


def test_the_stacked_product_is_the_same(monkeypatch):
    """What a GPU runs in one launch, played by torch's own CPU version of it; layers without rows included."""
    torch.manual_seed(0)
    stacked = torch.randn(4, 24, 16)
    layers = tuple(TorchLinear(weight, None, is_packed=False) for weight in stacked)
    counts, x = torch.tensor([3, 0, 5, 1]), torch.randn(9, 16)
    torch.testing.assert_close(GroupedLinear(layers, stacked)(x, counts), GroupedLinear(layers, None)(x, counts))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder, _ = make_folder("qwen3-moe-some-dense", tmp_path_factory.mktemp("sparse"), eos_token_id=None)
    return load_model(folder)


def test_the_load_of_experts_is_counted_layer_by_layer_and_step_by_step(model):
    engine = make_engine(model, budget=16, prefix_caching=False)
    with ExpertLoad(model) as load:
        assert load.tokens_per_expert.shape == (0, 1, 6)
        run(engine, [prompt_of(0, 20), prompt_of(1, 3)])
    # Layers 1 and 3 would have experts, but for mlp_only_layers.
    assert model.config.experts.sparse_layers == (1,)
    tokens = torch.tensor([sum(chunk[3] for chunk in step.chunks) for step in engine.trace])
    assert load.tokens_per_expert.shape == (len(engine.trace), 1, 6)
    assert torch.equal(load.tokens_per_expert.sum(dim=(1, 2)), 3 * tokens)
    assert load.num_active_experts.shape == (len(engine.trace), 1)
    assert int(load.num_active_experts.max()) <= 6
    assert int(load.num_active_experts.min()) >= 3
    run(engine, [prompt_of(2, 5)])
    assert len(load.tokens_per_expert) == len(tokens), "it counts only while it is open"


def test_a_step_that_fails_half_way_is_not_counted(tmp_path):
    folder, _ = make_folder("mixtral", tmp_path)
    model = load_model(folder)
    with ExpertLoad(model) as load:
        for layer, tokens in ((0, 9), (0, 1), (1, 2), (0, 3), (1, 4), (0, 9)):
            model.watch_experts(layer, torch.full((4,), tokens))
        assert load.tokens_per_expert[..., 0].tolist() == [[1, 2], [3, 4]]


def test_what_cannot_be_watched_is_said(model, tiny_folder_without_experts):
    with pytest.raises(ValueError, match="LlamaForCausalLM has no experts"):
        ExpertLoad(tiny_folder_without_experts)
    with ExpertLoad(model), pytest.raises(ValueError, match="already open"), ExpertLoad(model):
        pass
    assert model.watch_experts is None


@pytest.fixture
def tiny_folder_without_experts(tmp_path):
    folder, _ = make_folder("llama", tmp_path)
    return load_model(folder)


def check_all(module) -> None:
    check_routing(module)
    check_mixing(module)


@pytest.mark.mutants
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("rows stay sorted", "rows[by_expert] = compute", "rows[:] = compute"),
        ("never normalised", "if config.norm_topk_prob:", "if False:"),
        ("always normalised", "if config.norm_topk_prob:", "if True:"),
        ("weights forgotten", "(choices * weights.unsqueeze(-1))", "choices"),
        ("wrong tokens", "x[by_expert // config.num_experts_per_tok]", "x[by_expert % len(x)]"),
        ("softmax over the chosen", "logits.float().softmax(dim=-1).topk(", "logits.float().sigmoid().topk("),
    ],
)
def test_mutants_are_killed(name, old, new):
    KillTable.record(Mutant(name, "twophase_features.experts.mixture", old, new), check_all)
