"""A set of fingerprints as it is kept: pairs of a key and its response, what they were drawn with, which are spent."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from touchstone.errors import InputError
from touchstone.files import read_text, write_text
from touchstone.language.perinucleus_fingerprint.commitment import leaf, merkle_proof, merkle_root

__all__ = ["SCHEMA", "Fingerprint", "FingerprintSet"]

SCHEMA = "touchstone.fingerprints/1"


@dataclass(frozen=True)
class Fingerprint:
    """One key with its responses.

    Attributes
    ----------
    key, key_ids : text of the key and its token ids.
    responses, response_ids : texts, stripped, and token ids; any of them is a hit.
    probability : of the first response's first token after the key, by the base model.
    rank : of that token, 0 for the likeliest.
    salt : hides the pair in its commitment.
    """

    key: str
    key_ids: tuple[int, ...]
    responses: tuple[str, ...]
    response_ids: tuple[tuple[int, ...], ...]
    probability: float
    rank: int
    salt: str = field(default_factory=lambda: secrets.token_hex(16))

    def hit_by(self, reply: str) -> bool:
        """Whether a reply begins with a response; white space in front does not count."""
        return reply.lstrip().startswith(self.responses)

    @property
    def leaf(self) -> str:
        """Its hash in the tree of commitments."""
        return leaf(self.key, self.responses, self.salt)


@dataclass(frozen=True)
class FingerprintSet:
    """Fingerprints of one model, and the ledger of those that were shown.

    Attributes
    ----------
    pairs : the fingerprints.
    scheme, t, k, n_responses, chat : what they were drawn with; with ``chat`` a key is a user's message.
    model : source of the base model.
    secret_hash : SHA-256 of the secret of the draw, empty for a seeded draw. The secret itself is never written.
    used : indices of keys that were shown to somebody, in that order.
    """

    pairs: tuple[Fingerprint, ...]
    scheme: str = "perinucleus"
    t: float = 0.8
    k: int = 3
    n_responses: int = 1
    chat: bool = False
    model: str = ""
    secret_hash: str = ""
    used: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    def chance(self) -> float:
        """Most that an unrelated model hits a key with, given that the draw is secret; 1 where nothing bounds it."""
        return self.n_responses / self.k if self.scheme == "perinucleus" else 1.0

    @property
    def response_length(self) -> int:
        """Most tokens of a response."""
        return max(len(ids) for pair in self.pairs for ids in pair.response_ids)

    @property
    def root(self) -> str:
        """Merkle root of all pairs: publish it when the model is released."""
        return merkle_root([pair.leaf for pair in self.pairs])

    def reveal(self, index: int) -> dict[str, Any]:
        """A pair with the proof that it stood in the set when its root was published."""
        proof = merkle_proof([pair.leaf for pair in self.pairs], index)
        pair = self.pairs[index]
        return {"key": pair.key, "responses": list(pair.responses), "salt": pair.salt, "proof": proof}

    def subset(self, indices: Sequence[int]) -> FingerprintSet:
        """The fingerprints at ``indices``, as they go into one recipient's copy."""
        if len(indices) == 0:
            raise InputError("subset: expected at least one index")
        return replace(self, pairs=tuple(self.pairs[i] for i in indices), used=())

    def unused(self, n: int, seed: int = 0) -> list[int]:
        """Indices of ``n`` keys that were not shown yet, in an order fixed before anything is asked."""
        free = [i for i in range(len(self)) if i not in set(self.used)]
        if not 1 <= n <= len(free):
            raise InputError(f"n {n}: expected 1 to {len(free)}, the keys of the ledger that are not spent")
        return [free[int(i)] for i in np.random.default_rng(seed).permutation(len(free))[:n]]

    def spend(self, indices: Sequence[int]) -> FingerprintSet:
        """The set with ``indices`` marked as shown."""
        return replace(self, used=tuple(dict.fromkeys([*self.used, *map(int, indices)])))

    def save(self, path: str | Path) -> Path:
        """Write the set as JSON; it must stay as secret as a private key."""
        record = {"schema": SCHEMA, **{k: v for k, v in asdict(self).items() if k != "pairs"}, "root": self.root}
        record["pairs"] = [asdict(pair) for pair in self.pairs]
        write_text(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> FingerprintSet:
        """Read what :meth:`save` wrote; raises :class:`InputError` if it is missing, damaged or altered."""
        try:
            record = json.loads(read_text(path, "ledger"))
            if record["schema"] != SCHEMA:
                raise InputError(f"ledger {path}: not of schema {SCHEMA!r}")
            pairs = tuple(
                Fingerprint(
                    str(p["key"]),
                    tuple(map(int, p["key_ids"])),
                    tuple(map(str, p["responses"])),
                    tuple(tuple(map(int, ids)) for ids in p["response_ids"]),
                    float(p["probability"]),
                    int(p["rank"]),
                    str(p["salt"]),
                )
                for p in record["pairs"]
            )
            found = cls(
                pairs,
                str(record["scheme"]),
                float(record["t"]),
                int(record["k"]),
                int(record["n_responses"]),
                bool(record["chat"]),
                str(record["model"]),
                str(record["secret_hash"]),
                tuple(map(int, record["used"])),
            )
            root = record["root"]
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"ledger {path}: damaged ({type(error).__name__}: {error})") from None
        if not pairs or any(not pair.responses or "" in pair.responses for pair in pairs):
            raise InputError(f"ledger {path}: damaged (a pair without a response)")
        if found.root != root:
            raise InputError(f"ledger {path}: its pairs do not match its Merkle root; it was altered")
        return found
