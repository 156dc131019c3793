"""Tiny random models with uneven norm gains: the mechanics of steering don't depend on what a model knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from touchstone.language import LanguageModel
from touchstone.language.angular_steering import SteeringPlane

WIDTH, BLOCKS = 32, 3
POSITIVE = [f"w{i} w38 w{i + 1}" for i in range(8)]
NEGATIVE = [f"w{i} w39 w{i + 1}" for i in range(8)]
PROMPTS = ["w3 w9", "w5 w38 w7 w8", "w11", "w1 w39 w2 w3 w4"]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_model(make_tiny: Callable[..., LanguageModel]) -> Callable[..., LanguageModel]:
    def make(kind: str = "llama", **options: object) -> LanguageModel:
        model = make_tiny(kind, **options)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            # Gains of 1 would hide on which side of a norm an edit acts.
            for name, parameter in model.module.named_parameters():
                if parameter.dim() == 1 and ("norm" in name or "ln_" in name):
                    parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
        return model

    return make


@pytest.fixture
def model(make_model: Callable[..., LanguageModel]) -> LanguageModel:
    return make_model()


@pytest.fixture
def plane(model: LanguageModel) -> SteeringPlane:
    return SteeringPlane.fit(model, POSITIVE, NEGATIVE)
