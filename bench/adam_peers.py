"""Our AdamW pass against torch's fused AdamW and DeepSpeed's CPUAdam, on the same tensors, interleaved, medians of five.

Alone: fp32 in and out, 28 bytes a parameter. Mixed precision: their step needs passes of its own for the gradient (to
fp32, unscale and clip, norm) and for the 16-bit weight; ours is one pass, norm included.

usage: adam_peers.py build/lib/libpenstock_optim.so [--threads N] [--elements-millions N] [--json]
DeepSpeed is compared where it can be imported (with DS_ACCELERATOR=cpu); its operator is built before the first timing.
"""
import argparse
import concurrent.futures
import ctypes
import json
import os
import statistics
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch

parser = argparse.ArgumentParser()
parser.add_argument("library")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--elements-millions", type=int, default=144)
parser.add_argument("--repeats", type=int, default=5)
parser.add_argument("--json", action="store_true")
options = parser.parse_args()
n = options.elements_millions << 20
torch.set_num_threads(options.threads)


class Arrays(ctypes.Structure):
    _fields_ = [("elements", ctypes.c_uint64), ("master", ctypes.c_void_p), ("weight", ctypes.c_void_p),
                ("gradient", ctypes.c_void_p), ("momentum", ctypes.c_void_p), ("variance", ctypes.c_void_p),
                ("weight_dtype", ctypes.c_int), ("gradient_dtype", ctypes.c_int),
                ("gradient_square_sum", ctypes.c_void_p), ("gradient_scale", ctypes.c_float)]


class Rates(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in
                ("lr", "beta1", "beta2", "eps", "weight_decay", "momentum", "dampening", "lr_decay")]
    _fields_.append(("nesterov", ctypes.c_int))


library = ctypes.CDLL(options.library)
library.penstock_optim_isa.restype = ctypes.c_char_p
rates = Rates(lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01)
pool = concurrent.futures.ThreadPoolExecutor(options.threads)
steps = 0


def ours(p, m, v, g, w=None):
    """One step over contiguous parts, one per thread."""
    global steps
    steps += 1
    part = -(-n // options.threads // 65536) * 65536
    sums = (ctypes.c_double * options.threads)()

    def run(i):
        first, count = i * part, min(part, n - i * part)
        at = lambda tensor: tensor.data_ptr() + first * tensor.element_size()
        arrays = Arrays(count, at(p), None if w is None else at(w), at(g), at(m), at(v), 1, 0 if g.dtype == torch.float32
                        else 1, None if w is None else ctypes.addressof(sums) + 8 * i, 1.0 if w is None else 0.999)
        assert library.penstock_adamw(ctypes.byref(arrays), ctypes.byref(rates), ctypes.c_uint64(steps)) == 0

    list(pool.map(run, range(options.threads)))


def seconds(work):
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(case, mine, theirs, against, goal):
    mine(), theirs()
    pairs = [(seconds(theirs), seconds(mine)) for _ in range(options.repeats)]
    value, against_value = (statistics.median(x) / n * 1e9 for x in zip(*[(b, a) for a, b in pairs]))
    ratio = statistics.median(a / b for a, b in pairs)
    line = {"bench": "adam_peers", "case": f"{case}, {options.threads} threads", "value": round(value, 3),
            "unit": "ns/param", "against": against, "against_value": round(against_value, 3), "ratio": round(ratio, 3),
            "goal": goal}
    print(json.dumps(line) if options.json else
          f"{line['case']}: {value:.3f} ns/param, {against} {against_value:.3f}: {ratio:.2f} times, goal {goal}", flush=True)


p = torch.nn.Parameter(torch.randn(n) * 0.02)
p.grad = torch.randn(n) * 0.01
m, v = torch.zeros(n), torch.zeros(n)
g16, w16 = p.grad.bfloat16(), p.data.bfloat16()


def with_passes(step):
    def run():
        p.grad.copy_(g16)
        p.grad.mul_(0.999)
        p.grad.norm()
        step()
        w16.copy_(p.data)
    return run


def peer(name, step):
    compare("fp32 in and out", lambda: ours(p.data, m, v, p.grad), step, name, 1.0)
    compare("mixed precision with norm", lambda: ours(p.data, m, v, g16, w16), with_passes(step), name + " and its passes",
            2.0)


print(f"# kernels: {library.penstock_optim_isa().decode()}, torch {torch.__version__}, {n} elements", flush=True)
adamw = torch.optim.AdamW([p], lr=1e-3, fused=True)
peer("torch fused AdamW", adamw.step)
try:
    from deepspeed.ops.adam import DeepSpeedCPUAdam
except ImportError:
    print("# DeepSpeed is not installed: not compared")
else:
    del adamw
    cpu_adam = DeepSpeedCPUAdam([p], lr=1e-3, adamw_mode=True, weight_decay=0.01)
    peer("DeepSpeed CPUAdam", cpu_adam.step)
