"""Classifiers: against scikit-learn, against a plain loop, and by what their gradients imply."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from touchstone.language.test_awareness.linear import fit_logistic, fit_sgd


def data(layers: int, n: int, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(layers, n, width)) * rng.uniform(0.1, 10, size=width) + 5 * rng.normal(size=width)
    y = (x[0, :, 1] - x[0, :, 1].mean() + x[0, :, 1].std() * rng.normal(size=n) > 0).astype(int)
    return x, y


# More rows than features goes through L-BFGS, fewer through Newton's method.
@pytest.mark.parametrize(("n", "width", "c"), [(90, 6, 1.0), (60, 150, 1.0), (60, 150, 0.05), (450, 500, 1.0)])
def test_it_is_scikit_learns_logistic_regression(n: int, width: int, c: float) -> None:
    x, y = data(2, n, width)
    x[:, :, 0] = 3.0
    weight = np.ones((n, 3))
    weight[: n // 4, 1] = 0
    weight[n // 2 :, 2] = 0
    fit = fit_logistic(torch.from_numpy(x), torch.from_numpy(y), torch.from_numpy(weight), c=c, tol=1e-8)
    decided = fit.decide(torch.from_numpy(x)).numpy()
    for layer in range(2):
        for p in range(3):
            used = weight[:, p] > 0
            model = make_pipeline(StandardScaler(), LogisticRegression(C=c, tol=1e-10, max_iter=10_000))
            expected = model.fit(x[layer][used], y[used]).decision_function(x[layer])
            assert decided[layer, p] == pytest.approx(expected, abs=2e-3)
    assert fit.coef.shape == (2, 3, width)
    assert np.all(fit.coef.numpy()[..., 0] == 0)  # a feature that never varies


def test_a_row_without_weight_has_no_say() -> None:
    x, y = data(1, 40, 8)
    weight = np.ones((40, 1))
    weight[30:] = 0
    changed = x.copy()
    changed[:, 30:] = 1e3
    first, second = (
        fit_logistic(torch.from_numpy(a), torch.from_numpy(y), torch.from_numpy(weight), tol=1e-9).coef
        for a in (x, changed)
    )
    assert torch.allclose(first, second, atol=1e-5)


def test_both_solvers_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    from touchstone.language.test_awareness import linear

    x, y = data(2, 50, 80)
    arguments = (torch.from_numpy(x), torch.from_numpy(y))
    newton = fit_logistic(*arguments, tol=1e-9)
    monkeypatch.setattr(linear, "_FEW_ROWS", 0)
    lbfgs = fit_logistic(*arguments, tol=1e-9)
    assert torch.allclose(newton.coef, lbfgs.coef, atol=1e-6)
    assert torch.allclose(newton.intercept, lbfgs.intercept, atol=1e-4)


def test_separable_classes_are_separated_in_float32() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1, 200, 3)).astype(np.float32)
    y = (x[0, :, 0] > 0).astype(int)
    fit = fit_logistic(torch.from_numpy(x), torch.from_numpy(y), c=100.0)
    assert ((fit.decide(torch.from_numpy(x)).numpy()[0, 0] > 0) == y).mean() > 0.98


def test_sgd_reaches_one_on_separable_data_and_keeps_the_sum_of_its_rows() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=300)
    x = (0.5 * rng.normal(size=(2, 300, 2)) + (4 * y - 2)[None, :, None]).astype(np.float32)
    fit = fit_sgd(torch.from_numpy(x), torch.from_numpy(y))
    logits = torch.baddbmm(fit.bias.unsqueeze(1), torch.from_numpy(x), fit.weight.transpose(1, 2))
    assert (logits.argmax(-1).numpy() == y).mean(axis=1).tolist() == [1.0, 1.0]
    # Cross-entropy pulls on the rows with opposite forces, and there is no decay.
    assert torch.allclose(fit.weight.sum(dim=1), fit.start.sum(dim=1), atol=1e-5)
    assert not torch.allclose(fit.weight, fit.start, atol=1e-2)


def test_sgd_is_the_loop_that_it_stands_for() -> None:
    rng = np.random.default_rng(2)
    x, y = torch.from_numpy(rng.normal(size=(3, 50, 7)).astype(np.float32)), torch.from_numpy(rng.integers(2, size=50))
    fit = fit_sgd(x, y, epochs=5, batch=16, seed=4)
    for layer in range(3):
        torch.manual_seed(4)
        linear = torch.nn.Linear(7, 2)
        optimiser = torch.optim.SGD(linear.parameters(), lr=0.008)
        order = torch.Generator().manual_seed(4)
        for _ in range(5):
            for rows in torch.randperm(50, generator=order).split(16):
                optimiser.zero_grad()
                torch.nn.functional.cross_entropy(linear(x[layer, rows]), y[rows]).backward()
                optimiser.step()
        assert torch.allclose(fit.weight[layer], linear.weight, atol=1e-5)
        assert torch.allclose(fit.bias[layer], linear.bias, atol=1e-5)


def test_sgd_leaves_the_callers_generator_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    fit_sgd(torch.zeros((1, 4, 2)), torch.tensor([0, 1, 0, 1]), epochs=1)
    assert torch.equal(torch.rand(2), expected)
