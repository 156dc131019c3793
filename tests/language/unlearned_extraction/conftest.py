"""A base on a few invented records, and models before and after the first of them were deleted."""

from __future__ import annotations

import pytest

from touchstone.language.unlearned_extraction.pairs import exact_unlearning_pair
from touchstone.language.unlearned_extraction.records import base_model, make_records
from touchstone.language.unlearned_extraction.splitting import Query
from touchstone.language.unlearning import Training

BASE, DATA, FORGET = 200, 48, 16


@pytest.fixture(scope="session")
def records():
    return make_records(BASE + DATA)[BASE:]


@pytest.fixture(scope="session")
def base():
    return base_model(make_records(BASE + DATA)[:BASE], epochs=8, vocabulary=400)


@pytest.fixture(scope="session")
def pair(base, records):
    """Trained until the old model has learnt much of the records and the new one none of the first sixteen."""
    texts = [record.text for record in records]
    return exact_unlearning_pair(base, texts, range(FORGET), training=Training(epochs=5, lr=2e-3, batch_size=8))


@pytest.fixture(scope="session")
def asked(records):
    return [Query(record.prefix, record.rest, record.slots) for record in records[:FORGET]]
