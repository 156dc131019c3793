"""Decisions as bits: agreement of all pairs, and counts of recourse, by XOR, AND, OR and population counts.

``N`` decisions of ``M`` models are ``N * M / 8`` bytes, and the agreement of all pairs is ``N * M**2 / 128`` operations
on words of 64 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Packed", "pack"]

Words = NDArray[np.uint64]
# Words of every model that are worked on at a time: those of 50 models are 800 kB and stay in the cache.
_BLOCK = 2048


@dataclass(frozen=True)
class Packed:
    """Successes of models on cases, one bit each.

    Attributes
    ----------
    bits : 1 where the model succeeds, [models, words]; bits beyond the last case are 0.
    present : 1 where the model decided; ``None`` if all did on all cases.
    cases : number of cases.
    """

    bits: Words
    present: Words | None
    cases: int

    def pairs(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Cases on which two models agree and on which both decided, each [models, models]."""
        models, words = self.bits.shape
        differ = np.zeros((models, models), dtype=np.int64)
        both = np.full((models, models), self.cases, dtype=np.int64)
        if self.present is not None:
            both[:] = 0
        room = np.empty((models, min(_BLOCK, words)), dtype=np.uint64)
        counts = np.empty(room.shape, dtype=np.uint8)
        for begin in range(0, words, _BLOCK):
            part = np.ascontiguousarray(self.bits[:, begin : begin + _BLOCK])
            seen = None if self.present is None else np.ascontiguousarray(self.present[:, begin : begin + _BLOCK])
            width = part.shape[1]
            for i in range(models):
                left, ones = room[: models - i, :width], counts[: models - i, :width]
                np.bitwise_xor(part[i], part[i:], out=left)
                if seen is not None:
                    shared = seen[i] & seen[i:]
                    left &= shared
                    both[i, i:] += np.bitwise_count(shared).sum(axis=1, dtype=np.int64)
                np.bitwise_count(left, out=ones)
                differ[i, i:] += ones.sum(axis=1, dtype=np.int64)
        differ += np.triu(differ, 1).T
        if self.present is not None:
            both += np.triu(both, 1).T
        return both - differ, both

    def at_least_one(self, models: NDArray[np.intp]) -> int:
        """Cases on which one of ``models`` succeeds."""
        return int(np.bitwise_count(np.bitwise_or.reduce(self.bits[models], axis=0)).sum(dtype=np.int64))

    def all_of(self, models: NDArray[np.intp]) -> int:
        """Cases on which all of ``models`` succeed."""
        return int(np.bitwise_count(np.bitwise_and.reduce(self.bits[models], axis=0)).sum(dtype=np.int64))

    def more_than_half(self, models: NDArray[np.intp]) -> int:
        """Cases on which more than half of ``models`` succeed; a tie is not more than half.

        The counts are added up as binary numbers whose digits are bit columns, and compared with the bound from the
        highest digit down.
        """
        digits: list[Words] = []
        for m in models:
            carry = self.bits[m]
            for place, digit in enumerate(digits):
                digits[place], carry = digit ^ carry, digit & carry
            if len(digits) < len(models).bit_length():
                digits.append(carry)
        bound = len(models) // 2
        above, equal = np.zeros_like(self.bits[0]), ~np.zeros_like(self.bits[0])
        for place in reversed(range(len(digits))):
            if bound >> place & 1:
                equal &= digits[place]
            else:
                above |= equal & digits[place]
                equal &= ~digits[place]
        return int(np.bitwise_count(above).sum(dtype=np.int64))


def pack(votes: NDArray[np.int8]) -> Packed:
    """Pack ``votes`` [models, cases], each 1 (success), 0 or -1 (no decision)."""
    models, cases = votes.shape
    words = max(1, -(-cases // 64))
    present = np.zeros((models, words), dtype=np.uint64) if votes.min(initial=0) < 0 else None
    bits = np.zeros((models, words), dtype=np.uint64)
    for m in range(models):
        _write(bits[m], votes[m] > 0)
        if present is not None:
            _write(present[m], votes[m] >= 0)
    return Packed(bits, present, cases)


def _write(words: Words, column: NDArray[np.bool_]) -> None:
    packed = np.packbits(column, bitorder="little")
    words.view(np.uint8)[: len(packed)] = packed
