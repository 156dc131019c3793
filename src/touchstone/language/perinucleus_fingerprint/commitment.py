"""Merkle commitments: publish one hash at release, later reveal a pair with a proof that it was among them."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence

from touchstone.errors import InputError

__all__ = ["check_proof", "leaf", "merkle_proof", "merkle_root"]


def leaf(key: str, responses: Sequence[str], salt: str) -> str:
    """Hash of one pair. The salt keeps the others of a revealed pair's neighbours from being guessed."""
    text = json.dumps([key, list(responses), salt], ensure_ascii=False)
    # The first byte keeps a leaf from being passed off as an inner node.
    return hashlib.sha256(b"\0" + text.encode()).hexdigest()


def _node(left: str, right: str) -> str:
    return hashlib.sha256(b"\1" + bytes.fromhex(left) + bytes.fromhex(right)).hexdigest()


def _levels(leaves: Sequence[str]) -> list[list[str]]:
    if not leaves:
        raise InputError("leaves: expected at least one")
    levels = [list(leaves)]
    while len(levels[-1]) > 1:
        row = levels[-1]
        paired = [_node(row[i], row[i + 1]) for i in range(0, len(row) - 1, 2)]
        # An odd one out moves up as it is: doubling it would let two sets share a root.
        levels.append(paired + ([row[-1]] if len(row) % 2 else []))
    return levels


def merkle_root(leaves: Sequence[str]) -> str:
    """Root of the tree over ``leaves``."""
    return _levels(leaves)[-1][0]


def merkle_proof(leaves: Sequence[str], index: int) -> list[tuple[str, str]]:
    """Siblings from leaf ``index`` to the root, each with its side."""
    if not 0 <= index < len(leaves):
        raise InputError(f"index {index}: expected 0 to {len(leaves) - 1}")
    proof = []
    for row in _levels(leaves)[:-1]:
        other = index ^ 1
        if other < len(row):
            proof.append(("left" if other < index else "right", row[other]))
        index //= 2
    return proof


def check_proof(found: str, proof: Sequence[tuple[str, str]], root: str) -> bool:
    """Whether ``found`` is a leaf under ``root``."""
    for side, other in proof:
        found = _node(other, found) if side == "left" else _node(found, other)
    return hmac.compare_digest(found, root)
