"""What a machine has for gpu-check: its GPU, compilers, CUDA toolkit, NCCL, torch, and the bundle."""
import ctypes
import functools
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from gpu_check.report import ENVIRONMENT, USAGE, Refusal

MAKE_BUNDLE = "run `tools/setup --bundle DIR` where there is a network and copy DIR here as .bundle"


def printed(command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20, check=False)
        return done.stdout.decode(errors="replace") if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        return ""


def first_line(command):
    return (printed(command).strip().splitlines() or [""])[0]


def find_gpu():
    """Name and compute capability of the first GPU, by the driver itself; empty without one."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        device, major, minor, name = ctypes.c_int(), ctypes.c_int(), ctypes.c_int(), ctypes.create_string_buffer(256)
        if (cuda.cuInit(0) != 0 or cuda.cuDeviceGet(ctypes.byref(device), 0) != 0 or
                cuda.cuDeviceGetAttribute(ctypes.byref(major), 75, device) != 0 or
                cuda.cuDeviceGetAttribute(ctypes.byref(minor), 76, device) != 0):
            return "", ""
        cuda.cuDeviceGetName(name, len(name), device)
        return name.value.decode(errors="replace"), f"{major.value}.{minor.value}"
    except (OSError, AttributeError):
        return "", ""


def find_nvcc(env):
    """Where gpu/gpu.cmake looks too."""
    folders = [env["PATH"]] + [env[key] + "/bin" for key in ("CUDA_HOME", "CUDA_PATH") if env.get(key)]
    return shutil.which("nvcc", path=":".join(folders + ["/usr/local/cuda/bin"]))


def find_nccl():
    """Of this Python's packages; elsewhere the tests find it by themselves."""
    try:
        found = importlib.util.find_spec("nvidia.nccl")
    except ImportError:
        return ""
    folders = (found.submodule_search_locations or []) if found else []
    return next((str(file) for file in (Path(folder) / "lib/libnccl.so.2" for folder in folders) if file.exists()), "")


@functools.cache
def find_torch():
    """Folder of the torch package that Python has, if that computes on GPUs; else why none does."""
    found = first_line(["python3", "-c", "import importlib.util as u; s = u.find_spec('torch'); "
                                         "print(s.submodule_search_locations[0] if s else '')"])
    if not found:
        return "", "python3 has no torch"
    return (found, "") if (Path(found) / "lib" / "libtorch_cuda.so").exists() else ("", f"{found} was built without CUDA")


def find_machine(env, nvcc):
    gpu, capability = find_gpu()
    version = subprocess.run([nvcc, "--version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False).stdout
    found = re.search(r"release ([\d.]+)", version.decode(errors="replace"))
    query = "driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max,clocks.max.memory"
    torch, no_torch = find_torch()
    return {"gpu": gpu or "none", "compute_capability": capability, "torch": torch or no_torch,
            "nvidia_smi": first_line(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]),
            "nvcc": f"{nvcc} {found.group(1) if found else ''}", "cxx": first_line([env.get("CXX", "c++"), "--version"]),
            "cpus": os.cpu_count(), "kernel": os.uname().release}


def missing_from(bundle):
    """Its files by the list that tools/setup left in it."""
    listed = bundle / ".penstock-bundle"
    return [name for name in listed.read_text().splitlines() if not (bundle / name).exists()] if listed.exists() else []


def require_tools(env, bundle):
    """What nothing can be done without, looked for before any time is spent."""
    if not shutil.which("cmake", path=env["PATH"]):
        raise Refusal(ENVIRONMENT, "cmake: not found on PATH", MAKE_BUNDLE)
    compilers = [env["CXX"]] if env.get("CXX") else ["c++", "g++", "clang++"]
    if not any(shutil.which(compiler, path=env["PATH"]) for compiler in compilers):
        raise Refusal(ENVIRONMENT, f"{' or '.join(compilers)}: not found on PATH",
                      "install a C++20 compiler (g++ 11 or newer), or name it in CXX")
    if bundle and not (bundle / "usr" / "include").is_dir():
        raise Refusal(USAGE, f"bundle {bundle}: {'has no usr/include' if bundle.is_dir() else 'there is no such folder'}",
                      MAKE_BUNDLE)
    missing = missing_from(bundle) if bundle else []
    if missing:
        raise Refusal(ENVIRONMENT, f"bundle {bundle}: lacks {missing[0]}" +
                      (f" and {len(missing) - 1} more files" if len(missing) > 1 else ""), MAKE_BUNDLE)
    nvcc = find_nvcc(env)
    if not nvcc:
        raise Refusal(ENVIRONMENT, "nvcc: not on PATH, in CUDA_HOME, CUDA_PATH or /usr/local/cuda",
                      "install the CUDA toolkit, 12.4 or newer, or name its folder in CUDA_HOME; tools/check tests all that "
                      "needs none")
    return nvcc
