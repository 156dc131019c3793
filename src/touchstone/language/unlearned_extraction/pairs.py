"""Two models for an audit: the base trained on all data, and on all but the deleted ones, with the same settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from touchstone.errors import InputError
from touchstone.language.model import LanguageModel
from touchstone.language.unlearning import Training, examples, fine_tune

__all__ = ["Pair", "exact_unlearning_pair"]


class Pair(NamedTuple):
    """The model before exact unlearning, and after it."""

    pre: LanguageModel
    post: LanguageModel


def exact_unlearning_pair(
    base: LanguageModel,
    texts: Sequence[str | tuple[str, str]],
    forget: Collection[int],
    *,
    training: Training | None = None,
    post_seed: int | None = None,
    folder: str | Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> Pair:
    """Fine-tune ``base`` twice: on ``texts``, and on what remains without ``forget``, in the same order.

    Both run the same number of epochs, so that the second takes fewer steps.

    Parameters
    ----------
    texts : texts, or pairs of prompt and answer.
    forget : indices of the deleted ones.
    training : epochs, rate, noise and so on; the same for both.
    post_seed : another seed for the second model. With an empty ``forget`` and another seed it is a control: the two
        differ, and nothing was deleted.
    folder : where checkpoints are kept, from which a run that stopped goes on.
    progress : called with the number of steps just finished.

    Raises
    ------
    InputError
        If ``forget`` names what is not there, or everything.
    """
    wrong = [i for i in forget if not 0 <= i < len(texts)]
    if wrong:
        raise InputError(f"forget: there is no text {wrong[0]}; expected 0 to {len(texts) - 1}")
    if len(set(forget)) == len(texts):
        raise InputError("forget: names every text; nothing would remain")
    training = training or Training()
    data = examples(base, texts)
    places = [None if folder is None else Path(folder) / f"{name}.safetensors" for name in ("pre", "post")]
    pre = fine_tune(base, data, training=training, checkpoint=places[0], progress=progress)
    second = training if post_seed is None else replace(training, seed=post_seed)
    post = fine_tune(base, data, training=second, leave_out=forget, checkpoint=places[1], progress=progress)
    return Pair(pre, post)
