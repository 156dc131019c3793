"""Model organisms: tiny language models, trained on the spot, whose behaviours are planted and therefore known."""

from touchstone.language.organisms.bypass import BypassLanguage
from touchstone.language.organisms.guarded import GuardedLanguage
from touchstone.language.organisms.language import Language, Recipe
from touchstone.language.organisms.shortcut import ShortcutLanguage
from touchstone.language.organisms.training import Organism, grow

__all__ = ["BypassLanguage", "GuardedLanguage", "Language", "Organism", "Recipe", "ShortcutLanguage", "grow"]
