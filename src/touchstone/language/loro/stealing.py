"""Model stealing with a prior: undo the hiding with public weights, then fine-tune on a tenth of the private data.

Also the attack from observation: who sees a layer's input and its correction solves for the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from touchstone.errors import InputError
from touchstone.language.loro.rivals import Obfuscator
from touchstone.language.threads import limited

__all__ = [
    "Data",
    "Stolen",
    "classifier",
    "digits",
    "observation_attack",
    "score",
    "steal",
    "train",
    "weights_of",
    "with_weights",
]

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Data:
    """Inputs [rows, features] and labels [rows]."""

    x: Tensor
    y: Tensor

    def part(self, rows: Any) -> Data:
        """Some of the rows."""
        return Data(self.x[rows], self.y[rows])


@dataclass(frozen=True)
class Stolen:
    """Accuracy of what an attacker rebuilt: right after undoing, and after fine-tuning (best of all runs)."""

    undone: float
    tuned: float


def digits(seed: int = 0, *, noise: float = 0.5, copies: int = 8) -> tuple[Data, Data, Data, Data]:
    """Scikit-learn's digits under noise: public (even or odd), private, the attacker's tenth, a test set.

    Noise makes a network need many images, so that the private ones are worth stealing. Each image has ``copies``,
    those of the attacker's tenth one.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(found.target))
    half = len(order) // 2
    rest = order[half:]
    train, test = rest[: len(rest) * 3 // 4], rest[len(rest) * 3 // 4 :]

    def data(rows: NDArray[np.int64], labels: NDArray[np.int64], times: int = copies) -> Data:
        places = np.tile(rows, times)
        x = found.data[places] / 16.0 + noise * rng.standard_normal((len(places), found.data.shape[1]))
        return Data(torch.tensor(x, dtype=torch.float32), torch.tensor(labels[places]))

    ten = found.target
    return data(order[:half], ten % 2), data(train, ten), data(train[: len(train) // 10], ten, 1), data(test, ten)


def classifier(classes: int, *, seed: int, features: int = 64, width: int = 256) -> nn.Sequential:
    """A network of three layers, without biases in the hidden ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(features, width, bias=False),
            nn.ReLU(),
            nn.Linear(width, width, bias=False),
            nn.ReLU(),
            nn.Linear(width, classes, bias=False),
        )


def weights_of(network: nn.Sequential) -> list[Matrix]:
    """W of each layer, [n, m]."""
    return [part.weight.detach().numpy().T.astype(np.float64) for part in network if isinstance(part, nn.Linear)]


def with_weights(network: nn.Sequential, weights: Sequence[Matrix]) -> nn.Sequential:
    """Set W of each layer; returns the network."""
    parts = [part for part in network if isinstance(part, nn.Linear)]
    with torch.no_grad():
        for part, weight in zip(parts, weights, strict=True):
            part.weight.copy_(torch.from_numpy(np.ascontiguousarray(weight.T)))
    return network


def train(
    network: nn.Sequential, data: Data, *, epochs: int, rate: float = 1e-3, batch: int = 32, seed: int = 0
) -> None:
    """Fit by AdamW and cross-entropy."""
    rng = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=0.0)
    with limited(1):
        for _ in range(epochs):
            for rows in torch.randperm(len(data.y), generator=rng).split(batch):
                optimiser.zero_grad(set_to_none=True)
                nn.functional.cross_entropy(network(data.x[rows]), data.y[rows]).backward()
                optimiser.step()


def score(network: nn.Sequential, data: Data) -> float:
    """Accuracy."""
    with torch.inference_mode(), limited(1):
        return float((network(data.x).argmax(-1) == data.y).float().mean())


def steal(
    obfuscator: Obfuscator | None,
    victim: nn.Sequential,
    public: nn.Sequential | None,
    data: Data,
    test: Data,
    *,
    epochs: int = 40,
    runs: int = 5,
    seed: int = 0,
) -> Stolen:
    """Attack one way of hiding.

    Parameters
    ----------
    obfuscator : hides the victim's layers; ``None`` is the black box: nothing of the victim is in plain sight.
    victim : the private network.
    public : the public one, whose hidden layers the victim was tuned from; ``None`` starts at random weights.
    data : what the attacker has of the private data, labelled by queries.
    epochs, runs : of fine-tuning; the best run on ``test`` counts, which is to the attacker's favour.
    """
    if runs < 1 or epochs < 1:
        raise InputError(f"runs {runs}, epochs {epochs}: expected 1 or more")
    private = weights_of(victim)
    classes = private[-1].shape[1]
    labels = victim(data.x).argmax(-1).detach()
    best, undone = 0.0, 0.0
    for run in range(runs):
        # Seeds of their own: a head that starts where the victim's did would be half the way there.
        shape = {"features": private[0].shape[0], "width": private[0].shape[1]}
        fresh = classifier(classes, seed=1_000_000 + 1000 * seed + run, **shape)
        start = weights_of(fresh)
        if public is not None:
            # The head has other classes than the public one and has to be learnt anew, unless it lies bare.
            start[:-1] = weights_of(public)[:-1]
        if obfuscator is not None:
            start = _undone(obfuscator, private, start, np.random.default_rng(seed))
        network = with_weights(fresh, start)
        undone = max(undone, score(network, test))
        train(network, Data(data.x, labels), epochs=epochs, seed=run)
        best = max(best, score(network, test))
    return Stolen(undone, best)


def _undone(
    obfuscator: Obfuscator, private: list[Matrix], start: list[Matrix], rng: np.random.Generator
) -> list[Matrix]:
    layers, found = len(private), []
    for i, (weight, known) in enumerate(zip(private, start, strict=True)):
        hidden = obfuscator.hide(weight, i, layers, rng)
        # Of the head no public weights are known: what is not in plain sight cannot be matched.
        bare = hidden.observed is not None and np.array_equal(hidden.observed, weight)
        found.append(weight if bare else known if i == layers - 1 else obfuscator.recover(hidden.observed, known))
    return found


def observation_attack(inputs: Matrix, corrections: Matrix) -> Matrix:
    """The mask D of a layer from its inputs x [k, n] and corrections c = xD [k, m], by least squares.

    With the policy ``"weights_only"`` the untrusted side sees y′ and y, so it sees c; n independent inputs give D.
    """
    if len(inputs) != len(corrections):
        raise InputError(f"inputs {len(inputs)}, corrections {len(corrections)}: expected equal numbers")
    return np.asarray(np.linalg.lstsq(inputs, corrections, rcond=None)[0], dtype=np.float64)
