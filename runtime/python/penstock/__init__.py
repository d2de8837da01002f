"""Penstock for PyTorch: optimizers whose state is larger than memory. See penstock.optimizers."""

from ._library import PenstockError, text as _text
from .optimizers import SGD, Adagrad, Adam, AdamW, Lion

__all__ = ["AdamW", "Adam", "Adagrad", "Lion", "SGD", "PenstockError"]
__version__ = _text("penstock_version")
