"""Earlier ways to hide weights, and what undoes each for an attacker who has public weights of the same shapes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from touchstone.errors import InputError
from touchstone.language.loro.factors import Pool
from touchstone.language.loro.hadamard import HadamardMask
from touchstone.language.loro.spectrum import spectral_attack

__all__ = [
    "FullTEE",
    "Hadamard",
    "Hidden",
    "LoRO",
    "NoProtection",
    "Obfuscator",
    "PartialTEE",
    "Permutation",
    "ScalarNoise",
    "ShadowNet",
    "SparseAdditive",
    "rivals",
]

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Hidden:
    """One layer, hidden: what the untrusted side has (``None`` if nothing), and the secret."""

    observed: Matrix | None
    secret: Any


class Obfuscator(Protocol):
    """Hides one layer's W [n, m], computes with it, and is attacked."""

    @property
    def name(self) -> str: ...

    def hide(self, weight: Matrix, layer: int, layers: int, rng: np.random.Generator) -> Hidden: ...

    def output(self, x: Matrix, hidden: Hidden) -> Matrix:
        """xW from both sides together."""

    def recover(self, observed: Matrix | None, public: Matrix) -> Matrix:
        """The attacker's best guess of W from what is in plain sight and the public weights."""


class NoProtection:
    """W in plain sight."""

    name = "no protection"

    def hide(self, weight: Matrix, layer: int, layers: int, rng: np.random.Generator) -> Hidden:
        return Hidden(weight.copy(), None)

    def output(self, x: Matrix, hidden: Hidden) -> Matrix:
        assert hidden.observed is not None
        return x @ hidden.observed

    def recover(self, observed: Matrix | None, public: Matrix) -> Matrix:
        return public if observed is None else observed


class FullTEE(NoProtection):
    """Every product inside the enclave (MLCapsule)."""

    name = "all inside"

    def hide(self, weight: Matrix, layer: int, layers: int, rng: np.random.Generator) -> Hidden:
        return Hidden(None, weight.copy())

    def output(self, x: Matrix, hidden: Hidden) -> Matrix:
        weight = hidden.observed if hidden.secret is None else hidden.secret
        return np.asarray(x @ np.asarray(weight), dtype=np.float64)


class PartialTEE(FullTEE):
    """Some layers inside the enclave: the last ones (DarkneTz) or the first ones (Serdab)."""

    def __init__(self, count: int = 1, *, last: bool = True) -> None:
        if count < 1:
            raise InputError(f"count {count}: expected 1 or more")
        self.count, self.last = count, last
        self.name = f"{'last' if last else 'first'} layer inside"

    def hide(self, weight: Matrix, layer: int, layers: int, rng: np.random.Generator) -> Hidden:
        inside = layer >= layers - self.count if self.last else layer < self.count
        return Hidden(None, weight.copy()) if inside else Hidden(weight.copy(), None)


class SparseAdditive:
    """Noise on the largest weights, their true values inside (Magnitude, NNSplitter)."""

    name = "sparse noise"

    def __init__(self, share: float = 0.01, strength: float = 5.0) -> None:
        self.share, self.strength = share, strength

    def hide(self, weight: Matrix, layer: int, layers: int, rng: np.random.Generator) -> Hidden:
        count = max(1, round(self.share * weight.size))
        places = np.argpartition(np.abs(weight).ravel(), -count)[-count:]
        noise = np.zeros(weight.size)
        noise[places] = self.strength * weight.std() * rng.standard_normal(count)
        mask = noise.reshape(weight.shape)
        return Hidden(weight + mask, mask)

    def output(self, x: Matrix, hidden: Hidden) -> Matrix:
        assert hidden.observed is not None
        found: Matrix = x @ hidden.observed - x @ hidden.secret
        return found

    def recover(self, observed: Matrix | None, public: Matrix) -> Matrix:
        """Entries that differ from the public ones by more than six robust deviations are put back."""
        assert observed is not None
        gap = observed - public
        middle = np.median(gap)
        far = np.abs(gap - middle) > 6 * 1.4826 * np.median(np.abs(gap - middle))
        return np.where(far, public, observed)


class ScalarNoise:
    """A secret factor a layer (SOTER)."""

    name = "scalar"

    def hide(self, weight: Matrix, layer: int, layers: int, rng: np.random.Generator) -> Hidden:
        factor = float(rng.uniform(0.5, 2.0))
        return Hidden(factor * weight, factor)

    def output(self, x: Matrix, hidden: Hidden) -> Matrix:
        assert hidden.observed is not None
        found: Matrix = (x @ hidden.observed) / hidden.secret
        return found

    def recover(self, observed: Matrix | None, public: Matrix) -> Matrix:
        """Divide by the projection on the public weights."""
        assert observed is not None
        return observed / self.factor(observed, public)

    @staticmethod
    def factor(observed: Matrix, public: Matrix) -> float:
        """The attacker's estimate of the secret."""
        return float((observed * public).sum() / (public * public).sum())


class Permutation:
    """Secret orders of inputs and outputs (TLG, TransLinkGuard)."""

    name = "permutation"

    def hide(self, weight: Matrix, layer: int, layers: int, rng: np.random.Generator) -> Hidden:
        rows, columns = rng.permutation(weight.shape[0]), rng.permutation(weight.shape[1])
        return Hidden(weight[np.ix_(rows, columns)], (rows, columns))

    def output(self, x: Matrix, hidden: Hidden) -> Matrix:
        assert hidden.observed is not None
        rows, columns = hidden.secret
        found = np.empty((len(x), hidden.observed.shape[1]))
        found[:, columns] = x[:, rows] @ hidden.observed
        return found

    def recover(self, observed: Matrix | None, public: Matrix) -> Matrix:
        """Undo the orders that match the public weights best."""
        assert observed is not None
        rows, columns = self.orders(observed, public)
        found = observed[np.ix_(rows, columns)]
        # Orders that match badly are wrong ones: the public weights are the better guess then.
        return found if np.corrcoef(found.ravel(), public.ravel())[0, 1] > 0.5 else public

    @staticmethod
    def orders(observed: Matrix, public: Matrix) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each row and column of the public weights is in the observed ones (Jonker and Volgenant).

        No order of columns changes a row's sorted entries or the size of its part in a singular vector: rows are first
        matched by both (Umeyama 1988), then columns and rows in turn, and the better of the two starts is kept.
        """
        starts = [
            _matched(np.sort(public, axis=1), np.sort(observed, axis=1)),
            _matched(_parts(public), _parts(observed)),
        ]
        found = [Permutation._refined(observed, public, rows) for rows in starts]
        return max(found, key=lambda orders: float((observed[np.ix_(*orders)] * public).sum()))

    @staticmethod
    def _refined(
        observed: Matrix, public: Matrix, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        columns = _matched(public.T, observed[rows].T)
        for _ in range(20):
            before = rows
            rows = _matched(public, observed[:, columns])
            columns = _matched(public.T, observed[rows].T)
            if np.array_equal(before, rows):
                break
        return rows, columns


def _parts(weight: Matrix) -> Matrix:
    """Sizes of each row's parts in the singular vectors, the strong ones counting more."""
    u, s, _ = np.linalg.svd(weight, full_matrices=False)
    found: Matrix = np.abs(u) * s
    return found


class ShadowNet:
    """Columns scaled, shuffled, and mixed with random ones (ShadowNet)."""

    name = "ShadowNet"

    def __init__(self, extra: float = 0.2) -> None:
        self.extra = extra

    def hide(self, weight: Matrix, layer: int, layers: int, rng: np.random.Generator) -> Hidden:
        n, m = weight.shape
        scale = rng.uniform(0.5, 2.0, m)
        padding = weight.std() * rng.standard_normal((n, max(1, round(self.extra * m))))
        order = rng.permutation(m + padding.shape[1])
        return Hidden(np.concatenate([weight * scale, padding], axis=1)[:, order], (order, scale))

    def output(self, x: Matrix, hidden: Hidden) -> Matrix:
        assert hidden.observed is not None
        order, scale = hidden.secret
        found = np.empty((len(x), len(order)))
        found[:, order] = x @ hidden.observed
        return found[:, : len(scale)] / scale

    def recover(self, observed: Matrix | None, public: Matrix) -> Matrix:
        """Match columns by the size of their cosine, then scale each by least squares."""
        assert observed is not None
        columns = _matched(public.T, observed.T, signless=True)
        taken = observed[:, columns]
        scale = (taken * public).sum(axis=0) / (public * public).sum(axis=0)
        return taken / np.where(np.abs(scale) > 1e-9, scale, 1.0)


class LoRO:
    """A mask of low rank; of its own for each layer, or combined from a pool that layers share.

    Parameters
    ----------
    rank : of the mask, or of a pair of factors in the pool.
    shared : whether factors are shared.
    spectral : whether the attacker takes the mask's rank away.
    """

    def __init__(self, rank: int = 24, *, shared: bool = True, spectral: bool = False) -> None:
        self.rank, self.shared, self.spectral = rank, shared, spectral
        self.name = f"LoRO{'' if shared else ', own factors'}{', attacked by rank' if spectral else ''}"
        self._pools: dict[tuple[int, int], Pool] = {}
        self._key: bytes | None = None

    def hide(self, weight: Matrix, layer: int, layers: int, rng: np.random.Generator) -> Hidden:
        n, m = weight.shape
        rank = min(self.rank, n, m)
        if self.shared:
            self._key = self._key or rng.bytes(32)
            pool = Pool(self._key, [n], [m], rank=rank)
        else:
            pool = Pool(rng.bytes(32), [n], [m], rank=rank, size=1, terms=1)
        plain = pool.spread(n, m, pool.choice(str(layer)))
        mask = pool.mask(n, m, pool.choice(str(layer), weight.std() / plain)).astype(np.float64)
        return Hidden(weight + mask, mask)

    def output(self, x: Matrix, hidden: Hidden) -> Matrix:
        assert hidden.observed is not None
        found: Matrix = x @ hidden.observed - x @ hidden.secret
        return found

    def recover(self, observed: Matrix | None, public: Matrix) -> Matrix:
        """Public weights, or what is left of the difference to them without its leading rank."""
        assert observed is not None
        if not self.spectral:
            return public
        # How masks are made is no secret, so that their rank is known.
        known = 2 * self.rank if self.shared else self.rank
        return spectral_attack(observed, public, min(known, *observed.shape))[0]


class Hadamard(LoRO):
    """A mask of full rank from signs and fast transforms; the attacker tries the rank all the same."""

    def __init__(self, *, spectral: bool = True) -> None:
        super().__init__(spectral=spectral)
        self.name = f"Hadamard{', attacked by rank' if spectral else ''}"

    def hide(self, weight: Matrix, layer: int, layers: int, rng: np.random.Generator) -> Hidden:
        n, m = weight.shape
        mask = HadamardMask(rng.bytes(32), str(layer), n, m, scale=float(weight.std())).matrix()
        return Hidden(weight + mask, mask)


def rivals(rank: int = 24) -> list[Obfuscator]:
    """Every way to hide, earlier ones first."""
    return [
        NoProtection(),
        PartialTEE(last=True),
        PartialTEE(last=False),
        SparseAdditive(),
        ScalarNoise(),
        Permutation(),
        ShadowNet(),
        LoRO(rank, shared=False),
        LoRO(rank),
        LoRO(rank, spectral=True),
        Hadamard(),
        FullTEE(),
    ]


def _matched(wanted: Matrix, there: Matrix, *, signless: bool = False) -> NDArray[np.int64]:
    """For each row of ``wanted`` the row of ``there`` that is most like it, each taken once."""
    a, b = (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12) for rows in (wanted, there))
    likeness = a @ b.T
    _, columns = linear_sum_assignment(-np.abs(likeness) if signless else -likeness)
    return np.asarray(columns, dtype=np.int64)
