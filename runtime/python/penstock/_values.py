"""Tensors' values as the engine reads and writes them: by address, one after another, in types that it knows."""

import torch

from . import _library as lib
from ._refusal import USAGE, PenstockError

DTYPES = {torch.float32: lib.FP32, torch.bfloat16: lib.BF16, torch.float16: lib.FP16}


def on_host(tensor):
    """The values, one after another, in memory that the engine can read. May be the tensor itself."""
    return in_a_row(tensor).cpu()


def in_a_row(tensor):
    """The same where the tensor is."""
    tensor = tensor.detach()
    if tensor.dtype not in DTYPES:
        tensor = tensor.float()
    return tensor.contiguous()


def check_memory(tensors):
    """Each tensor gets weights of its own, so none may lie where another does."""
    places = []
    for number, tensor in enumerate(tensors):
        if 0 in tensor.stride() and not tensor.is_contiguous():
            raise PenstockError(f"parameter {number} is expanded: several of its elements are one; a whole one expected")
        if tensor.is_contiguous():
            places.append((str(tensor.device), tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, number))
    places.sort()
    for (device, _, end, one), (other_device, begin, _, other) in zip(places, places[1:], strict=False):
        if device == other_device and begin < end:
            raise PenstockError(
                f"parameters {min(one, other)} and {max(one, other)} share memory; memory of its own expected for each",
                USAGE, "tie them, as one nn.Parameter in both places, or make a copy of one"
            )
