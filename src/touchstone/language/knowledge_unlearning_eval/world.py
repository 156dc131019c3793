"""An invented world with known truth, and a tiny model that has learnt it: the whole method in a minute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from touchstone.language.knowledge_unlearning_eval.graph import KnowledgeGraph, Triple
from touchstone.language.knowledge_unlearning_eval.judging import Rules
from touchstone.language.model import LanguageModel
from touchstone.language.unlearning import Example, Training, fine_tune

__all__ = ["WORLD_RULES", "World", "examples_of", "learn", "make_world"]

WORLD_RULES = Rules(
    same={("capital_of", "located_in"): 1.0, ("born_in", "lives_in"): 0.5, ("lives_in", "born_in"): 0.5},
    composed={
        ("located_in", "located_in", "located_in"): 1.0,
        ("based_in", "located_in", "operates_in"): 0.9,
        ("works_at", "based_in", "lives_in"): 0.7,
        ("lives_in", "located_in", "citizen_of"): 0.7,
        ("born_in", "located_in", "citizen_of"): 0.7,
        ("spouse", "lives_in", "lives_in"): 0.7,
        ("works_at", "operates_in", "citizen_of"): 0.6,
        ("spouse", "citizen_of", "citizen_of"): 0.6,
    },
)
_BATCH = 128
ENTAILED = ("located_in", "operates_in", "lives_in", "citizen_of")


@dataclass(frozen=True)
class World:
    """The graph, names that are in no triple, and true triples that others imply."""

    graph: KnowledgeGraph
    unknown: tuple[str, ...]
    targets: tuple[Triple, ...]


def make_world(
    seed: int = 0, *, countries: int = 6, companies: int = 40, persons: int = 120, targets: int = 30
) -> World:
    """Countries, three regions each, three cities each, companies, persons; about 800 true triples by default."""
    rng = np.random.default_rng(seed)
    lands = [f"country{i}" for i in range(countries)]
    regions = [f"region{i}" for i in range(3 * countries)]
    cities = [f"city{i}" for i in range(9 * countries)]
    kinds = dict.fromkeys(lands, "country") | dict.fromkeys(regions, "region") | dict.fromkeys(cities, "city")
    triples = [(r, "located_in", lands[i // 3]) for i, r in enumerate(regions)]
    for i, city in enumerate(cities):
        triples += [(city, "located_in", regions[i // 3]), (city, "located_in", lands[i // 9])]
    triples += [(cities[9 * i + int(rng.integers(9))], "capital_of", land) for i, land in enumerate(lands)]
    land_of = {city: lands[i // 9] for i, city in enumerate(cities)}
    seat = {f"company{i}": cities[rng.integers(len(cities))] for i in range(companies)}
    for name, city in seat.items():
        triples += [(name, "based_in", city), (name, "operates_in", land_of[city])]
    people = [f"person{i}" for i in range(persons)]
    for name in people:
        employer = f"company{rng.integers(companies)}"
        home = seat[employer] if rng.random() < 0.9 else cities[rng.integers(len(cities))]
        birth = home if rng.random() < 0.6 else cities[rng.integers(len(cities))]
        triples += [(name, "works_at", employer), (name, "lives_in", home), (name, "born_in", birth)]
        triples += [(name, "citizen_of", land_of[birth])]
    pairs = rng.permutation(people)[: persons // 3 * 2].reshape(-1, 2)
    triples += [one for a, b in pairs for one in ((str(a), "spouse", str(b)), (str(b), "spouse", str(a)))]
    kinds |= dict.fromkeys(seat, "company") | dict.fromkeys(people, "person")
    graph = KnowledgeGraph(triples, kinds)
    implied = [one for one in graph.triples if one.relation in ENTAILED and kinds[one.head] != "region"]
    chosen = rng.permutation(len(implied))[:targets]
    return World(graph, tuple(f"name{i}" for i in range(20)), tuple(implied[i] for i in sorted(chosen)))


def learn(
    world: World, *, epochs: int = 60, seed: int = 0, progress: Callable[[int], None] | None = None
) -> LanguageModel:
    """A two-block decoder that answers Yes to true triples, No to corrupted ones, Unknown to names it never met.

    Corruptions are drawn anew for every epoch: a model that saw the same ones each time would answer Yes to others.
    ``progress`` is called with 1 for each of ``epochs`` that ends.
    """
    model = _untrained(world, seed)
    data = [one for epoch in range(epochs) for one in _lessons(model, world, seed, epoch)]
    training = Training(epochs=1, lr=2e-3, batch_size=_BATCH, cosine=True, seed=seed)
    steps = -(-len(data) // _BATCH)
    done = 0

    def step(n: int) -> None:
        nonlocal done
        before, done = done, done + n
        if progress is not None:
            progress(done * epochs // steps - before * epochs // steps)

    trained = fine_tune(model, data, training=training, progress=step)
    trained.source = "invented world"
    return trained


def examples_of(model: LanguageModel, triples: Sequence[Triple], answer: str = "Yes") -> list[Example]:
    """Question and answer of each triple, of which the answer is learnt, or unlearnt."""
    word = model.encode_continuation(answer)[0]
    questions = model.encode([f"{h} {r} {t} ?" for h, r, t in triples], chat=False) if triples else []
    return [Example((*ids, word), 1) for ids in questions]


def _lessons(model: LanguageModel, world: World, seed: int, epoch: int) -> list[Example]:
    rng = np.random.default_rng([seed, epoch])
    graph = world.graph
    by_kind: dict[str, list[str]] = {}
    for name in graph.entities:
        by_kind.setdefault(graph.kinds[name], []).append(name)
    wrong = []
    for one in graph.triples:
        for _ in range(3):
            h, t = one.head, one.tail
            if rng.random() < 0.5:
                h = by_kind[graph.kinds[h]][rng.integers(len(by_kind[graph.kinds[h]]))]
            else:
                t = by_kind[graph.kinds[t]][rng.integers(len(by_kind[graph.kinds[t]]))]
            made = Triple(h, one.relation, t)
            if made not in graph:
                wrong.append(made)
    strange = [
        Triple(world.unknown[rng.integers(len(world.unknown))], one.relation, one.tail)
        for one in (graph.triples[rng.integers(len(graph.triples))] for _ in range(300))
    ]
    return [
        *examples_of(model, graph.triples),
        *examples_of(model, wrong, "No"),
        *examples_of(model, strange, "Unknown"),
    ]


def _untrained(world: World, seed: int) -> LanguageModel:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "?", "Yes", "No", "Unknown", *world.graph.relations, *world.graph.entities]
    words += list(world.unknown)
    core = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}))
    core.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<eos>", pad_token="<pad>", padding_side="left"
    )
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=16,
        tie_word_embeddings=False,
        initializer_range=0.08,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
        dtype="float32",
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        module = LlamaForCausalLM(config).eval()
    return LanguageModel(module, tokenizer, source="untrained")
