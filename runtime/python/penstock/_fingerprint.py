"""What a tensor's values add up to, as its bits: how writes are noticed that autograd counts no version for."""

from __future__ import annotations

import torch
from torch.multiprocessing.reductions import StorageWeakRef

_RUN = 1 << 16
# Whole words of any dtype. Rows of the one that change places are in the other's same columns only 509 rows apart.
_ROW, _COLUMNS = 1024, 4 * 509
_drawn: dict[tuple[int, torch.device], torch.Tensor] = {}
_weights: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}


class Storages:
    """How many storages tensors have had. Addresses would not tell: memory that was given back comes again at the same
    one. Storage that is resized in place stays the same."""

    def __init__(self):
        self._of = {}

    def count(self, number, tensor):
        storage = tensor.untyped_storage()
        last, count = self._of.get(number, (None, 0))
        if last is None or last.cdata != storage._cdata:  # which no other storage has while a reference is held
            count += 1
            self._of[number] = StorageWeakRef(storage), count
        return count


def fingerprint(tensor):
    """Changes with every element, and where elements change places. By chance it is the same once in 2^32, or in 2^16
    for 16-bit values.

    >>> a = torch.arange(100_000.0)
    >>> len({fingerprint(a), fingerprint(a.flip(0)), fingerprint(-a), fingerprint(a.bfloat16())})
    4
    """
    bits = _bits(tensor.detach().resolve_neg().contiguous()).view(-1)
    weights = _weights_of(bits)
    runs = ((_folded(run), weights[: run.numel()]) for run in bits.split(_RUN))
    if bits.device.type == "cpu":
        return hash(tuple(int(torch.dot(run, by)) for run, by in runs))
    return hash(tuple(int((run * by).sum(dtype=bits.dtype)) for run, by in runs))


def sums(tensor):
    """What its bits add up to by rows, and by columns of rows of another length, the last few and some others as they
    are. As good as fingerprint() for whatever changes values or their places, and quicker. A tensor, so
    that a device need not be waited for.

    >>> a = torch.randn(5000)
    >>> after = a * 1.0, a.flip(0), -a, a * 0.5, a.clamp(-1, 1), torch.cat([a[1:], a[:1]])
    >>> [torch.equal(sums(a), sums(one)) for one in after]
    [True, False, False, False, False, False]

    Rows that change places, and add up to the same:

    >>> b = torch.zeros(4, 1024)
    >>> b[0, 0] = b[1, 2] = 1
    >>> torch.equal(sums(b), sums(b[[1, 0, 2, 3]]))
    False
    """
    values = tensor.detach().resolve_neg()
    if not values.is_contiguous() or values.storage_offset() * values.element_size() % 8:
        values = values.clone(memory_format=torch.contiguous_format)
    values = values.view(-1)
    by_rows, last = _table(values, _ROW)
    by_columns, last_of_columns = _table(values, _COLUMNS)
    some = values[_some_of(values)]
    few = (_bits(as_they_are).long() for as_they_are in (last, last_of_columns, some))
    return torch.cat([by_rows.sum(1), by_columns.sum(0), *few])


def _table(values, row):
    whole = values.numel() // row * row
    return values[:whole].view(-1, row).view(torch.int64), values[whole:]


def _some_of(values):
    """Places drawn by chance: changes that sums balance, as all signs of as many of each, are seen there."""
    place = values.numel(), values.device
    if place not in _drawn:
        drawn = torch.randint(values.numel(), (min(64, values.numel()),), generator=_generator(2), device="cpu")
        _drawn[place] = drawn.to(values.device)
    return _drawn[place]


def _generator(seed):
    return torch.Generator(device="cpu").manual_seed(seed)


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
        drawn = torch.randint(-(1 << 15), 1 << 15, (2, _RUN), generator=_generator(1), device="cpu")
        wide = drawn[0] * (1 << 16) + drawn[1] if bits.element_size() > 2 else drawn[1]
        _weights[place] = (wide | 1).to(bits.dtype).to(bits.device)
    return _weights[place]
