#!/usr/bin/env python3
"""Do the jobs of `penstock nvme bench --emit-fio` do in fio what ours do, and at our rates?

Twelve shapes: patterns, read shares, block sizes, depths, engines, one and two folders, sizes. Each is measured by
`penstock nvme bench`, whose job file is then run in fio as it is; on paper both are bound by the drive, so that rates differ
by what a drive does from one second to the next. Engine, block size, depth and bytes of the files are compared too.

Usage: bench/fio_jobs.py PENSTOCK FOLDER [FOLDER...] [--seconds 2] [--size 256MiB] [--turns 5] [--within 0.05]
A figure is the median ratio of ours to fio's, ours and theirs in turns. With --within, one that is further from 1 ends with 1.
Beside other work the ratios say nothing: the load stands above the table.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SHAPES = [  # pattern, read share, block, depth, engine, folders
    ("sequential", "1", "1MiB", 8, "auto", 1), ("sequential", "0", "1MiB", 8, "auto", 1), ("sequential", "0.5", "1MiB", 8, "auto", 1),
    ("sequential", "1", "128KiB", 32, "io_uring", 1), ("sequential", "0.25", "4MiB", 4, "io_uring", 1),
    ("random", "1", "4KiB", 32, "io_uring", 1), ("random", "0", "16KiB", 16, "io_uring", 1), ("random", "0.75", "64KiB", 1, "io_uring", 1),
    ("sequential", "1", "1MiB", 8, "libaio", 1), ("random", "0", "256KiB", 4, "libaio", 1),
    ("sequential", "0", "1MiB", 8, "threads", 1), ("sequential", "0.5", "2MiB", 4, "auto", 2),
]
ENGINES = {"auto": "io_uring", "io_uring": "io_uring", "libaio": "libaio", "threads": "psync"}
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}


def bytes_of(size):
    return int(size[:-3]) * UNITS[size[-3:]]


def ours(options, shape, folders, job):
    pattern, share, block, depth, engine, _ = shape
    ran = subprocess.run([options.penstock, "nvme", "bench", *folders, "--pattern", pattern, "--read-share", share, "--block", block, "--depth",
                          str(depth), "--engine", engine, "--size", options.size, "--duration", f"{options.seconds * 1000:.0f}ms", "--emit-fio",
                          job, "--force", "--json"], capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(ran.stderr)
    return json.loads(ran.stdout)["results"][0]["gbps"]


def theirs(job):
    # As the job's first lines say: ours lie in 2 MiB pages too.
    ran = subprocess.run(["fio", "--output-format=json", job], capture_output=True, text=True, check=False,
                         env={**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"})
    if ran.returncode:
        sys.exit(f"fio refuses {job}:\n{job.read_text()}\n{ran.stderr}{ran.stdout}")
    answer = json.loads(ran.stdout[ran.stdout.index("{"):])
    total, runtime = 0, 0
    for one in answer["jobs"]:
        if one["error"]:
            sys.exit(f"fio: error {one['error']}")
        total += one["read"]["io_bytes"] + one["write"]["io_bytes"]
        runtime = max(runtime, one["read"]["runtime"], one["write"]["runtime"])
    return total / runtime / 1e6, answer


def differences(options, shape, folders, answer, job):
    """Of what fio was told from what was asked."""
    _, share, block, depth, engine, _ = shape
    said = {**answer["global options"], **answer["jobs"][0]["job options"]}
    wanted = {"ioengine": ENGINES[engine], "bs": str(bytes_of(block)), "direct": "1", **({"numjobs": str(depth), "iodepth": "1"} if engine == "threads" else {"iodepth": str(depth)})}
    wrong = [f"{key}={said.get(key)}, {value} expected" for key, value in wanted.items() if said.get(key) != value]
    if 0 < float(share) < 1 and said.get("rwmixread") != f"{float(share) * 100:.0f}":
        wrong.append(f"rwmixread={said.get('rwmixread')}")
    for folder in folders:
        made = [path.stat().st_size for path in Path(folder).iterdir() if path.name.startswith("penstock-fio")]
        if made != [bytes_of(options.size)]:
            wrong.append(f"{folder}: files of {made} B, {options.size} expected")
    if job.read_text().count("filename=") != len(folders):
        wrong.append("not a job for each drive")
    return wrong


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("penstock")
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--size", default="256MiB")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--within", type=float)
    options = parser.parse_args()
    if shutil.which("fio") is None:
        print("skipped: fio is not installed (tools/setup --checks installs it)")
        return 77
    wrong = 0
    print(f"load {os.getloadavg()[0]:.1f}\n{'folder':24} {'shape':52} ours/fio   from     to  ours GB/s   fio GB/s")
    for root in options.folders:
        for shape in SHAPES:
            with tempfile.TemporaryDirectory(dir=root, prefix="fio-jobs-") as place:
                folders = [Path(place) / str(number) for number in range(shape[5])]
                for folder in folders:
                    folder.mkdir()
                job = Path(place) / "job.fio"
                pairs = []
                for _ in range(options.turns):
                    here = ours(options, shape, folders, job)
                    there, answer = theirs(job)
                    pairs.append((here, there))
                    different = differences(options, shape, folders, answer, job)
                    for folder in folders:
                        (folder / "penstock-fio.0").unlink()
            ratios = [here / there for here, there in pairs]
            ratio = statistics.median(ratios)
            name = f"{shape[0]} {shape[1]} read {shape[2]} depth {shape[3]} {shape[4]} on {shape[5]}"
            print(f"{root:24} {name:52} {ratio:8.3f} {min(ratios):6.3f} {max(ratios):6.3f} {statistics.median(p[0] for p in pairs):10.2f} "
                  f"{statistics.median(p[1] for p in pairs):10.2f}{'  ' if different else ''}{'; '.join(different)}", flush=True)
            wrong += bool(different) or (options.within is not None and abs(ratio - 1) > options.within)
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
