"""The threat report: what is hidden, what is not, what each protection does not stop, in Markdown for a reader."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from touchstone.language.loro.protection import Protected

__all__ = ["threat_report"]

_POLICY = {
    "weights_only": (
        "Inputs and outputs of layers are in plain sight. Whoever runs the untrusted side sees the correction of\n"
        "every layer, and computes its mask from as many inputs as the layer is wide. **This policy protects\n"
        "nothing from its user; it is for tests of accuracy and speed.**"
    ),
    "full": (
        "Inputs of layers are hidden by pads that are used once; outputs stay on the trusted side. Queries, keys\n"
        "and values are shuffled inside each head, which hides where a value stands and not how large it is:\n"
        "sorted sizes leak."
    ),
}


def threat_report(protected: Protected) -> str:
    """What a protected model hides and what it does not, as Markdown."""
    summary, config = protected.summary(), protected.config
    low, high = summary["predicted_error_of_spectral_attack"]
    rank = config.rank * config.terms
    lines = [
        "# Threat report",
        "",
        f"{summary['layers']} linear layers with {summary['masked_parameters']:,} weights are masked; the secret takes "
        f"{summary['secret_bytes'] if config.mask == 'lowrank' else 32:,} bytes.",
        "",
        "## What the untrusted side sees",
        "",
        _POLICY[config.policy],
        "",
        f"Not masked at all: {len(summary['plain_parameters'])} tensors (embeddings, norms, biases, tied heads).",
        "",
        "## What this does not stop",
        "",
    ]
    if config.mask == "lowrank":
        lines += [
            f"- **An attacker who has the public weights.** Masks have rank {rank} at most. Taking that rank away from",
            "  the difference to the public weights finds the private update with a relative error of",
            f"  {low:.2f} to {high:.2f} (0: all of it, 1: nothing), if the update is white. Layers that share factors",
            "  give away more together.",
            "- A larger rank raises that error and the cost in proportion; `rank_for` says what rank an error needs.",
        ]
    else:
        lines += [
            "- An attacker who knows the signs of a layer. Masks of full rank have no gap in their spectrum, but they",
            "  are as secret as the key alone.",
        ]
    lines += [
        "- Stealing by queries: whoever may ask the model can train another on its answers.",
        "- Side channels of the enclave: time, memory traffic, power.",
        "- In this process, or behind a pipe, nothing is protected from the machine's owner: an enclave has to hold",
        "  the trusted side.",
    ]
    return "\n".join(lines) + "\n"
