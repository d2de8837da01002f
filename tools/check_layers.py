#!/usr/bin/env python3
"""Checks that includes follow the arrows of the design, and that tiering decides without acting.

                 runtime
       +------------+------------+
      aio          gpu       cpu_optim      strangers to one another
       +------------+------------+
                 tiering                    no system calls, no CUDA, starts no threads
       +------------+------------+
      plan        store      arithmetic     tiering's floors: strangers but that all may compute
                 words                      its first floor, which needs none of them

     bench   tests   tools                  may use everything; nothing uses them

Usage: check_layers.py [ROOT]. Prints each breach as FILE:LINE and ends with 1 if there is any.
"""
import re
import sys
from pathlib import Path

WORDS = {"tiering", "tiering/arithmetic"}
TIERING = WORDS | {"tiering/plan", "tiering/store"}
MECHANISMS = {"aio", "aio/store", "cpu_optim", "gpu"}
MAY_INCLUDE = {
    "tiering": {"tiering"},
    "tiering/arithmetic": WORDS,
    "tiering/plan": WORDS | {"tiering/plan"},
    "tiering/store": WORDS | {"tiering/store"},
    "aio": {"aio"} | WORDS,
    "aio/store": {"aio", "aio/store", "tiering/store"} | WORDS,
    "cpu_optim": {"cpu_optim"} | WORDS,
    "gpu": {"gpu"} | WORDS,
    "runtime/engine": {"runtime/engine"} | MECHANISMS | TIERING,
    "runtime/trainer": {"runtime/trainer", "runtime/engine"} | MECHANISMS | TIERING,
    "runtime/python": {"runtime/python", "runtime/engine"} | MECHANISMS | TIERING,
}
EVERYTHING = set(MAY_INCLUDE) | {"bench", "tests", "tools"}
MAY_INCLUDE |= {folder: EVERYTHING for folder in ("bench", "tests", "tools")}

# Outside headers that would let a folder do what is not its business.
SYSTEM = r"unistd\.h|fcntl\.h|sys/.*|linux/.*|pthread\.h|sched\.h|signal\.h|dlfcn\.h"
THREADS = r"thread|mutex|shared_mutex|condition_variable|future|stop_token|semaphore|latch|barrier|execution|tbb/.*|oneapi/.*"
FILES = r"fstream|filesystem|iostream|liburing.*|libaio.*"
CUDA = r"cuda.*|nccl.*|cub/.*|thrust/.*"
TORCH = r"torch/.*|ATen/.*|c10/.*"
FORBIDDEN = {
    "tiering": "|".join((SYSTEM, THREADS, FILES, CUDA, TORCH)),
    "aio": "|".join((CUDA, TORCH)),
    "cpu_optim": "|".join((CUDA, TORCH, r"liburing.*|libaio.*")),
    "gpu": "|".join((TORCH, r"liburing.*|libaio.*")),
    "runtime/engine": TORCH,
}

# Lie in one folder where they are installed, and there name one another without it.
INSTALLED = {
    "runtime/engine/penstock.h",
    "runtime/engine/penstock.hpp",
    "runtime/engine/penstock_version.h",
    "cpu_optim/penstock_optim.h",
}

SOURCES = {".h", ".hpp", ".c", ".cc", ".cpp", ".cu", ".cuh", ".inl"}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def folder_of(path: str):
    """The layer that a path from the root belongs to; None for what is not ours."""
    return max((folder for folder in MAY_INCLUDE if path.startswith(folder + "/")), key=len, default=None)


def forbidden_to(layer: str):
    """What a floor of a layer must not use is what the layer must not."""
    return FORBIDDEN.get(layer) or FORBIDDEN.get(layer.split("/")[0], "$^")


def breach(source: str, included: str, quoted: bool):
    """Why `source` may not include `included`; None if it may."""
    layer = folder_of(source)
    target = folder_of(included)
    if target is None:
        if source in INSTALLED and included in {Path(header).name for header in INSTALLED}:
            return None
        if quoted and "/" not in included:
            return f'"{included}" does not name its folder'
        if re.fullmatch(forbidden_to(layer), included):
            return f"{layer} does not use <{included}>"
        return None
    if target not in MAY_INCLUDE[layer]:
        return f"{layer} may not include {target} ({included})"
    return None


def breaches(root: Path):
    for folder in sorted(MAY_INCLUDE):
        for path in sorted((root / folder).rglob("*")):
            source = path.relative_to(root).as_posix()
            if path.suffix not in SOURCES or folder_of(source) != folder:
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                match = INCLUDE.match(line)
                why = match and breach(source, match[2], match[1] == '"')
                if why:
                    yield f"{source}:{number}: {why}"


def main():
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    if not (root / "tiering").is_dir():
        sys.exit(f"check_layers: {root}: has no tiering folder")
    found = list(breaches(root))
    print("\n".join(found) if found else "every include follows the arrows")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
