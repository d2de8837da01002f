"""Penstock for PyTorch: optimizers whose state is larger than memory. See penstock.optimizers.

What is used is loaded when it is first named: preparing data needs neither torch nor the engine's library.
"""

__all__ = ["AdamW", "Adam", "Adagrad", "Lion", "SGD", "PenstockError"]


def __getattr__(name):
    if name == "PenstockError":
        from ._library import PenstockError

        return PenstockError
    if name == "__version__":
        from ._library import text

        return text("penstock_version")
    if name in __all__:
        from . import optimizers

        return getattr(optimizers, name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *__all__, "__version__"])
