"""The study: what angular steering is worth, on closed forms, on a model organism and on a real model.

Part A holds the operators to their closed forms. Part B grows an organism whose truth is known and sweeps the circle on
held-out topics, against random planes, ablation, activation addition at its best, Selective Steering and prompting.
Part C turns the tone of a real model and prices the change in perplexity. Part D, for the scale ``gpu`` or when a
model or prompts are given, writes and judges replies of that model over the circle.

The organism thinks before it answers, and whether it refuses is decided where its thought ends. So the plane is fitted
there; fitted at the prompt's last token, as one would for a model that answers at once, it is reported beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from touchstone.errors import InputError
from touchstone.evidence import Evidence, Figure, Finding, Table
from touchstone.language.angular_steering.study_geometry import geometry
from touchstone.language.angular_steering.study_organism import Size, organism
from touchstone.language.angular_steering.study_replies import ReplySize, replies
from touchstone.language.angular_steering.study_tone import ToneSize, tone
from touchstone.language.model import LanguageModel

if TYPE_CHECKING:
    from touchstone.run import Run

__all__ = ["study"]

_ORGANISM = {
    "smoke": Size(steps=120, prompts=16, scored=4, fit=32, step=30, control_step=60, seeds=1, alphas=4),
    "cpu": Size(steps=None, prompts=256, scored=64, fit=128, step=10, control_step=30, seeds=2, alphas=24),
    "gpu": Size(steps=None, prompts=256, scored=256, fit=128, step=10, control_step=10, seeds=5, alphas=36),
}
_TONE = {
    "smoke": ToneSize(topics=4, prompts=2, texts=1, step=180, control_step=360, few=True),
    "cpu": ToneSize(topics=16, prompts=6, texts=6, step=30, control_step=60),
    "gpu": ToneSize(topics=16, prompts=16, texts=10, step=10, control_step=10),
}


def study(
    scale: Literal["smoke", "cpu", "gpu"],
    run: Run,
    *,
    model: str | Path | LanguageModel = "default",
    positive: str | Path | Sequence[str] | None = None,
    negative: str | Path | Sequence[str] | None = None,
    test: str | Path | Sequence[str] | None = None,
    angles: int = 36,
    max_new_tokens: int = 512,
    classifier: str | None = None,
    dtype: str = "float32",
) -> Evidence:
    """Re-measure the paper's claims (arXiv 2510.26243).

    Parameters
    ----------
    scale : ``"smoke"`` (seconds, a briefly trained organism), ``"cpu"`` (minutes) or ``"gpu"`` (with part D).
    run : seed, device, engine and progress.
    model : subject of parts C and D, see :meth:`LanguageModel.load`.
    positive, negative, test : for part D: files with a prompt a line, or lists, of requests that the model refuses,
        that it answers, and that the sweep is measured on (held-out ones of ``positive`` if not given); mild built-in
        ones if none are.
    angles, max_new_tokens : for part D: settings on the circle and length of replies; the defaults are the paper's.
    classifier : for part D: a refusal classifier (folder or Hugging Face id) as a further judge.
    dtype : of the model.

    Raises
    ------
    InputError
        If the scale is unknown, or a file or model cannot be read.
    """
    if scale not in _ORGANISM:
        raise InputError(f"scale {scale!r}: expected 'smoke', 'cpu' or 'gpu'")
    given = not (positive is None and negative is None and test is None)
    if given and (positive is None or negative is None):
        raise InputError("positive, negative: expected both, or neither for the built-in prompts")
    findings: list[Finding] = []
    tables: list[Table] = []
    figures: list[Figure] = []

    def add(new: tuple[list[Finding], list[Table], list[Figure]]) -> None:
        findings.extend(new[0])
        tables.extend(new[1])
        figures.extend(new[2])

    add((*geometry(run.seed), []))
    add(organism(_ORGANISM[scale], run))
    subject = model if isinstance(model, LanguageModel) else LanguageModel.load(model, device=run.device, dtype=dtype)
    add(tone(subject, _TONE[scale], run))
    if given or scale == "gpu":
        size = ReplySize(angles, max_new_tokens, classifier)
        add(replies(subject, size, run, positive=positive, negative=negative, test=test))
    shortened = ", organism trained briefly" if _ORGANISM[scale].steps else ""
    return run.evidence(
        f"Angular Steering, re-measured ({subject.source}{shortened})",
        "angular-steering",
        "study",
        findings,
        tables=tables,
        figures=figures,
        scale=scale,
        device=str(subject.device),
    )
