"""Linear classifiers for all layers at once: L2 logistic regression by L-BFGS, and the reference's plain SGD.

Every layer, fold and labelling is a problem of its own; all of them share each product with the features, so that the
features are read from memory once for all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from touchstone.errors import InputError
from touchstone.language.threads import limited

__all__ = ["Fit", "SgdFit", "fit_logistic", "fit_sgd"]

_MEMORY = 10
# Up to here a Newton step (cubic in the rows) costs less than the L-BFGS steps that it saves.
_FEW_ROWS = 400
# Numbers held at once while products of rows are taken.
_HELD = 2**25
_SMALL = 2**24
_LINE_STEPS = 20


@dataclass(frozen=True)
class Fit:
    """Linear classifiers, in the space of the features as they were given.

    Attributes
    ----------
    coef : float64 [L, P, d].
    intercept : float64 [L, P].
    iterations : passes of the solver.
    """

    coef: Tensor
    intercept: Tensor
    iterations: int

    def decide(self, x: Tensor) -> Tensor:
        """Discriminants [L, P, n] of features [L, n, d]."""
        return torch.bmm(x.double(), self.coef.transpose(1, 2)).transpose(1, 2) + self.intercept.unsqueeze(-1)


@dataclass(frozen=True)
class SgdFit:
    """Two-output linear classifiers.

    Attributes
    ----------
    weight, start : float32 [L, 2, d], after and before training.
    bias : float32 [L, 2].
    """

    weight: Tensor
    start: Tensor
    bias: Tensor


def fit_logistic(
    x: Tensor, y: Tensor, weight: Tensor | None = None, *, c: float = 1.0, tol: float = 1e-4, most: int = 500
) -> Fit:
    """Minimise c Σ_i s_i log(1 + exp(−t_i f(x_i))) + ‖v‖²/2 for every layer and problem, on standardised features.

    The same objective as scikit-learn's ``LogisticRegression(C=c)`` after ``StandardScaler``, where each problem is
    standardised by the rows that it is trained on. With a few hundred rows and more features than rows, Newton's
    method on the rows' products with each other (the dual form); else L-BFGS on all problems side by side. The
    discriminants are linear in what is sought, so the line search of either is a Newton iteration in one dimension
    that needs no product with the features.

    Parameters
    ----------
    x : features [L, n, d]; products are computed in their type, all else in float64.
    y : classes 0 and 1, [n] or [n, P].
    weight : weight of each row in each problem, [n, P]; 0 leaves a row out. ``None`` means 1.
    c : inverse strength of the penalty.
    tol : a problem is solved when its gradient is below ``tol`` times what it was at the start, or than a hundredth of
        the rows' weight.
    most : most iterations.
    """
    # Products this small gain nothing from a second thread, and on a busy machine it costs them dearly.
    with limited(1 if x.numel() < _SMALL else torch.get_num_threads()):
        middle = x.mean(dim=1, keepdim=True)
        problem = _Problem(x - middle, y.reshape(len(y), -1), weight, c)
        solver = _newton if x.shape[1] <= min(_FEW_ROWS, x.shape[2]) else _lbfgs
        solution, iterations = solver(problem, tol, most)
    coef = solution[..., :-1] * problem.inverse_scale
    intercept = solution[..., -1] - ((problem.centre + middle.double()) * coef).sum(dim=-1)
    return Fit(coef, intercept, iterations)


class _Problem:
    """Features, classes and weights of all problems; a vector is [L, P, d + 1], the intercept last."""

    def __init__(self, x: Tensor, y: Tensor, weight: Tensor | None, c: float) -> None:
        self.x = x
        weight = torch.ones_like(y, dtype=torch.float64) if weight is None else weight.double()
        weight = weight.T.contiguous().to(x.device)
        self.y = y.T.double().to(x.device).expand_as(weight)
        self.weight = c * weight
        # Means and spreads over the rows that each problem is trained on; one layer at a time, to bound memory.
        share = (weight / weight.sum(dim=1, keepdim=True)).to(x.dtype)
        self.centre = torch.stack([share @ layer for layer in x]).double()
        square = torch.stack([share @ layer.square() for layer in x]).double()
        spread = (square - self.centre.square()).clamp(min=0).sqrt()
        # A feature that never varies has nothing to say; dividing by rounding noise would make it shout.
        still = spread <= 1e-6 * square.sqrt()
        self.inverse_scale = torch.where(still, torch.zeros_like(spread), 1 / spread.clamp(min=1e-300))

    def product(self, v: Tensor) -> Tensor:
        """Discriminants [L, P, n] of a vector."""
        w = v[..., :-1] * self.inverse_scale
        offset = v[..., -1:] - (self.centre * w).sum(dim=-1, keepdim=True)
        return torch.bmm(self.x, w.to(self.x.dtype).transpose(1, 2)).transpose(1, 2).double() + offset

    def transposed(self, residual: Tensor) -> Tensor:
        """The adjoint of :meth:`product`."""
        back = torch.bmm(residual.to(self.x.dtype), self.x).double()
        total = residual.sum(dim=-1, keepdim=True)
        return torch.cat([(back - self.centre * total) * self.inverse_scale, total], dim=-1)

    def residual(self, f: Tensor) -> Tensor:
        """Derivative of the loss by the discriminants."""
        return self.weight * (torch.sigmoid(f) - self.y)


def _lbfgs(problem: _Problem, tol: float, most: int) -> tuple[Tensor, int]:
    layers, n, width = problem.x.shape
    shape = (layers, len(problem.weight))
    v = torch.zeros((*shape, width + 1), dtype=torch.float64, device=problem.x.device)
    f = torch.zeros((*shape, n), dtype=torch.float64, device=problem.x.device)
    gradient = problem.transposed(problem.residual(f))
    goal = tol * torch.maximum(gradient.abs().amax(dim=-1, keepdim=True), _floor(problem.weight))
    history: list[tuple[Tensor, Tensor, Tensor]] = []
    for iteration in range(most):
        active = gradient.abs().amax(dim=-1, keepdim=True) > goal
        if not bool(active.any()):
            return v, iteration
        step = -_inverse_hessian(gradient, history) * active
        along = problem.product(step)
        square, cross = _dot(step[..., :-1], step[..., :-1]), _dot(v[..., :-1], step[..., :-1])
        length = _line(problem.weight, problem.y, f, along, square, cross, _dot(gradient, step))
        step *= length
        v += step
        f += length * along
        before, gradient = gradient, problem.transposed(problem.residual(f))
        gradient[..., :-1] += v[..., :-1]
        history.append(_remembered(step, gradient - before))
        del history[:-_MEMORY]
    return v, most


def _floor(weight: Tensor) -> Tensor:
    """A gradient that counts as large, [P, 1]: where both classes look alike it is rounding noise from the start."""
    return 0.01 * weight.sum(dim=-1, keepdim=True)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a, b).unsqueeze(-1)


def _remembered(step: Tensor, change: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A pair of the history; a problem that did not move leaves one that changes nothing."""
    curvature = _dot(step, change)
    return step, change, torch.where(curvature > 1e-300, 1 / curvature.clamp(min=1e-300), torch.zeros_like(curvature))


def _inverse_hessian(gradient: Tensor, history: list[tuple[Tensor, Tensor, Tensor]]) -> Tensor:
    """The two loops of L-BFGS, for all problems at once."""
    q, factors = gradient.clone(), []
    for step, change, rho in reversed(history):
        factor = rho * _dot(step, q)
        q.addcmul_(factor, change, value=-1)
        factors.append(factor)
    if history:
        # A problem that is solved leaves pairs without movement: its scale does not matter any more.
        _, change, rho = history[-1]
        square = _dot(change, change)
        q *= torch.where(rho > 0, 1 / (rho * square).clamp(min=1e-300), torch.ones_like(rho))
    for (step, change, rho), factor in zip(history, reversed(factors), strict=True):
        q.addcmul_(factor - rho * _dot(change, q), step)
    return q


def _line(
    weight: Tensor, y: Tensor, f: Tensor, along: Tensor, square: Tensor, cross: Tensor, slope_at_zero: Tensor
) -> Tensor:
    """The minimum along each problem's step, by Newton's iteration kept inside a bracket; [..., P, 1].

    Parameters
    ----------
    f, along : discriminants, and how they change along the step, [..., P, n].
    square, cross : of the penalty: the step's square, and its product with the vector; [..., P, 1].
    slope_at_zero : derivative of the objective where the line begins.
    """
    t = torch.zeros_like(square)
    low, high = torch.zeros_like(t), torch.full_like(t, math.inf)
    for _ in range(_LINE_STEPS):
        p = torch.sigmoid(f + t * along)
        slope = _dot(weight * (p - y), along) + cross + t * square
        if bool((slope.abs() <= 1e-3 * slope_at_zero.abs()).all()):
            break
        bend = _dot(weight * p * (1 - p), along.square()) + square
        low, high = torch.where(slope < 0, t, low), torch.where(slope < 0, high, t)
        new = t - slope / bend.clamp(min=1e-300)
        middle = torch.where(high.isinf(), 2 * low + 1, (low + high) / 2)
        t = torch.where((new > low) & (new < high), new, torch.where(slope == 0, t, middle))
    return torch.where(slope_at_zero < 0, t, torch.zeros_like(t))


def _newton(problem: _Problem, tol: float, most: int) -> tuple[Tensor, int]:
    """Newton's method in the dual form: a vector is Zᵀa, so the discriminants are K a + b with K = Z Zᵀ."""
    layers, n, width = problem.x.shape
    count = len(problem.weight)
    solution = torch.zeros((layers, count, width + 1), dtype=torch.float64, device=problem.x.device)
    chunk, iterations = max(1, _HELD // (n * width)), 0
    for layer in range(layers):
        for start in range(0, count, chunk):
            part = slice(start, start + chunk)
            centred = problem.x[layer].double() - problem.centre[layer, part].unsqueeze(1)
            z = centred * problem.inverse_scale[layer, part].unsqueeze(1)
            a, b, used = _dual(torch.bmm(z, z.transpose(1, 2)), problem.weight[part], problem.y[part], tol, most)
            solution[layer, part, :-1] = torch.bmm(a.unsqueeze(1), z).squeeze(1)
            solution[layer, part, -1] = b
            iterations = max(iterations, used)
    return solution, iterations


def _dual(kernel: Tensor, weight: Tensor, y: Tensor, tol: float, most: int) -> tuple[Tensor, Tensor, int]:
    """Coefficients [P, n] and intercepts [P] of kernel logistic regression; ``kernel`` is [P, n, n]."""
    a, b, f = torch.zeros_like(weight), torch.zeros_like(weight[:, :1]), torch.zeros_like(weight)
    unit = torch.eye(kernel.shape[1], dtype=kernel.dtype, device=kernel.device)
    # The largest entry of the gradient by the vector would need the features: its length, aᵀKa-wise, does not.
    first = None
    for iteration in range(most):
        p = torch.sigmoid(f)
        residual, bend = weight * (p - y), weight * p * (1 - p)
        off = a + residual
        size = (_dot(off, _times(kernel, off)) + residual.sum(dim=-1, keepdim=True).square()).clamp(min=0).sqrt()
        first = torch.maximum(size, _floor(weight)) if first is None else first
        active = size > tol * first
        if not bool(active.any()):
            return a, b.squeeze(-1), iteration
        both = torch.stack([bend * f - residual, bend], dim=-1)
        solved = torch.linalg.solve(unit + bend.unsqueeze(-1) * kernel, both)
        total = solved.sum(dim=1)
        wanted = total[:, :1] / total[:, 1:].clamp(min=1e-300)
        step = (solved[..., 0] - wanted * solved[..., 1] - a) * active
        change = (wanted - b) * active
        moved = _times(kernel, step)
        along = moved + change
        cross, square = _dot(a, moved), _dot(step, moved)
        length = _line(weight, y, f, along, square, cross, _dot(residual, along) + cross)
        a, b, f = a + length * step, b + length * change, f + length * along
    return a, b.squeeze(-1), most


def _times(kernel: Tensor, a: Tensor) -> Tensor:
    return torch.bmm(kernel, a.unsqueeze(-1)).squeeze(-1)


def fit_sgd(x: Tensor, y: Tensor, *, rate: float = 0.008, batch: int = 128, epochs: int = 300, seed: int = 0) -> SgdFit:
    """The reference's probe for every layer: a linear layer with two outputs, cross-entropy, plain SGD, no weight
    decay.

    Parameters
    ----------
    x : float32 features [L, n, d], used as they are.
    y : classes 0 and 1, [n].
    rate, batch, epochs : learning rate, rows a step and passes; defaults of the official code.
    seed : of PyTorch's default initialisation, the same for every layer, and of the order of rows.
    """
    layers, n, width = x.shape
    if n == 0:
        raise InputError("x: no rows to train on")
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        linear = torch.nn.Linear(width, 2)
    start = linear.weight.detach().to(x.device).expand(layers, -1, -1).contiguous()
    weight = start.clone()
    bias = linear.bias.detach().to(x.device).expand(layers, -1).contiguous().clone()
    target = torch.nn.functional.one_hot(y.long(), 2).to(x.device, x.dtype)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad(), limited(1 if layers * batch * width < _SMALL else torch.get_num_threads()):
        for _ in range(epochs):
            for rows in torch.randperm(n, generator=generator).split(batch):
                part = x[:, rows.to(x.device)]
                logits = torch.baddbmm(bias.unsqueeze(1), part, weight.transpose(1, 2))
                error = (logits.softmax(dim=-1) - target[rows.to(x.device)]).div_(len(rows))
                weight.baddbmm_(error.transpose(1, 2), part, alpha=-rate)
                bias.sub_(error.sum(dim=1), alpha=rate)
    return SgdFit(weight, start, bias)
