"""The organism whose bypass is known, and attacks on it."""

from __future__ import annotations

from typing import Any

import pytest

from touchstone.language import LanguageModel
from touchstone.language.largo.organism import behaviour, ground
from touchstone.language.organisms import BypassLanguage, grow


@pytest.fixture(scope="session")
def language() -> BypassLanguage:
    return BypassLanguage()


@pytest.fixture(scope="session")
def organism(language: BypassLanguage) -> LanguageModel:
    grown = grow(language)
    return LanguageModel(grown.module, grown.tokenizer, source="organism:bypass", threads=1)


@pytest.fixture(scope="session")
def options(organism: LanguageModel, language: BypassLanguage) -> dict[str, Any]:
    return ground(organism, language)


@pytest.fixture(scope="session")
def guarded(language: BypassLanguage) -> list[Any]:
    return [behaviour(language, topic) for topic in range(0, language.topics, 2)]
