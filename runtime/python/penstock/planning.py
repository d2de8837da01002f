"""`penstock plan` as a dictionary."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from . import _command


def plan(
    model: str | os.PathLike[str] | None = None,
    *,
    params: float | str | None = None,
    layers: int | None = None,
    hidden: int | None = None,
    heads: int | None = None,
    kv_heads: int | None = None,
    ffn: int | None = None,
    vocab: int | None = None,
    machine: str | os.PathLike[str] | None = None,
    budget: str | Mapping[str, str | int | None] | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
    stage: Literal["auto", "0", "1", "2", "3", "hybrid"] | int | None = None,
    network: float | None = None,
    quantized_weights: bool = False,
    quantized_gradients: bool = False,
    flops: float | None = None,
    host_gbps: float | None = None,
    tokens: int | str | None = None,
    seq: int | str | None = None,
    micro_batches: int | None = None,
    optimizer: Literal["adamw", "adam", "adagrad", "lion", "sgd"] | None = None,
    moments: Literal["fp32", "bf16", "int8"] | None = None,
    activations: Literal["keep", "recompute", "offload", "recompute-offload", "auto"] | None = None,
    clip: bool | Literal["on", "off"] | None = None,
    strike_share: float | None = None,
    durability: str | None = None,
    space: Literal["double", "single"] | None = None,
    lora_rank: int | None = None,
    base: Literal["bf16", "int8", "nf4"] | None = None,
    update_only: bool = False,
    advise: bool = False,
    step_time: str | None = None,
    drive_life: int | str | None = None,
) -> dict[str, Any]:
    """Whether a model fits, how long a step takes and what limits it: the keys of `penstock plan --json`, and its
    options by their names. What does not fit is an answer, too: "fits" is False, and "needed_bytes" says what it needs.

    model: a Hugging Face config.json, or a name such as "llama-2-7b"; instead of it sizes, by params and layers.
    machine: a profile that penstock.nvme.probe() has written, or a shipped one; None: this machine's.
    budget: "host=64GiB", or a dictionary by tier.
    ranks, nodes: of each node, and how many nodes; stage: what they share, by ZeRO; network: GB/s between nodes.
    quantized_weights, quantized_gradients: ranks send these in int8 and int4; "codes" has what that saves.

    >>> found = plan(params=7e9, machine="rtx4090-2gen4", budget={"host": "64GiB", "device": "16GiB"})
    >>> found["fits"], found["bottleneck"]
    (True, 'compute')
    >>> sorted(found["needed_bytes"])
    ['device', 'host', 'nvme']
    >>> round(found["bytes_per_parameter"]["written"])
    12
    >>> plan(params=7e9, machine="rtx4090-2gen4", budget="host=1GiB")["fits"]
    False
    """
    return _command.answer("plan", **locals())
