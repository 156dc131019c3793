"""The catalog: one record for each of the 38 methods. Nothing is imported until a record is asked for its parts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Literal

from touchstone.errors import InputError

__all__ = ["METHODS", "ROOMS", "ROOM_CHECKS", "Method", "check_of", "method", "offering"]

Part = Literal["check", "remedy", "study"]

ROOMS: dict[str, str] = {
    "language": "Causal language models",
    "preferences": "Pairwise preferences and reward models",
    "decisions": "Tables of predictions, scores and decisions; routing a query between models",
    "statistics": "Samples and comparisons",
    "operations": "Who goes where: assignment and vehicle routing",
    "images": "Pixels: watermarks and detection",
    "representations": "What is inside a vision or diffusion model",
    "vectors": "Vector databases",
    "voice": "Speech",
    "federated": "Training across parties",
    "graphs": "Node classification",
    "networks": "Architectures and training theory",
    "control": "Reinforcement learning",
    "flights": "Flight-delay data",
    "impact": "Evaluation of deployed systems",
}


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes
    ----------
    slug : its name on the command line and in plans.
    room : package that holds it, named after what the user has in hand.
    purpose : what it is for, one line.
    paper : title of its paper, NeurIPS 2025.
    arxiv, openreview : identifiers of the paper, empty where none is known.
    offers : which of check, remedy and study work today; empty means not built yet.
    measures : what its check measures, in a word or two, as reports and Inspect's tasks name it.
    """

    slug: str
    room: str
    purpose: str
    paper: str
    arxiv: str = ""
    openreview: str = ""
    offers: tuple[Part, ...] = ()
    measures: str = ""

    @property
    def task(self) -> str:
        """Name of its check as a task of Inspect AI, ``touchstone/<task>``."""
        return re.sub(r"\W+", "_", self.measures or self.slug)

    @property
    def package(self) -> str:
        """Dotted name of its package."""
        return f"touchstone.{self.room}.{self.slug.replace('-', '_')}"

    @property
    def url(self) -> str:
        """Where the paper is; empty where no identifier is known."""
        if self.arxiv:
            return f"https://arxiv.org/abs/{self.arxiv}"
        return f"https://openreview.net/forum?id={self.openreview}" if self.openreview else ""

    def part(self, name: Literal["check", "study"]) -> ModuleType:
        """The module ``<package>.check`` or ``<package>.study``; raises :class:`InputError` if it is not offered."""
        if name not in self.offers:
            able = ", ".join(found.slug for found in offering(name)) or "none yet"
            raise InputError(f"{self.slug}: has no {name} yet; methods that have one: {able}")
        return import_module(f"{self.package}.{name}")


METHODS: tuple[Method, ...] = (
    Method(
        "angular-steering",
        "language",
        "Turn one behaviour of a chat model, such as refusing, up or down by rotating its activations",
        "Angular Steering: Behavior Control via Rotation in Activation Space",
        arxiv="2510.26243",
        offers=("check", "remedy", "study"),
        measures="steerability",
    ),
    Method(
        "test-awareness",
        "language",
        "Find out whether a model behaves differently when it senses a test",
        "The Hawthorne Effect in Reasoning Models: Evaluating and Steering Test Awareness",
        arxiv="2505.14617",
        offers=("check", "remedy", "study"),
        measures="test awareness",
    ),
    Method(
        "evorefuse",
        "language",
        "Find harmless requests that a model refuses, and teach it not to",
        "EVOREFUSE: Evolutionary Prompt Optimization for Evaluation and Mitigation of LLM Over-Refusal to Pseudo-Malicious Instructions",
        arxiv="2505.23473",
        offers=("check", "remedy", "study"),
        measures="over-refusal",
    ),
    Method(
        "largo",
        "language",
        "Test how easily your own model's guard rails give way to fluent text",
        "LARGO: Latent Adversarial Reflection through Gradient Optimization for Jailbreaking LLMs",
        arxiv="2505.10838",
        offers=("check", "remedy", "study"),
        measures="latent red-team margin",
    ),
    Method(
        "deep-value-benchmark",
        "language",
        "Measure whether a model learns the value behind choices or a surface trait that came along",
        "Deep Value Benchmark: Measuring Whether Models Generalize Deep Values or Shallow Preferences",
        arxiv="2511.02109",
        offers=("check", "study"),
        measures="value generalisation",
    ),
    Method(
        "isolation-continuity",
        "language",
        "Measure how much of a long prompt can change before the continuation does",
        "Continuity and Isolation Lead to Doubts or Dilemmas in Large Language Models",
        arxiv="2505.10606",
        offers=("check", "study"),
        measures="continuity",
    ),
    Method(
        "perinucleus-fingerprint",
        "language",
        "Prove from text alone that a service runs your model, and which copy of it leaked",
        "Scalable Fingerprinting of Large Language Models",
        arxiv="2502.07760",
        offers=("check", "remedy", "study"),
        measures="fingerprints",
    ),
    Method(
        "loro",
        "language",
        "Ship weights to an untrusted device so that they are worth little without a small trusted part",
        "LoRO: Real-Time on-Device Secure Inference for LLMs via TEE-Based Low Rank Obfuscation",
        openreview="de07K7kreI",
        offers=("remedy", "study"),
    ),
    Method(
        "unlearned-extraction",
        "language",
        "Measure how much deleted text the checkpoints before and after unlearning give away together",
        "Unlearned but Not Forgotten: Data Extraction after Exact Unlearning in LLM",
        arxiv="2505.24379",
        offers=("check", "study"),
        measures="extraction of unlearned text",
    ),
    Method(
        "knowledge-unlearning-eval",
        "language",
        "Ask whether an unlearned fact can still be inferred from what the model kept",
        "Do LLMs Really Forget? Evaluating Unlearning with Knowledge Correlation and Confidence Awareness",
        arxiv="2506.05735",
        offers=("check", "study"),
        measures="knowledge unlearning",
    ),
    Method(
        "fairness-reward-model",
        "language",
        "Weigh reasoning chains so that a model's decisions become fairer between groups",
        "Guiding LLM Decision-Making with Fairness Reward Models",
        arxiv="2507.11344",
        offers=("check", "remedy", "study"),
        measures="reasoning fairness",
    ),
    Method(
        "pairwise-calibrated-rewards",
        "preferences",
        "Train reward ensembles that keep the share of people who disagree",
        "Pairwise Calibrated Rewards for Pluralistic Alignment",
        arxiv="2506.06298",
    ),
    Method(
        "conformal-arbitrage",
        "decisions",
        "Route each query between two models under a promise on the risk",
        "Conformal Arbitrage: Risk-Controlled Balancing of Competing Objectives in Language Models",
        arxiv="2506.00911",
        offers=("check", "remedy", "study"),
        measures="routing risk",
    ),
    Method(
        "selective-omniprediction",
        "decisions",
        "Abstain rightly for any cost structure and fairly across overlapping groups",
        "Selective Omniprediction and Fair Abstention",
        openreview="BoYGLpNXZd",
        offers=("check", "remedy", "study"),
        measures="calibration and abstention",
    ),
    Method(
        "monoculture",
        "decisions",
        "Tell whether many models shut out the same people or decide arbitrarily",
        "Monoculture or Multiplicity: Which Is It?",
        openreview="DO5LtJc80w",
        offers=("check", "study"),
        measures="monoculture",
    ),
    Method(
        "diverse-kernels",
        "statistics",
        "Test whether two samples differ or two variables depend on each other",
        "Learning Diverse Kernels for Aggregated Two-sample and Independence Testing",
        arxiv="2510.11140",
    ),
    Method(
        "oracle-median",
        "statistics",
        "Find the median with few questions to an expensive judge",
        "Median Selection with Noisy and Structural Information",
    ),
    Method(
        "stability-bounds",
        "statistics",
        "Bound how far a trained model is from the best attainable risk",
        "Stability and Sharper Risk Bounds with Convergence Rate Õ(1/n²)",
        arxiv="2410.09766",
    ),
    Method(
        "congested-assignment",
        "operations",
        "Assign people to places whose value falls with crowding, without envy",
        "Seeking Competitive and Envy-Free Solutions (assignments under congestion aversion)",
        arxiv="2312.07431",
    ),
    Method(
        "uniteformer",
        "operations",
        "Route vehicles from coordinates, a cost matrix or both with one trained model",
        "UniteFormer: Unifying Node and Edge Modalities in Transformers for Vehicle Routing Problems",
        openreview="BRklmFlCsD",
    ),
    Method(
        "maskwm",
        "images",
        "Watermark a picture or a region of it, and see what was tampered with",
        "Mask Image Watermarking",
        arxiv="2504.12739",
    ),
    Method(
        "mlep",
        "images",
        "Tell camera pictures from generated ones",
        "MLEP: Multi-granularity Local Entropy Patterns for Generalized AI-generated Image Detection",
        arxiv="2504.13726",
    ),
    Method(
        "sae-diffusion",
        "representations",
        "See what a diffusion model has decided, when, and change it",
        "Emergence and Evolution of Interpretable Concepts in Diffusion Models",
        arxiv="2504.15473",
    ),
    Method(
        "sae-vlm",
        "representations",
        "Find units of a vision encoder that mean one thing, and turn them up or down",
        "Sparse Autoencoders Learn Monosemantic Features in Vision-Language Models",
        arxiv="2504.02821",
    ),
    Method(
        "cad",
        "representations",
        "Find, erase or amplify the weights that make a concept",
        "Unveiling Concept Attribution in Diffusion Models",
        arxiv="2412.02542",
    ),
    Method(
        "scanpath-mechanisms",
        "representations",
        "Explain where people look with a mechanistic model",
        "What Moves the Eyes: Doubling Mechanistic Model Performance Using Deep Networks to Discover and Test Cognitive Hypotheses",
        openreview="cnrwqlr8dg",
    ),
    Method(
        "tvp-vector-watermark",
        "vectors",
        "Mark a vector database and later prove that a suspect copy is yours",
        "TVP: Vector Database Watermarking",
        openreview="Dbjzqvmd7t",
    ),
    Method(
        "e2e-vguard",
        "voice",
        "Protect recordings of a voice from cloning",
        "E2E-VGuard: Adversarial Prevention for Production LLM-based End-To-End Speech Synthesis",
        arxiv="2511.07099",
    ),
    Method(
        "fedpw",
        "federated",
        "Train across parties so that none is served badly",
        "Rethinking Fair Federated Learning from Parameter and Client View",
        openreview="dY29IUPTuy",
    ),
    Method(
        "fedrw",
        "federated",
        "Count repeated text less across parties that do not share it",
        "FedRW: Efficient Privacy-Preserving Data Reweighting for Enhancing Federated Learning of Language Models",
        arxiv="2511.07505",
    ),
    Method(
        "geometric-imbalance",
        "graphs",
        "Classify nodes fairly when some classes have few labels",
        "Geometric Imbalance in Semi-Supervised Node Classification",
        arxiv="2303.10371",
    ),
    Method(
        "trust-fgl",
        "graphs",
        "Learn together on private graphs with different models",
        "TRUST: Multi-order Orchestrated Curriculum Distillation for Model-Heterogeneous Federated Graph Learning",
        openreview="C9653lXaFO",
    ),
    Method(
        "angpt",
        "networks",
        "Train a transformer without tuning weight decay and warm-up",
        "Learning in Compact Spaces with Approximately Normalized Transformer",
        arxiv="2505.22014",
    ),
    Method(
        "gradient-spikes",
        "networks",
        "See why and where a layer's gradient has low rank, and choose ranks",
        "Low Rank Gradients and Where to Find Them",
        arxiv="2510.01303",
    ),
    Method(
        "strassen-attention",
        "networks",
        "Relate three tokens at once at sub-cubic cost",
        "Strassen Attention, Split VC Dimension and Compositionality in Transformers",
        arxiv="2501.19215",
    ),
    Method(
        "rsa-autonomous-rl",
        "control",
        "Learn to reach goals without a reset after every trial",
        "Robust and Scalable Autonomous Reinforcement Learning",
        openreview="5fK5s4df0r",
    ),
    Method(
        "aeolus-flights",
        "flights",
        "Build leakage-free flight-delay data as table, chains and network",
        "Aeolus: A Multi-structural Flight Delay Dataset",
        arxiv="2510.26616",
    ),
    Method(
        "social-impact",
        "impact",
        "Record, review and evaluate what a deployed system changed",
        "Fostering the Ecosystem of AI for Social Impact Requires Expanding and Strengthening Evaluation Standards",
        arxiv="2510.18238",
    ),
)


# Checks that rooms have of their own, beside those of the methods: name, room, module.
ROOM_CHECKS: dict[str, tuple[str, str]] = {"group-fairness": ("decisions", "touchstone.decisions.group_fairness")}


def check_of(name: str) -> tuple[str, ModuleType]:
    """Room and module of the check that a plan calls ``name``; raises :class:`InputError` if there is none."""
    if name in ROOM_CHECKS:
        room, place = ROOM_CHECKS[name]
        return room, import_module(place)
    record = method(name)
    return record.room, record.part("check")


def method(slug: str) -> Method:
    """The record of ``slug``; raises :class:`InputError` if there is none, with the nearest name."""
    for record in METHODS:
        if record.slug == slug:
            return record
    from difflib import get_close_matches

    near = get_close_matches(slug, [record.slug for record in METHODS], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "; see `touchstone methods`"
    raise InputError(f"method {slug!r}: unknown{hint}")


def offering(part: Part) -> list[Method]:
    """All methods of which ``part`` works today."""
    return [record for record in METHODS if part in record.offers]
