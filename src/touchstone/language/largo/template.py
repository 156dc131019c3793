"""Where the slot is: a prompt in two pieces of text around it, so that its place is known and never counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from touchstone.errors import InputError
from touchstone.language.organisms.language import SEP

if TYPE_CHECKING:
    from touchstone.language.model import LanguageModel
    from touchstone.language.organisms import BypassLanguage

__all__ = ["OPENER", "Frame", "Template", "bypass_template", "chat_template"]

OPENER = "Sure, I will summarize the message:"
"""How the reply begins in which the model puts a latent into words."""

_MARK = "\u2060slot\u2060"


@dataclass(frozen=True)
class Frame:
    """A prompt around a slot.

    Attributes
    ----------
    before, after : text on both sides of it.
    joint : what stands between ``before`` and a text in the slot, usually a space.
    """

    before: str
    after: str
    joint: str = " "

    def filled(self, text: str) -> str:
        """The whole prompt with a text in the slot; without the joint if the text is empty."""
        return f"{self.before}{self.joint if text else ''}{text}{self.after}"


@dataclass(frozen=True)
class Template:
    """The two prompts of an attack.

    Attributes
    ----------
    ask : a goal's prompt, whose user turn is the goal and then the slot.
    reflect : the prompt in which the slot is the message and the reply has begun to repeat it.
    special : whether the tokenizer adds special tokens to these texts (a chat template has written them already).
    """

    ask: Callable[[str], Frame]
    reflect: Frame
    special: bool = False


def chat_template(model: LanguageModel, *, system: str | None = None, opener: str = OPENER) -> Template:
    """Prompts through the model's own chat template.

    Parameters
    ----------
    model : with a chat template.
    system : system message of the guarded prompt, where a guard may be stated.
    opener : how the model's rendering of a latent begins.

    Raises
    ------
    InputError
        If the model has no chat template, or one that opens no assistant turn.
    """
    tokenizer = model.tokenizer
    if getattr(tokenizer, "chat_template", None) is None:
        raise InputError(f"model {model.source}: has no chat template; pass a Template of its prompts")
    if not opener.strip():
        raise InputError("opener: empty")
    user = [{"role": "user", "content": "hello"}]
    with_turn, without = (
        str(tokenizer.apply_chat_template(user, add_generation_prompt=turn, tokenize=False)) for turn in (True, False)
    )
    if with_turn == without:
        raise InputError(f"model {model.source}: its chat template has no generation prompt that opens the reply")

    def ask(goal: str) -> Frame:
        before, after = _split(model.render(f"{goal} {_MARK}", system=system), model.source)
        return Frame(before.removesuffix(" "), after)

    turns = [{"role": "user", "content": _MARK}, {"role": "assistant", "content": opener}]
    return Template(ask, Frame(*_split(model.render(turns), model.source), joint=""))


def bypass_template(language: BypassLanguage) -> Template:
    """Prompts of the organism whose guard opens to key words."""

    end = f" {SEP}"

    def ask(goal: str) -> Frame:
        topic, _, words = goal.partition(" ")
        return Frame(language.ask(_topic(language, topic), words).removesuffix(end), end)

    return Template(ask, Frame(language.summarise("").removesuffix(end), end))


def _topic(language: BypassLanguage, goal: str) -> int:
    number = goal.removeprefix("topic")
    if not goal.startswith("topic") or not number.isdigit() or int(number) >= language.topics:
        raise InputError(f"goal {goal!r}: expected topic0 to topic{language.topics - 1}")
    return int(number)


def _split(text: str, source: str) -> tuple[str, str]:
    if text.count(_MARK) != 1:
        raise InputError(f"model {source}: its chat template changes or repeats the user's message")
    before, after = text.split(_MARK)
    return before, after
