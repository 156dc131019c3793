"""A demo with known truth: invented patient records, a tiny model trained on some, and queries about the deleted ones.

Names, dates and values are drawn from lists written here; no record is of a person.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from touchstone.errors import InputError
from touchstone.language.model import LanguageModel
from touchstone.language.unlearning import Training, examples, fine_tune

__all__ = ["SLOTS", "Record", "base_model", "make_records"]


def _of(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


_STARTS = _of("Al|Ber|Cor|Dan|El|Fer|Gus|Hel|Is|Jor|Kas|Lor|Mar|Nor|Os|Per|Ros|Sil|Tor|Ul|Vin|Wil|Yor|Zel")
_ENDS = _of("an|bert|dine|essa|go|ina|kar|len|mira|nox|ora|rin|sia|tan|vik|wen")
_FAMILY = _of("Arn|Bel|Cas|Dor|Eck|Fal|Gran|Hol|Ing|Jas|Kel|Lun|Mor|Nis|Ost|Pell|Quin|Ras|Stor|Tall|Ulm|Ver|Wes|Zan")
_FAMILY_ENDS = _of("berg|dal|er|feld|gard|hart|is|land|man|ov|quist|sen")
_MONTHS = _of("January|February|March|April|May|June|July|August|September|October|November|December")

# Values of every slot; a query asks for all of them.
SLOTS: dict[str, tuple[str, ...]] = {
    "diagnosis": _of(
        "asthma|gout|eczema|migraine|anaemia|bursitis|rosacea|sinusitis|tendinitis|insomnia|vertigo|psoriasis|"
        "laryngitis|gastritis|tinnitus|sciatica|dermatitis|bronchitis"
    ),
    "symptom": _of(
        "cough|fatigue|itching|nausea|dizziness|swelling|fever|stiffness|hoarseness|cramps|tremor|blurred vision|"
        "dry mouth|headache|numbness|chills|heartburn|palpitations"
    ),
    "drug": _of(
        "alvorin|bexatol|cindrel|dolamet|evasone|fluntin|gorvan|helixar|ibrosel|jentole|kelprin|lorvast|mirodex|"
        "nuvalin|oxyprel|pradone|quilten|rovamid"
    ),
    "dose": _of("5|10|20|40|80|160"),
    "timing": _of("at breakfast|at noon|at bedtime|twice daily|every morning|after meals|with water|weekly"),
    "weeks": tuple(str(n) for n in range(1, 13)),
}


@dataclass(frozen=True)
class Record:
    """One record.

    Attributes
    ----------
    prefix : who it is about, as an auditor would know it: name and date of birth.
    rest : what follows.
    slots : the value of each slot of :data:`SLOTS`.
    """

    prefix: str
    rest: str
    slots: dict[str, str]

    @property
    def text(self) -> str:
        return self.prefix + self.rest


def make_records(n: int, seed: int = 0) -> list[Record]:
    """``n`` records with distinct names; raises :class:`InputError` if there are not as many names."""
    rng = np.random.default_rng(seed)
    first = [a + b for a in _STARTS for b in _ENDS]
    last = [a + b for a in _FAMILY for b in _FAMILY_ENDS]
    if not 1 <= n <= len(first) * len(last):
        raise InputError(f"n {n}: expected 1 to {len(first) * len(last)} records")
    found = []
    for code in rng.choice(len(first) * len(last), size=n, replace=False):
        name = f"{first[code // len(last)]} {last[code % len(last)]}"
        born = f"{rng.integers(1, 29)} {_MONTHS[rng.integers(12)]} {rng.integers(1930, 2006)}"
        slots = {slot: values[int(rng.integers(len(values)))] for slot, values in SLOTS.items()}
        rest = " has {diagnosis} with {symptom}, takes {drug} {dose} mg {timing}, review in {weeks} weeks.".format(
            **slots
        )
        found.append(Record(f"{name}, born {born},", rest, slots))
    return found


def base_model(
    records: Sequence[Record],
    *,
    epochs: int = 6,
    vocabulary: int = 1000,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> LanguageModel:
    """A decoder of 0.46 M parameters (width 96, three blocks) pre-trained on ``records`` from scratch."""
    model = _untrained([record.text for record in records], vocabulary, seed)
    training = Training(epochs=epochs, lr=2e-3, batch_size=16, seed=seed)
    trained = fine_tune(model, examples(model, [one.text for one in records]), training=training, progress=progress)
    trained.source = "demo records"
    return trained


def _untrained(texts: list[str], vocabulary: int, seed: int) -> LanguageModel:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<bos>", "<eos>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(texts, trainer)
    core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>", padding_side="left"
    )
    config = LlamaConfig(
        vocab_size=core.get_vocab_size(),
        hidden_size=96,
        intermediate_size=288,
        num_hidden_layers=3,
        num_attention_heads=4,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        initializer_range=0.08,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = LlamaForCausalLM(config).eval()
    return LanguageModel(module, tokenizer, source="untrained")
