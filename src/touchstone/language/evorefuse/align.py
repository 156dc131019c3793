"""The alignment set: for each false alarm a helpful answer and a refusal, and plain prompts that must go with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from touchstone.errors import InputError
from touchstone.files import read_jsonl, write_jsonl
from touchstone.language.evorefuse.result import EvoResult, Found
from touchstone.language.refusal import RefusalJudge

if TYPE_CHECKING:
    from touchstone.language.endpoint import TextModel

__all__ = ["REFUSAL", "Align", "Preference", "answers_of", "benign_pairs", "build_align", "read_align", "unsafe_pairs"]

REFUSAL = "I'm sorry, but I can't help with that."
"""The refusal of a record whose model gave none itself."""

_COMPLIANCE = "Sure, here is how to do that."
"""What must not answer an unsafe prompt: an opening that says nothing."""

_Rewording = Callable[[str], str | None]
Answerer = Callable[[Sequence[str]], Sequence[str]]


@dataclass(frozen=True)
class Preference:
    """A prompt, the reply that is wanted and the one that is not."""

    prompt: str
    chosen: str
    rejected: str


@dataclass(frozen=True)
class Align:
    """An alignment set.

    Attributes
    ----------
    records : one a false alarm.
    dropped : instructions whose answer was a refusal or garbage itself, so that they teach nothing.
    """

    records: list[Preference]
    dropped: list[str]

    def to_jsonl(self, path: str | Path) -> None:
        """One object a line with ``prompt``, ``chosen`` and ``rejected``, as ``trl`` reads it."""
        write_jsonl(path, [asdict(record) for record in self.records])


def build_align(
    out: EvoResult | Sequence[Found] | Sequence[str],
    answerer: Answerer,
    *,
    judge: RefusalJudge | None = None,
    refusal: str = REFUSAL,
) -> Align:
    """A helpful answer (chosen) and a refusal (rejected) for every instruction that a search found.

    Parameters
    ----------
    out : what a search found, or instructions, all of them judged harmless.
    answerer : from instructions to helpful answers, such as :func:`answers_of` a model that is not so easily alarmed.
    judge : drops records whose answer is no answer; ``None`` takes ``RefusalJudge("tfidf")``.
    refusal : rejected reply where the search sampled none from the target, or none that the judge calls a refusal.
    """
    found = out.best if isinstance(out, EvoResult) else [Found("", f, 0.0) if isinstance(f, str) else f for f in out]
    if not found:
        raise InputError("out: holds no instruction; expected what a search found")
    judge = judge or RefusalJudge("tfidf")
    prompts = [one.instruction for one in found]
    answers = list(answerer(prompts))
    if len(answers) != len(prompts):
        raise InputError(f"answerer: gave {len(answers)} answers to {len(prompts)} instructions")
    helpful = judge.classify(prompts, answers)
    sampled = judge.classify(prompts, [one.reply for one in found])
    records, dropped = [], []
    for one, answer, label, own in zip(found, answers, helpful, sampled, strict=True):
        if label != "answer":
            dropped.append(one.instruction)
            continue
        records.append(Preference(one.instruction, answer, one.reply if own == "refusal" else refusal))
    return Align(records, dropped)


def answers_of(
    model: TextModel,
    *,
    rewording: _Rewording | None = None,
    system: str | None = None,
    max_new_tokens: int = 200,
) -> Answerer:
    """Greedy replies of ``model`` to the prompts, or to calmer wordings of them.

    Parameters
    ----------
    rewording : from a prompt to the wording that the model is asked, such as :func:`calmed` of a grammar, or
        ``{pair.refused: pair.answered for pair in contrasts}.get`` with what :func:`paired_contrast` found.
    """

    def answer(prompts: Sequence[str]) -> list[str]:
        asked = [(rewording(prompt) or prompt) if rewording else prompt for prompt in prompts]
        return model.generate(asked, system=system, max_new_tokens=max_new_tokens)

    return answer


def benign_pairs(prompts: Sequence[str], answerer: Answerer, *, refusal: str = REFUSAL) -> list[Preference]:
    """Plain harmless prompts with answers: what training must not forget."""
    return [Preference(p, a, refusal) for p, a in zip(prompts, answerer(prompts), strict=True) if a.strip()]


def unsafe_pairs(prompts: Sequence[str], *, refusal: str = REFUSAL) -> list[Preference]:
    """Prompts that must go on being refused, with a refusal as the wanted reply and an empty promise as the other."""
    return [Preference(prompt, refusal, _COMPLIANCE) for prompt in prompts]


def read_align(path: str | Path) -> list[Preference]:
    """Records of a JSONL file with ``prompt``, ``chosen`` and ``rejected``."""
    rows: list[dict[str, Any]] = read_jsonl(path, texts=("prompt", "chosen", "rejected"))
    return [Preference(row["prompt"], row["chosen"], row["rejected"]) for row in rows]
