"""What sections 4 to 6 of lab 6 are made of: smoothing, the model as it was afterwards, errors."""

import pytest
import torch

from twophase_labs.compression import calibrated, changed_model, int8_model
from twophase_labs.machine.lab import Workbook
from twophase_labs.machine.solved import run_reference


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


def test_the_example_on_the_card_of_int8_linear():
    codes = torch.tensor([[100, -50]], dtype=torch.int8)
    int8_linear = run_reference(Workbook.find().lab("06"))["int8_linear"]
    assert int8_linear(torch.tensor([[1.27, 0.2]]), codes, torch.tensor([0.5])).item() == pytest.approx(58.5)
