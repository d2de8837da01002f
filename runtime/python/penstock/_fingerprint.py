"""What a tensor's values add up to, as its bits: how writes are noticed that autograd counts no version for."""

from __future__ import annotations

import torch

_RUN = 1 << 16
_weights: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}


def fingerprint(tensor):
    """Changes with every element, and where elements change places. By chance it is the same once in 2^32, or in 2^16
    for 16-bit values.

    >>> a = torch.arange(100_000.0)
    >>> len({fingerprint(a), fingerprint(a.flip(0)), fingerprint(-a), fingerprint(a.bfloat16())})
    4
    """
    bits = _bits(tensor.detach().contiguous()).view(-1)
    weights = _weights_of(bits)
    runs = ((_folded(run), weights[: run.numel()]) for run in bits.split(_RUN))
    if bits.device.type == "cpu":
        return hash(tuple(int(torch.dot(run, by)) for run, by in runs))
    return hash(tuple(int((run * by).sum(dtype=bits.dtype)) for run, by in runs))


def sums(tensor):
    """Two sums that a scale, a sign or a bound applied to the values changes; quicker than fingerprint(). A tensor, so
    that a device need not be waited for."""
    values = tensor.detach()
    return torch.stack([_bits(values).sum(dtype=torch.int32).double(), values.sum(dtype=torch.float32).double()])


def _bits(values):
    return values.view({8: torch.int64, 4: torch.int32, 2: torch.int16}[values.element_size()])


def _folded(bits):
    """Each value as another, its upper half also in its lower: a sum of weighted upper bits alone would lose them where
    an even number of them changes, as all signs."""
    width = 8 * bits.element_size()
    shift = width // 2 - 1
    return bits ^ ((bits >> shift) & ((1 << (width - shift)) - 1))


def _weights_of(bits):
    """Odd, so that no change of one element is lost."""
    place = bits.dtype, bits.device
    if place not in _weights:
        drawn = torch.randint(-(1 << 15), 1 << 15, (2, _RUN), generator=torch.Generator().manual_seed(1))
        wide = drawn[0] * (1 << 16) + drawn[1] if bits.element_size() > 2 else drawn[1]
        _weights[place] = (wide | 1).to(bits.dtype).to(bits.device)
    return _weights[place]
