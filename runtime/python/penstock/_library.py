"""libpenstock by ctypes: the structures and functions of penstock.h, and refusals as exceptions."""

import contextlib
import ctypes as c
import os
from pathlib import Path

from ._refusal import PenstockError


class Parameter(c.Structure):
    _fields_ = [
        ("name", c.c_char_p),
        ("elements", c.c_uint64),
        ("group", c.c_uint32),
        ("dtype", c.c_int),
        ("initial", c.c_void_p),
        ("weights_into", c.c_void_p),
        ("unit", c.c_uint32),
    ]


LOG = c.CFUNCTYPE(None, c.c_void_p, c.c_int, c.c_char_p)
INITIAL = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint32, c.c_uint64, c.c_uint64, c.c_void_p)
WEIGHTS_OUT = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_uint32, c.c_uint64, c.c_uint64, c.c_int, c.c_void_p)
OUT = c.c_void_p(-1).value  # PENSTOCK_WEIGHTS_OUT


class Options(c.Structure):
    _fields_ = [
        ("size", c.c_size_t),
        ("drives", c.POINTER(c.c_char_p)),
        ("drive_count", c.c_uint32),
        ("threads", c.c_uint32),
        ("host_bytes", c.c_uint64),
        ("optimizer", c.c_int),
        ("existing", c.c_int),
        ("durability", c.c_int),
        ("durable_every", c.c_uint32),
        ("micro_batches", c.c_uint32),
        ("skip_overflow", c.c_uint32),
        ("clip_norm", c.c_double),
        ("whole_steps", c.c_uint32),
        ("slots", c.c_uint32),
        ("initial", INITIAL),
        ("initial_context", c.c_void_p),
        ("log", LOG),
        ("log_context", c.c_void_p),
        ("initial_step", c.c_uint64),
        ("weights_out", WEIGHTS_OUT),
        ("weights_out_context", c.c_void_p),
        ("ranks_of_environment", c.c_uint32),
        ("sharing", c.c_int),
        ("hangs_after_s", c.c_double),
    ]


class Rates(c.Structure):
    _fields_ = [
        (name, c.c_double)
        for name in ("lr", "beta1", "beta2", "eps", "weight_decay", "momentum", "dampening", "lr_decay")
    ] + [("nesterov", c.c_int)]


class Report(c.Structure):
    _fields_ = [
        ("step", c.c_uint64),
        ("verdict", c.c_int),
        ("gradient_norm", c.c_double),
        ("clip_factor", c.c_double),
        ("wall_s", c.c_double),
        ("read_bytes", c.c_uint64),
        ("written_bytes", c.c_uint64),
    ]


class Statistics(c.Structure):
    _fields_ = [
        (name, c.c_uint64) for name in ("parameters", "elements", "host_bytes", "read_bytes", "written_bytes")
    ]


UNIT_AUTO = 0xFFFFFFFF
FP32, BF16, FP16 = range(3)
OPTIMIZERS = {"AdamW": 0, "Adam": 1, "Adagrad": 2, "Lion": 3, "SGD": 4}
EACH_STEP, EVERY, AT_EXIT = range(3)
OPEN_OR_CREATE, OPEN, CREATE, REPLACE = range(4)
WEIGHT, MOMENTUM, VARIANCE = range(3)

_ENGINE = c.c_void_p
_SIGNATURES = {
    "penstock_open": [c.POINTER(Options), c.POINTER(Parameter), c.c_uint32, c.POINTER(_ENGINE)],
    "penstock_close": [_ENGINE],
    "penstock_begin": [_ENGINE, c.POINTER(Rates), c.c_uint32, c.c_uint32, c.c_double],
    "penstock_gradient": [_ENGINE, c.c_uint32, c.c_uint32, c.c_int, c.c_void_p],
    "penstock_gradient_part": [_ENGINE, c.c_uint32, c.c_uint32, c.c_uint64, c.c_uint64, c.c_int, c.c_void_p],
    "penstock_absent": [_ENGINE, c.c_uint32],
    "penstock_publish": [_ENGINE],
    "penstock_step": [_ENGINE, c.c_char_p, c.c_size_t, c.POINTER(Report)],
    "penstock_discard": [_ENGINE],
    "penstock_read": [_ENGINE, c.c_uint32, c.c_int, c.c_uint64, c.c_uint64, c.c_int, c.c_void_p],
    "penstock_write": [_ENGINE, c.c_uint32, c.c_int, c.c_uint64, c.c_uint64, c.c_int, c.c_void_p],
    "penstock_begin_writes": [_ENGINE],
    "penstock_end_writes": [_ENGINE],
    "penstock_adopt": [
        _ENGINE, c.c_uint32, c.c_uint64, c.c_uint64, c.c_int, c.c_void_p, c.POINTER(c.c_uint64)
    ],
    "penstock_count": [_ENGINE, c.c_uint32, c.POINTER(c.c_uint64)],
    "penstock_set_count": [_ENGINE, c.c_uint32, c.c_uint64],
    "penstock_set_weights_into": [_ENGINE, c.c_uint32, c.c_int, c.c_void_p],
    "penstock_settle": [_ENGINE],
    "penstock_keep": [_ENGINE, c.POINTER(c.c_uint64)],
    "penstock_kept": [_ENGINE, c.POINTER(c.c_uint64), c.c_size_t, c.POINTER(c.c_size_t)],
    "penstock_mark": [_ENGINE, c.c_uint64, c.POINTER(c.c_uint64)],
    "penstock_roll_back": [_ENGINE, c.c_uint64],
    "penstock_drop": [_ENGINE, c.c_uint64],
    "penstock_get_statistics": [_ENGINE, c.POINTER(Statistics)],
    "penstock_steps": [_ENGINE, c.POINTER(c.c_uint64)],
}
_TEXTS = {
    "penstock_message": [],
    "penstock_remedy": [],
    "penstock_version": [],
    "penstock_store_id": [_ENGINE],
    "penstock_description": [_ENGINE],
}


def _find():
    """Beside this file, as pip installs it; where PENSTOCK_LIBRARY says; or installed in the system."""
    if named := os.environ.get("PENSTOCK_LIBRARY"):
        return named
    beside = sorted(Path(__file__).parent.glob("libpenstock.so*"))
    return str(beside[0]) if beside else "libpenstock.so.0"


def _load():
    path = _find()
    try:
        library = c.CDLL(path)
    except OSError as error:
        remedy = "install the package with pip, or name the library in PENSTOCK_LIBRARY"
        if not str(error).startswith(path):  # one that it needs
            remedy = "on Debian and Ubuntu `apt-get install liburing2 libaio1 libtbb12` brings what it needs"
        raise ImportError(f"penstock: {error}; {remedy}") from None
    for name, arguments in _SIGNATURES.items():
        getattr(library, name).argtypes = arguments
    for name, arguments in _TEXTS.items():
        getattr(library, name).argtypes = arguments
        getattr(library, name).restype = c.c_char_p
    return library


_library = _load()


# The command's and C's, for what is an argument here.
_WORDS_OF_REMEDIES = {"--force": 'existing="replace"', "raise host_bytes ": 'raise budget="host=..." '}


_held_back = []  # interrupts


@contextlib.contextmanager
def holding_back_interrupts():
    """In a callback, through which no exception passes: an interrupt is raised when the verb is over."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        _held_back.append(interrupt)


def call(name, *arguments):
    """A verb of penstock.h; a refusal is raised, and an interrupt that was held back."""
    if code := getattr(_library, name)(*arguments) or _held_back:
        _raise(code)


def _raise(code):
    if _held_back:
        interrupt = _held_back[0]
        _held_back.clear()
        raise interrupt
    remedy = _library.penstock_remedy().decode()
    for theirs, ours in _WORDS_OF_REMEDIES.items():
        remedy = remedy.replace(theirs, ours)
    raise PenstockError(_library.penstock_message().decode(), code, remedy)


def text(name, *arguments):
    return getattr(_library, name)(*arguments).decode()
