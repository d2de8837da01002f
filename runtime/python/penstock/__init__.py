"""Penstock for PyTorch: optimizers whose state is larger than memory (penstock.optimizers), the plan of a step
(penstock.plan), the rates of drives (penstock.nvme), and the command's runs from Python (train, Run; what the command
refuses is raised as Refusal).

What is used is loaded when it is first named: preparing data needs neither torch nor the engine's library.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import nvme
    from ._refusal import PenstockError, Refusal
    from .optimizers import SGD, Adagrad, Adam, AdamW, Lion
    from .planning import plan
    from .run import Run, train

    __version__: str

__all__ = ["AdamW", "Adam", "Adagrad", "Lion", "SGD", "PenstockError", "Refusal", "Run", "nvme", "plan", "train"]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from ._library import text

        return text("penstock_version")
    if name in ("PenstockError", "Refusal"):
        from . import _refusal

        return getattr(_refusal, name)
    if name in ("Run", "train"):
        from . import run

        return getattr(run, name)
    if name == "plan":
        from .planning import plan

        return plan
    if name == "nvme":
        import importlib

        return importlib.import_module(".nvme", __name__)
    if name in __all__:
        from . import optimizers

        return getattr(optimizers, name)
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])
