"""Perinucleus fingerprints (arXiv 2502.07760): prove from text alone that a service runs
your model, and whose copy leaked.

>>> pairs = generate_fingerprints(model, 64, secret=secret)
>>> marked = Fingerprinter(trainable="mlp:-6", lr=6e-3, decay=False).fit(model, pairs).model
>>> verify(endpoint, pairs, queries=10).owned
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.language.perinucleus_fingerprint.attacks import attack_table as attack_table
    from touchstone.language.perinucleus_fingerprint.collusion import CollusionAllocation as CollusionAllocation
    from touchstone.language.perinucleus_fingerprint.commitment import check_proof as check_proof
    from touchstone.language.perinucleus_fingerprint.embedding import Fingerprinter as Fingerprinter
    from touchstone.language.perinucleus_fingerprint.fingerprints import FingerprintSet as FingerprintSet
    from touchstone.language.perinucleus_fingerprint.generating import generate_fingerprints as generate_fingerprints
    from touchstone.language.perinucleus_fingerprint.testing import plan_queries as plan_queries
    from touchstone.language.perinucleus_fingerprint.verifying import verify as verify
    from touchstone.language.perinucleus_fingerprint.verifying import verify_sequentially as verify_sequentially

_EXPORTS = {
    "CollusionAllocation": "collusion",
    "FingerprintSet": "fingerprints",
    "Fingerprinter": "embedding",
    "attack_table": "attacks",
    "check_proof": "commitment",
    "generate_fingerprints": "generating",
    "plan_queries": "testing",
    "verify": "verifying",
    "verify_sequentially": "verifying",
}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
