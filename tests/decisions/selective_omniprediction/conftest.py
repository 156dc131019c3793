"""A table of predictions with a group whose scores are wrong."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest


@pytest.fixture(scope="session")
def scored() -> pd.DataFrame:
    """4,000 cases: scores are right but in one region, where they are 0.25 too low."""
    rng = np.random.default_rng(0)
    n = 4000
    strength, region = rng.normal(size=n), rng.choice(["north", "south", "west"], n, p=[0.5, 0.3, 0.2])
    p = 1 / (1 + np.exp(-1.5 * strength))
    truth = np.where(region == "west", np.clip(p + 0.25, 0, 1), p)
    return pd.DataFrame(
        {
            "label": np.where(rng.random(n) < truth, "paid", "default"),
            "score": p,
            "strength": strength,
            "kind": rng.choice(["a", "b"], n),
            "region": region,
        }
    )
