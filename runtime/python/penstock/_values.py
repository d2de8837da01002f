"""Tensors' values as the engine reads and writes them: by address, one after another, in types that it knows."""

import torch

from . import _library as lib
from ._refusal import USAGE, PenstockError

DTYPES = {torch.float32: lib.FP32, torch.bfloat16: lib.BF16, torch.float16: lib.FP16}


def on_host(tensor):
    """The values, one after another, in memory that the engine can read. May be the tensor itself."""
    return in_a_row(tensor).cpu()


def is_plain(value):
    """A tensor whose values can be read."""
    kinds = torch.is_tensor(value) and value.layout == torch.strided and value.device.type in ("cpu", "cuda")
    return kinds and not (value.is_complex() or value.is_quantized or value.is_nested)


def kind_of(value):
    return f"{value.dtype}, {value.layout}, on {value.device}" if torch.is_tensor(value) else type(value).__name__


def in_a_row(tensor):
    """The same where the tensor is."""
    tensor = tensor.detach().resolve_neg()  # memory may have the values' negatives
    if tensor.dtype not in DTYPES:
        tensor = tensor.float()
    return tensor.contiguous()


def dtype_of(number, tensor):
    if tensor.dtype not in DTYPES:
        raise PenstockError(f"parameter {number} is of {tensor.dtype} now; float32, bfloat16 or float16 expected")
    return DTYPES[tensor.dtype]


def check_memory(tensors):
    """Each tensor gets weights of its own, so none may lie where another does, and none of its elements where another
    of its own does."""
    for number, tensor in enumerate(tensors):
        if _has_elements_twice(tensor):
            raise PenstockError(f"parameter {number} is expanded: several of its elements are one; a whole one expected")
    spans = sorted((str(tensor.device), *_span(tensor), number) for number, tensor in enumerate(tensors))
    cluster, device, end = [], "", 0  # those whose spans go on from one to the next
    for device_now, begin, end_now, number in [*spans, ("", 0, 0, None)]:
        if device_now != device or begin >= end:
            _check_cluster(tensors, cluster)
            cluster, device, end = [], device_now, 0
        cluster.append(number)
        end = max(end, end_now)


def _span(tensor):
    """Where the tensor's elements lie: from the first byte to the end of the last."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _has_elements_twice(tensor):
    if tensor.is_contiguous():
        return False
    reach = 1
    for stride, size in sorted((stride, size) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1):
        if stride < reach:  # perhaps; few tensors come here
            return _offsets(tensor).unique().numel() < tensor.numel()
        reach = stride * (size - 1) + reach
    return False


def _offsets(tensor):
    """Of its elements, from the first one, in elements."""
    offsets = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        offsets = (offsets[:, None] + torch.arange(size) * stride).view(-1)
    return offsets


def _check_cluster(tensors, numbers):
    """Spans may be within each other, as columns of one matrix are, and elements apart."""
    if len(numbers) < 2:
        return
    begin, end = min(_span(tensors[n])[0] for n in numbers), max(_span(tensors[n])[1] for n in numbers)
    owner = torch.zeros((end - begin) // 2 + 1, dtype=torch.int32)  # by two bytes: its number, from 1
    for number in numbers:
        tensor = tensors[number]
        first, wide = (tensor.data_ptr() - begin) // 2, tensor.element_size() // 2
        strides = [stride * wide for stride in tensor.stride()]
        mine = owner.as_strided([*tensor.shape, wide], [*strides, 1], first)
        if other := int(mine.max()):
            one, other = sorted((number, other - 1))
            raise PenstockError(
                f"parameters {one} and {other} share memory; memory of its own expected for each", USAGE,
                "tie them, as one nn.Parameter in both places, or make a copy of one"
            )
        mine.fill_(number + 1)
