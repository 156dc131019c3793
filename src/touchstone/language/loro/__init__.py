"""LoRO: run a private model on a device you do not trust, its weights masked, a small secret in an enclave.

>>> protected = protect(model.module)
>>> protected(input_ids=ids).logits
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from touchstone.lazy import exports

if TYPE_CHECKING:
    from touchstone.language.loro.enclave import InProcess as InProcess
    from touchstone.language.loro.enclave import Subprocess as Subprocess
    from touchstone.language.loro.pads import PadStore as PadStore
    from touchstone.language.loro.protection import LoROConfig as LoROConfig
    from touchstone.language.loro.protection import Protected as Protected
    from touchstone.language.loro.protection import protect as protect
    from touchstone.language.loro.spectrum import predicted_error as predicted_error
    from touchstone.language.loro.spectrum import rank_for as rank_for
    from touchstone.language.loro.spectrum import spectral_attack as spectral_attack

# Resolved on first use, so that importing the package loads neither torch nor transformers.
_EXPORTS = {
    "InProcess": "enclave",
    "LoROConfig": "protection",
    "PadStore": "pads",
    "Protected": "protection",
    "Subprocess": "enclave",
    "predicted_error": "spectrum",
    "protect": "protection",
    "rank_for": "spectrum",
    "spectral_attack": "spectrum",
}
__all__ = sorted(_EXPORTS)
__getattr__ = exports(__name__, _EXPORTS)
