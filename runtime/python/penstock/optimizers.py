"""Optimizers for torch whose state rests in a store: the tiers are streamed in step().

    optimizer = penstock.AdamW(model.parameters(), lr=1e-4, store="/mnt/nvme0/run", budget="host=4GiB")

Everything else of the training loop stays as it is: gradients are in .grad, and zero_grad, clipping, accumulation,
GradScaler and schedulers work as with torch.optim. Masters are fp32, the weights are rounded from them. The store
survives kill -9: resume() goes on at its last step.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor
from typing_extensions import Unpack  # torch itself needs it

from ._arguments import Params, StoreOptions, epsilon, number, two_betas
from ._refusal import PenstockError
from ._tiered import Tiered


def _adam(group: dict[str, Any]) -> dict[str, float]:
    beta1, beta2 = two_betas(group)
    rates = {name: number(group, name) for name in ("lr", "weight_decay")}
    return dict(beta1=beta1, beta2=beta2, eps=epsilon(group), **rates)


class AdamW(Tiered):
    """torch.optim.AdamW, bit for bit on the CPU, with its state in `store`.

    >>> import torch
    >>> model = torch.nn.Linear(16, 16)
    >>> optimizer = AdamW(model.parameters(), lr=1e-3, store="run", budget="host=64MiB")
    >>> for step in range(optimizer.resume(), 3):
    ...     optimizer.zero_grad()
    ...     model(torch.ones(1, 16)).square().sum().backward()
    ...     optimizer.step()
    >>> optimizer.state_dict()["penstock"]["step"]
    3
    >>> optimizer.state[model.weight]["exp_avg"].shape
    torch.Size([16, 16])
    >>> optimizer.kept()  # state_dict() has named it
    [3]
    >>> optimizer.drop(3)
    >>> optimizer.close()
    >>> AdamW(model.parameters(), lr=1e-3, store="run", budget="host=64MiB").resume()  # another process goes on
    3

    params, lr, betas, eps (above 0), weight_decay: as torch's. Parameters are in float32, bfloat16 or float16, on the CPU or on
        CUDA devices, mixed as you like. (On a GPU this has not run yet; optimizer.state's moments come on the CPU.)
        foreach, fused and capturable are taken and mean nothing here; amsgrad and maximize are refused. optimizer.state[p]
        reads the store when you look and writes it when you write; parameters are known to it by place and shape.
    store: a folder, or several, one on each drive. Made in the first step, from the weights as they are then.
    budget: host memory that the engine may take: bytes or "host=4GiB". Of it up to 32 MiB, and at most a quarter for all,
        are pinned memory for each device that parameters are on.
    begin: when updates begin. "step": in step(). "backward": as soon as backward has finished a gradient, beside the
        rest of backward; step() publishes them, or does the step anew where gradients, rates or weights have changed.
        clip_grad_norm_ changes all of them where it strikes, which leaves nothing of the overlap: use clip_norm instead.
    accumulation: how many micro-batches make a step, for begin="backward". None: as many as in the last step. A hint:
        where it is wrong, the step is done in step().
    gradients: what becomes of .grad with begin="backward". "kept": it stays, and step() sees what was done to it. "taken":
        its memory is free as soon as the store has it, so that a backward never holds the gradients of the whole model;
        .grad then refuses whoever wants its values, and step() what would have to be done again (rates, weights or
        gradients that changed after backward). accumulation must be told, except by Accelerate and Trainer; clip by
        clip_norm (Trainer: max_grad_norm=0).
    weights: how edits of the weights by others are noticed. "version": as autograd does; "fingerprint": also those
        through .data, and of torch's fused optimizers on the CPU, for one more look at all weights a step. Edits of
        .grad are noticed always.
    state_dict: what state_dict() gives. "reference": the name of store and step, which takes space until drop(step);
        "full": torch's layout.
    existing: what becomes of a store that an earlier run has left. "refuse": the first step is refused, unless
        resume() or load_state_dict() came before it; "resume": its state is taken, and the weights as they are here;
        "replace": it is lost.
    threads: that update; 0: one for each processor.
    clip_norm: step() clips the gradients of all parameters together to this norm, as clip_grad_norm_ would, but for
        its norm's digits, which are a double's; .grad stays as it is. 0: it does not.
    durability: from when on a step survives a crash. "step": each at once; N: every N-th; "exit": the last, with
        close(), state_dict() or the interpreter's exit. What rests in host memory is written to the drives only then.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        **store: Unpack[StoreOptions],
    ) -> None:
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay), **store)

    _hypers = staticmethod(_adam)


class Adam(Tiered):
    """torch.optim.Adam. The rest as AdamW's.

    >>> import torch
    >>> model = torch.nn.Linear(16, 16)
    >>> optimizer = Adam(model.parameters(), store="adam", budget="host=64MiB")
    >>> model(torch.ones(1, 16)).sum().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        **store: Unpack[StoreOptions],
    ) -> None:
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay), **store)

    _hypers = staticmethod(_adam)


class Lion(Tiered):
    """Lion, as in its paper. The rest as AdamW's."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-4,
        betas: tuple[float | Tensor, float | Tensor] = (0.9, 0.99),
        weight_decay: float = 0,
        **store: Unpack[StoreOptions],
    ) -> None:
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay), **store)

    @staticmethod
    def _hypers(group: dict[str, Any]) -> dict[str, float]:
        return _adam({**group, "eps": 1e-8})


class Adagrad(Tiered):
    """torch.optim.Adagrad with initial_accumulator_value=0. The rest as AdamW's."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        eps: float = 1e-10,
        **store: Unpack[StoreOptions],
    ) -> None:
        super().__init__(params, dict(lr=lr, lr_decay=lr_decay, weight_decay=weight_decay, eps=eps), **store)

    @staticmethod
    def _hypers(group: dict[str, Any]) -> dict[str, float]:
        rates = {name: number(group, name) for name in ("lr", "lr_decay", "weight_decay")}
        return {**rates, "eps": epsilon(group)}


class SGD(Tiered):
    """torch.optim.SGD. The rest as AdamW's. Momentum that sets in after the first step is dampened at once, where torch
    leaves its first step undampened."""

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        **store: Unpack[StoreOptions],
    ) -> None:
        defaults = dict(lr=lr, momentum=momentum, dampening=dampening, weight_decay=weight_decay, nesterov=nesterov)
        super().__init__(params, defaults, **store)

    @staticmethod
    def _hypers(group: dict[str, Any]) -> dict[str, float]:
        rates = {name: number(group, name) for name in ("lr", "momentum", "weight_decay")}
        rates["dampening"] = number(group, "dampening", -math.inf)
        if group["nesterov"] and (rates["momentum"] == 0 or rates["dampening"] != 0):
            raise PenstockError("nesterov=True: a momentum, and no dampening, expected")
        return {**rates, "nesterov": bool(group["nesterov"])}
