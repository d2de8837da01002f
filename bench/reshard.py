#!/usr/bin/env python3
"""What does `penstock checkpoint reshard` cost beside a copy of the same bytes, and how much memory does it take?

Estimate: a reshard reads every byte of one slot a tile and writes it once, 16 MiB under way each way, and hashes it
twice at 10 GB/s and more. A drive of 1 to 3 GB/s is far below that, so it should run at the drive's rate of copying:
direct I/O, reads and writes of 1 MiB, 16 at a time. Memory: 64 MiB that opening takes, 36 MiB of windows, the program.

    python3 bench/reshard.py build/bin/penstock FOLDER            # GPT-2 124M, 4 -> 2 -> 3 -> 1, 5 GB of disk
    python3 bench/reshard.py build/bin/penstock FOLDER --quick    # a model of 1M

Copies and reshards take turns; each line has both rates and their ratio. Fails over 300 MB of memory.
"""
import argparse
import json
import mmap
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

BLOCK, AT_ONCE, MEMORY_AT_MOST = 1 << 20, 16, 300e6


def copy(sources, target):
    """Seconds for `sources` (path, bytes) one behind the other into a new file, direct, and its flush."""
    total = sum(size for _, size in sources)
    files = [os.open(path, os.O_RDONLY | os.O_DIRECT) for path, _ in sources]
    jobs, at = [], 0
    for file, (_, size) in zip(files, sources):
        jobs += [(file, begin, at + begin, min(BLOCK, size - begin)) for begin in range(0, size, BLOCK)]
        at += size
    began = time.monotonic()
    into = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT, 0o600)
    os.posix_fallocate(into, 0, total)
    buffers = [mmap.mmap(-1, BLOCK) for _ in range(AT_ONCE)]

    def work(buffer):
        while True:
            try:
                file, begin, to, size = jobs.pop()
            except IndexError:
                return
            view = memoryview(buffer)[:size]
            assert os.preadv(file, [view], begin) == size and os.pwritev(into, [view], to) == size

    jobs.reverse()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(work, buffers))
    os.fsync(into)
    seconds = time.monotonic() - began
    for file in files + [into]:
        os.close(file)
    os.unlink(target)
    return total, seconds


def reshard(penstock, source, target, ranks):
    run = subprocess.Popen([penstock, "checkpoint", "reshard", source, target, "--ranks", str(ranks), "--json"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    answer = json.load(run.stdout)
    _, how, usage = os.wait4(run.pid, 0)
    run.returncode = os.waitstatus_to_exitcode(how)
    assert run.returncode == 0, answer
    return answer["written_bytes"], answer["seconds"], usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("penstock", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--times", type=int, default=3)
    options = parser.parse_args()
    options.penstock = options.penstock.resolve()
    place = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        gpt2 = {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 4096} if options.quick else \
            {"n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
        (place / "model.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_positions": 64, **gpt2}))
        (place / "run.json").write_text(json.dumps({
            "model": str(place / "model.json"), "sequence_length": 16, "max_steps": 1, "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1, "penstock": {"stores": [str(place / "4")], "host_budget": "6GiB"}}))
        subprocess.run([options.penstock, "train", place / "run.json", "--ranks", "4"], check=True, capture_output=True)
        ratios, most = [], 0
        for _ in range(1 if options.quick else options.times):
            for source, target in ((4, 2), (2, 3), (3, 1)):
                # Of a store the first slots of all tiles, the half of its file, are what one reshard moves, or nearly.
                files = [(path, path.stat().st_size // 2 // BLOCK * BLOCK) for path in sorted((place / str(source)).iterdir())]
                copied, copy_s = copy(files, place / "copy")
                written, reshard_s, memory = reshard(options.penstock, place / str(source), place / str(target), target)
                copy_rate, rate = copied / copy_s, written / reshard_s
                ratios.append(rate / copy_rate)
                most = max(most, memory)
                print(f"{source} -> {target}: {written / 1e9:.2f} GB at {rate / 1e9:.2f} GB/s, a copy at {copy_rate / 1e9:.2f} GB/s: "
                      f"{ratios[-1]:.2f}; {memory / 1e6:.0f} MB of memory", flush=True)
            for world in (2, 3, 1):
                shutil.rmtree(place / str(world))
        print(f"median {statistics.median(ratios):.2f} of a copy ({min(ratios):.2f} to {max(ratios):.2f}); at most {most / 1e6:.0f} MB of memory")
        assert most <= MEMORY_AT_MOST, f"{most / 1e6:.0f} MB of memory, at most 300 expected"
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
