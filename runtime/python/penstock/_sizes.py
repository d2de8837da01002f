"""Sizes as budgets name them."""

import re

from ._refusal import PenstockError

_UNITS = {"": 1, "B": 1}
for _power, _unit in enumerate("KMGT", 1):  # as the command reads them: 4G is 4GiB, and 4GB is less
    _UNITS |= {_unit: 1024**_power, _unit.lower(): 1024**_power, _unit + "iB": 1024**_power}
    _UNITS[("k" if _unit == "K" else _unit) + "B"] = 1000**_power


def bytes_of(budget):
    """4294967296, "4GiB" or "host=4GiB".

    >>> bytes_of("host=4GiB") == bytes_of("4GiB") == bytes_of("4G") == bytes_of("4g") == bytes_of(4 << 30)
    True
    >>> bytes_of("4GB") == bytes_of("4000000kB") == 4 * 10**9
    True
    >>> [unit for unit in ("kiB", "mB", "gB", "Gi", "KB", "PB") if unit in _UNITS]
    []
    """
    found = re.fullmatch(r"(?:host=)?(\d+(?:\.\d+)?) ?([a-zA-Z]*)", str(budget))
    size = round(float(found[1]) * _UNITS[found[2]]) if found and found[2] in _UNITS else 0
    if not 0 < size < 2**63:
        raise PenstockError(f"budget {budget!r}: a number of bytes or a size such as \"host=4GiB\" expected")
    return size
