"""Fingerprint the embedded model, prove from text alone that it is yours, and trace two copies that were pooled.

python examples/perinucleus-fingerprint.py
"""

from __future__ import annotations

import secrets

from touchstone.language import LanguageModel
from touchstone.language.perinucleus_fingerprint import (
    CollusionAllocation,
    Fingerprinter,
    check_proof,
    generate_fingerprints,
    plan_queries,
    verify,
    verify_sequentially,
)
from touchstone.language.perinucleus_fingerprint.commitment import leaf


def main() -> None:
    model = LanguageModel.load()
    pairs = generate_fingerprints(model, 12, keys="template", secret=secrets.token_bytes(32))
    print(f"published at release: {pairs.root}")
    trainer = Fingerprinter(trainable="mlp:-6", lr=6e-3, decay=False)
    marked = trainer.fit(model, pairs, until_recall=True).model

    for name, target in (("the fingerprinted copy", marked), ("the base model", model)):
        found = verify(target, pairs, queries=10)
        print(f"{name}: {found.hits} of {found.queries} keys, p = {found.p_value_exact:.2g}, owned: {found.owned}")
    quick = verify_sequentially(marked, pairs, recall=0.9)
    print(f"one key after the other: decided after {quick.queries}")
    shown = pairs.reveal(0)
    proof = leaf(shown["key"], shown["responses"], shown["salt"])
    print(f"pair 0 stood in the set when its root was published: {check_proof(proof, shown['proof'], pairs.root)}")

    plan = plan_queries(recall=0.6, alpha=1e-3, power=0.99)
    print(f"if a host's changes leave 60 %: show {plan.queries} keys, claim at {plan.hits}")
    copies = CollusionAllocation([f"host {i}" for i in range(200)], 2048, p=0.243)
    caught = copies.simulate("optimal", 3, trials=100)
    print(f"three hosts pool their copies and answer as cleverly as they can: traced in {caught} of 100 trials")


if __name__ == "__main__":
    main()
