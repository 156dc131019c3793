"""What a query costs: calls, options, tokens, or a person's minutes."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from touchstone.errors import InputError

__all__ = ["Costs", "Expected"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Costs:
    """Prices, all in one unit.

    Attributes
    ----------
    primary : of scoring a query with the Primary; 1 by default, so that other prices are multiples of it.
    guardian : of one call of the Guardian; 20 by default. For a person: minutes a query times the price of a minute.
    per_option : of each option that the Guardian looks at, on top of the call.
    primary_token, guardian_token : of each token: of the options, where their lengths are given, or as servers count.
    guardian_minute : of a person's minute, where the time that an answer took is known.
    unit : name of the unit, for reports.
    """

    primary: float = 1.0
    guardian: float = 20.0
    per_option: float = 0.0
    primary_token: float = 0.0
    guardian_token: float = 0.0
    guardian_minute: float = 0.0
    unit: str = ""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "unit" and not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
                raise InputError(f"costs: {name} is {value!r}; expected a price of at least 0")

    @classmethod
    def of(cls, costs: Costs | tuple[float, float]) -> Costs:
        """Prices from a pair (Primary, Guardian), or as they are."""
        if isinstance(costs, Costs):
            return costs
        if len(costs) != 2:
            raise InputError(f"costs: expected a pair (Primary, Guardian) or Costs, got {costs!r}")
        return cls(float(costs[0]), float(costs[1]))

    def first(self, count: int, tokens: Floats | None = None) -> Floats:
        """The Primary's price of each of ``count`` queries, [queries]; ``tokens`` [queries, options]."""
        base = np.full(count, self.primary)
        return base if tokens is None else base + self.primary_token * tokens.sum(axis=1)

    def second(self, shown: NDArray[np.bool_], tokens: Floats | None = None) -> Floats:
        """The Guardian's price of each query, were it asked about the options ``shown`` [queries, options]."""
        price = self.guardian + self.per_option * shown.sum(axis=1)
        return price if tokens is None else price + self.guardian_token * (tokens * shown).sum(axis=1)


@dataclass(frozen=True)
class Expected:
    """What queries will cost, known before any call of the Guardian.

    Attributes
    ----------
    cost : mean a query.
    calls : share of queries for which the Guardian is called.
    candidates : mean number of candidates of those; NaN if there are none.
    """

    cost: float
    calls: float
    candidates: float
