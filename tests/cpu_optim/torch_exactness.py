"""Bit for bit against the installed torch: every optimizer over 100 steps, n a multiple of 16 and one that is not.

usage: torch_exactness.py LIBRARY. Prints one line per case and ends with 1 if a word differs, 77 if there is no torch.
torch's fused kernels are vectors of 16 with a scalar tail that rounds v once more, so the words of a tail (n mod 16)
are not compared; they follow the one rule that ours has for all n. Lion is not in torch: it is compared with the
operations of the paper's reference loop (mul_, add with alpha, sign_).
"""
import ctypes
import sys

try:
    import torch
except ImportError:
    print("SKIPPED: this Python has no torch")
    sys.exit(77)

STEPS = 100


class Arrays(ctypes.Structure):
    _fields_ = [("elements", ctypes.c_uint64), ("master", ctypes.c_void_p), ("weight", ctypes.c_void_p),
                ("gradient", ctypes.c_void_p), ("momentum", ctypes.c_void_p), ("variance", ctypes.c_void_p),
                ("weight_dtype", ctypes.c_int), ("gradient_dtype", ctypes.c_int), ("gradient_square_sum", ctypes.c_void_p),
                ("gradient_scale", ctypes.c_float)]


class Rates(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in
                ("lr", "beta1", "beta2", "eps", "weight_decay", "momentum", "dampening", "lr_decay")]
    _fields_.append(("nesterov", ctypes.c_int))


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr, betas, weight_decay):
        super().__init__(parameters, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                beta1, beta2 = group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(m.clone().mul_(beta1).add(p.grad, alpha=1 - beta1).sign_(), alpha=-group["lr"])
                m.mul_(beta2).add_(p.grad, alpha=1 - beta2)


def gradient(n, step, generator):
    """Magnitudes from 1e-12 to 1; every seventh step a third of them zero, and of these every second -0."""
    g = torch.randn(n, generator=generator) * 10 ** (torch.rand(n, generator=generator) * 12 - 12)
    if step % 7 == 0:
        g[::3] = 0
        g[::6] = -0.0
    return g


def words_different(ours, theirs, n):
    body = n - n % 16
    return int((ours[:body].view(torch.int32) != theirs[:body].view(torch.int32)).sum())


# By step, over and over: what there is of the momentum stays while it is 0.
MOMENTA = 0.0, 0.0, 0.9, 0.9, 0.0, 0.5


def compare(library, name, make, states, n, rates, momenta=()):
    generator = torch.Generator().manual_seed(20)
    start = torch.randn(n, generator=generator)
    start[::9], start[::18] = 0.0, -0.0  # and never a gradient but zero for some: signs of zeros are compared too
    never = torch.arange(n) % 27 == 0
    p, m, v = start.clone(), torch.zeros(n), torch.zeros(n)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = make([parameter])
    function = getattr(library, "penstock_" + name)
    for step in range(1, STEPS + 1):
        g = gradient(n, step, generator)
        g[never] = -0.0 if step % 2 else 0.0
        if momenta:
            rates.momentum = optimizer.param_groups[0]["momentum"] = momenta[step % len(momenta)]
        parameter.grad = g.clone()
        optimizer.step()
        arrays = Arrays(n, p.data_ptr(), None, g.data_ptr(), m.data_ptr(), v.data_ptr(), 0, 0, None, 1.0)
        if function(ctypes.byref(arrays), ctypes.byref(rates), ctypes.c_uint64(step)) != 0:
            raise SystemExit("penstock_" + name + " refuses its arguments")
    different = {"p": words_different(p, parameter.data, n)}
    for ours, theirs in states.items():
        state = optimizer.state[parameter].get(theirs)
        if state is not None:
            different[theirs] = words_different({"m": m, "v": v}[ours], state, n)
    return different


def cases():
    fused = dict(fused=True)
    optim = torch.optim
    adam_states = {"m": "exp_avg", "v": "exp_avg_sq"}
    for beta1, beta2, decay in ((0.9, 0.95, 0.1), (0.9, 0.999, 0.0), (0.4, 0.99, 0.01)):
        options = dict(lr=1e-3, betas=(beta1, beta2), eps=1e-8, weight_decay=decay, **fused)
        rates = Rates(lr=1e-3, beta1=beta1, beta2=beta2, eps=1e-8, weight_decay=decay)
        yield "adamw", lambda ps, o=options: optim.AdamW(ps, **o), adam_states, rates
        yield "adam", lambda ps, o=options: optim.Adam(ps, **o), adam_states, rates
    for decay, lr_decay in ((0.0, 0.0), (0.1, 0.01)):
        options = dict(lr=1e-2, lr_decay=lr_decay, weight_decay=decay, eps=1e-10, **fused)
        rates = Rates(lr=1e-2, eps=1e-10, weight_decay=decay, lr_decay=lr_decay)
        yield "adagrad", lambda ps, o=options: optim.Adagrad(ps, **o), {"v": "sum"}, rates
    for momentum, dampening, decay, nesterov in ((0.0, 0.0, 0.0, 0), (0.9, 0.1, 0.01, 0), (0.9, 0.0, 0.01, 1)):
        options = dict(lr=1e-2, momentum=momentum, dampening=dampening, weight_decay=decay, nesterov=bool(nesterov),
                       **fused)
        rates = Rates(lr=1e-2, momentum=momentum, dampening=dampening, weight_decay=decay, nesterov=nesterov)
        yield "sgd", lambda ps, o=options: optim.SGD(ps, **o), {"m": "momentum_buffer"}, rates
    yield ("sgd", lambda ps: optim.SGD(ps, lr=1e-2, weight_decay=0.01, **fused), {"m": "momentum_buffer"},
           Rates(lr=1e-2, weight_decay=0.01), MOMENTA)
    yield ("lion", lambda ps: Lion(ps, 1e-4, (0.9, 0.99), 0.1), {"m": "exp_avg"},
           Rates(lr=1e-4, beta1=0.9, beta2=0.99, weight_decay=0.1))


def main():
    library = ctypes.CDLL(sys.argv[1])
    library.penstock_optim_isa.restype = ctypes.c_char_p
    if not torch.backends.cpu.get_cpu_capability().startswith("AVX"):
        print("SKIPPED: torch runs its kernels for", torch.backends.cpu.get_cpu_capability(), "here, which do not fuse")
        sys.exit(77)
    torch.set_num_threads(1)  # torch cuts by threads, and every cut has a tail
    failed = False
    for isa in (b"scalar", b"sse2", b"avx2", b"avx512"):
        if library.penstock_optim_use_isa(isa) != 0:
            print(f"{isa.decode()}: not on this processor")
            continue
        # The slow ones show the same with fewer elements.
        for n in (1 << 12, 999) if isa in (b"scalar", b"sse2") else (1 << 16, 4099):
            for name, make, states, rates, *more in cases():
                different = compare(library, name, make, states, n, rates, *more)
                failed |= any(different.values())
                print(f"{isa.decode()} {name} torch {torch.__version__} n {n}, {STEPS} steps: words that differ {different}",
                      flush=True)
    sys.exit(1 if failed else 0)


main()
