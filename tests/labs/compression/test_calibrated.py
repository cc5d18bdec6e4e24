"""What sections 4 to 6 of lab 6 are made of: the examples, the model as it was afterwards, errors and pictures."""

import doctest

import matplotlib.pyplot as plt
import pytest
import torch

from twophase_labs.compression import calibrated, calibrated_pictures, changed_model, int8_model
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference


@pytest.fixture(scope="module")
def solved():
    return run_reference(Workbook.find().lab("06"))


@pytest.mark.parametrize("name", ["awq", "gptq"])
def test_examples_hold(solved, name):
    examples = doctest.DocTestParser().get_doctest(solved[name].__doc__, dict(solved), name, None, None)
    told: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(examples, out=told.append)
    assert result.attempted >= 2
    assert result.failed == 0, "".join(told)


def test_the_example_on_the_card_of_int8_linear(solved):
    codes = torch.tensor([[100, -50]], dtype=torch.int8)
    got = solved["int8_linear"](torch.tensor([[1.27, 0.2]]), codes, torch.tensor([0.5]))
    assert got.item() == pytest.approx(58.5)


def test_smoothing_has_the_factors_of_the_formula_and_leaves_unused_inputs_alone():
    weights = [torch.tensor([[1.0, 4.0, 0.0, 2.0]]), torch.tensor([[-0.5, 1.0, 0.0, -3.0]])]
    norm, x_max = torch.tensor([1.0, 1.0, 5.0, 5.0]), torch.tensor([9.0, 4.0, 7.0, 0.0])
    new_norm, new_weights = int8_model.smooth(norm, weights, x_max, 0.5)  # factors 3, 1, 1, 1
    torch.testing.assert_close(new_norm, torch.tensor([1 / 3, 1, 5, 5]))
    torch.testing.assert_close(new_weights[0], torch.tensor([[3.0, 4.0, 0.0, 2.0]]))
    torch.testing.assert_close(new_weights[1], torch.tensor([[-1.5, 1.0, 0.0, -3.0]]))


def test_smoothing_leaves_the_logits_and_afterwards_the_model_as_they_were():
    model, _ = changed_model.smollm2()
    norms = [layer.input_layernorm.weight.data.clone() for layer in model.model.layers]
    assert int8_model.largest_change(0.5) < 1e-4
    assert all(
        torch.equal(layer.input_layernorm.weight, old) for layer, old in zip(model.model.layers, norms, strict=True)
    )


def test_own_linear_leaves_the_model_as_it_was():
    def fails(x, codes, scales):
        raise RuntimeError("as a learner's function may")

    with pytest.raises(RuntimeError, match="learner"):
        int8_model.own_linear(fails)
    assert not any("forward" in vars(module) for module in changed_model.linears().values())


def test_one_scale_rounds_and_clamps():
    got = int8_model.with_one_scale(torch.tensor([1.27, 0.004, 0.006, -5.0]), largest=1.27)
    assert got.tolist() == pytest.approx([1.27, 0.0, 0.01, -1.27])


def test_the_first_token_has_a_scale_of_its_own(monkeypatch):
    """Recorded: 100 at the first token, 1 elsewhere. With one scale for all, half of a step is 0.39."""
    given = torch.tensor([[100.0, 50.0], [1.0, 0.3], [0.2, -1.0]])
    monkeypatch.setattr(int8_model, "recorded_inputs", lambda: {"0.mlp.up_proj": given})
    seen = []

    def perplexity(weight=None, x=None):
        if x is not None:
            seen.append(x("0.mlp.up_proj", given[None]))
        return 1.0

    monkeypatch.setattr(int8_model, "perplexity", perplexity)
    int8_model.one_scale_but_first_token()
    torch.testing.assert_close(seen[0], given[None], rtol=0, atol=0.5 * 100 / 127)
    torch.testing.assert_close(seen[0][:, 1:], given[None, 1:], rtol=0, atol=0.5 / 127)


@pytest.mark.parametrize(("num_tokens", "damping"), [(30, 0.01), (5, 0.01), (30, 0.2)])
def test_the_factor_of_the_inverse_is_upper_triangular_and_multiplies_to_it(num_tokens, damping):
    x = torch.randn(num_tokens, 8, generator=torch.Generator().manual_seed(0))
    upper = calibrated.inverse_factor(x, damping).double()
    hessian = x.double().T @ x.double()
    hessian.diagonal().add_(damping * hessian.trace() / 8)
    assert torch.equal(upper, upper.triu())
    torch.testing.assert_close(upper.T @ upper @ hessian, torch.eye(8).double(), rtol=0, atol=1e-4)


def test_the_error_of_an_output_is_relative():
    name = "3.self_attn.k_proj"
    x = torch.randn(5, 576, generator=torch.Generator().manual_seed(0))
    weight = changed_model.weight_of(name)
    assert calibrated.relative_error(weight, name, x) == 0
    assert calibrated.relative_error(0.9 * weight, name, x) == pytest.approx(0.1, rel=1e-4)


def test_factors_are_counted_by_kind():
    factors = {
        (0, "down"): torch.ones(3),
        (1, "down"): torch.tensor([2.0, 0.5]),
        (1, "qkv"): torch.ones(2),
    }
    assert calibrated.by_kind(factors) == {"down": (1, 4.0), "qkv": (0, 1.0)}


def test_pictures_show_what_they_are_given():
    (axes,) = calibrated_pictures.draw_kept_columns(
        "15.self_attn.v_proj", (0.0, 0.1), {"at random": [0.2, 0.1], "weights": [0.2, 0.2], "inputs": [0.2, 0.05]}
    ).axes
    assert axes.get_title(loc="left").startswith("Layer 15, v_proj")
    assert [list(line.get_ydata()) for line in axes.lines] == [[20, 10], [20, 20], [20, 5]]
    figure = calibrated_pictures.draw_errors(
        (64, 128), {"15.mlp.up_proj": ((0.1, 0.2), (0.4, 0.3))}, {"15.mlp.up_proj": 0.5}
    )
    lines = {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}
    assert lines["GPTQ, fresh text"] == [40, 30]
    assert lines["GPTQ, calibration text"] == [10, 20]
    assert lines["nearest, fresh text"] == [50, 50]
    plt.close(figure)
