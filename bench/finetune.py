"""Does a base that is larger than the memory train its adapters at the price of what it weighs? LoRA over a base of random
weights, frozen in NF4 or bf16, in a control group that is the host budget. It must not be killed; a step reads what of the
base rests on the drive once for forward and once for backward, and the head once for both, to 1 %; it takes at most 1.08
of the longer of computing and reading. Nothing is clipped, so that no update is taken back, which would cost bytes.

On paper, 7B in bf16: 12.95 GB of blocks for forward and for backward, 0.26 of the head once for both, and 0.26 of the
embedding for forward alone, 26.4 GB a step; 256 tokens are 10 TFLOP, far more time than a drive of 2 GB/s takes. In NF4
the blocks are 3.64 GB, of which what fits stays in memory.

usage: finetune.py PENSTOCK FOLDER [--params 1.3B|7B|tiny] [--base nf4 bf16] [--memory 3GiB] [--steps 3] [--rounds 3]
       [--in-memory 12GiB] [--peft] [--json]
Needs root, for the control group, and the base's bytes twice in FOLDER, which are removed. Computing is the time of the
same step with all weights in --in-memory without a group; without it, the step's time less its waiting. Where fio is
installed, that is timed once more while fio reads the drive at the rate of the step: what computing takes on a machine
that also reads, whoever reads. --peft, with a Python that has torch and peft: the same in plain bf16 in memory. Those that
are compared run in turns.
"""
import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import train_memory
from train_memory import MODELS, SKIPPED, ControlGroup, bytes_of, resting_bytes

try:
    import numpy
except ImportError as error:
    print(f"skipped: {error} (tools/setup --checks installs it)")
    sys.exit(SKIPPED)

CODE_BITS = {"nf4": 4, "int8": 8}
CODE_BLOCK, SCALE_BYTES = 64, 4
LIBRARY_BYTES = 16 << 20  # of a process's libraries, as many may come from the drive in one run and be cached in another


def tensors_of(shape):
    """Names and shapes, as transformers has them, in the order of computing."""
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    key_value = hidden // shape["num_attention_heads"] * shape["num_key_value_heads"]
    yield "model.embed_tokens.weight", (shape["vocab_size"], hidden)
    for layer in range(shape["num_hidden_layers"]):
        block = f"model.layers.{layer}."
        yield block + "input_layernorm.weight", (hidden,)
        for name, out in (("q", hidden), ("k", key_value), ("v", key_value), ("o", hidden)):
            yield f"{block}self_attn.{name}_proj.weight", (out, hidden)
        yield block + "post_attention_layernorm.weight", (hidden,)
        yield block + "mlp.gate_proj.weight", (inner, hidden)
        yield block + "mlp.up_proj.weight", (inner, hidden)
        yield block + "mlp.down_proj.weight", (hidden, inner)
    yield "model.norm.weight", (hidden,)
    if not shape["tie_word_embeddings"]:
        yield "lm_head.weight", (shape["vocab_size"], hidden)


def elements_of(dimensions):
    return int(numpy.prod(dimensions))


class WeightFile:
    """A safetensors file that is written tensor by tensor; nothing of it stays in memory."""

    def __init__(self, path, tensors):
        header, end = {}, 0
        for name, dimensions in tensors:
            first, end = end, end + 2 * elements_of(dimensions)
            header[name] = {"dtype": "BF16", "shape": dimensions, "data_offsets": [first, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.file = open(path, "wb")
        self.file.write(len(text).to_bytes(8, "little") + text)

    def write(self, values):
        self.file.write(values)

    def close(self):
        self.file.flush()
        os.fdatasync(self.file.fileno())
        os.posix_fadvise(self.file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        self.file.close()


def write_base(folder, shape):
    """A model's folder: normal weights, of a deviation of 0.02, from a table that each tensor begins elsewhere in."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "max_position_embeddings": 2048, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "torch_dtype": "bfloat16", **shape}))
    random = numpy.random.default_rng(1)
    table = (random.standard_normal(1 << 24, dtype=numpy.float32) * 0.02).view(numpy.uint32) >> 16
    table = memoryview(table.astype(numpy.uint16)).cast("B")
    one = numpy.full(max(shape["hidden_size"], 1), 0x3f80, numpy.uint16).tobytes()
    files = [[]]
    for tensor in tensors_of(shape):
        if sum(2 * elements_of(dimensions) for _, dimensions in files[-1]) > 1 << 30:
            files.append([])
        files[-1].append(tensor)
    places = {}
    for number, tensors in enumerate(files):
        name = f"model-{number + 1:05}-of-{len(files):05}.safetensors"
        file = WeightFile(folder / name, tensors)
        for tensor, dimensions in tensors:
            places[tensor] = name
            left = 2 * elements_of(dimensions)
            if len(dimensions) == 1:
                file.write(one[:left])
                continue
            at = 2 * int(random.integers(len(table) // 2))
            while left > 0:
                part = table[at:at + left]
                file.write(part)
                left, at = left - len(part), 0
        file.close()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


def bytes_at_rest(shape, base):
    """Of the blocks, the embedding, and what the head reads, which may be the embedding again, as the store has them."""
    blocks = embedding = head = 0
    for name, dimensions in tensors_of(shape):
        elements = elements_of(dimensions)
        if "embed_tokens" in name:
            embedding = 2 * elements
            head += embedding if shape["tie_word_embeddings"] else 0
        elif "layers" not in name:
            head += 2 * elements
        elif len(dimensions) == 2 and base in CODE_BITS:
            blocks += elements * CODE_BITS[base] // 8 + elements // CODE_BLOCK * SCALE_BYTES
        else:
            blocks += 2 * elements
    return blocks, embedding, head


class Run(train_memory.Run):
    def __init__(self, options, base):
        super().__init__(options, 0)
        self.base = base
        self.folder = Path(options.folder) / "penstock-finetune"
        self.store = self.folder / f"store-{base}"
        self.log_folder = self.folder / f"run-{base}"
        self.model = self.folder / "model"
        self.steps_done = 0

    def config(self, steps, **placement):
        o = self.options
        path = self.folder / "config.json"
        path.write_text(json.dumps({
            "model": str(self.model), "sequence_length": o.tokens, "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1, "seed": 1, "max_steps": steps, "gradient_clipping": 0, "head_rows": 8192,
            "lora": {"rank": o.rank, "targets": "all-linear", **({"base": self.base} if self.base in CODE_BITS else {})},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "scheduler": {"type": "constant"},
            "penstock": {"stores": [str(self.store)], "run": str(self.log_folder), "machine": str(self.folder / "machine.json"),
                         "durability": "step", **placement}}))
        return path

    def in_group(self):
        """In codes as much of the base as there is room for rests in memory, else none of it."""
        here = {"host_budget": self.options.memory}
        return here if self.base in CODE_BITS else {**here, "weights": "nvme", "host_state_share": 1}

    def train(self, group, steps, placement):
        """Answer, bytes read and written, and the lines of these steps, less the first."""
        before = self.steps_done
        self.steps_done += steps
        answer, read, written = self.command(group, "train", self.config(self.steps_done, **placement))
        lines = [json.loads(line) for line in (self.log_folder / "log.jsonl").read_text().splitlines()]
        return answer, read, written, [line for line in lines if line["step"] > before + (steps > 1)]


def median_of(lines, key):
    return statistics.median(line[key] for line in lines)


def train_with_peft(options):
    """The worker: plain bf16 in memory, activations kept."""
    import time

    import peft
    import torch
    import transformers
    torch.set_num_threads(os.cpu_count())
    transformers.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.bfloat16)
    model = peft.get_peft_model(model, peft.LoraConfig(r=options.rank, lora_alpha=options.rank, target_modules="all-linear"))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)
    tokens = torch.randint(0, 256, (1, options.tokens))
    for _ in range(options.steps):
        began = time.perf_counter()
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(json.dumps({"step_s": time.perf_counter() - began}), flush=True)


@contextlib.contextmanager
def reading(path, rate):
    """fio beside what is done within, at that many bytes a second."""
    file_bytes = 4 << 30
    words = ["fio", "--name=reading", f"--filename={path}", f"--size={file_bytes}", "--bs=1m", "--direct=1", "--ioengine=io_uring",
             "--iodepth=8"]
    subprocess.run([*words, "--rw=write"], check=True, capture_output=True)
    reader = subprocess.Popen([*words, "--rw=read", f"--rate={int(rate)}", "--time_based", "--runtime=1d"], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        reader.terminate()
        reader.wait()
        path.unlink()


def peft_step_s(options, model):
    said = subprocess.run([sys.executable, __file__, options.penstock, str(model), "--worker", "--steps", str(options.steps),
                           "--tokens", str(options.tokens), "--rank", str(options.rank)], check=True, capture_output=True, text=True)
    lines = [json.loads(line) for line in said.stdout.splitlines() if line.startswith("{")]
    return median_of(lines[1:] or lines, "step_s")


def measure(options, base, group):
    run = Run(options, base)
    run.store.mkdir(parents=True)
    placement = run.in_group()
    run.train(group, 1, placement)  # makes the store
    opened, opened_read, opened_written = run.command(group, "train", run.config(run.steps_done, **placement))
    rows = []
    for _ in range(options.rounds):
        answer, read, written, lines = run.train(group, options.steps, placement)
        row = {"base": base, "parameters": answer["parameters"], "trained_parameters": answer["trained_parameters"],
               "step_s": median_of(lines, "step_s"), "predicted_s": answer["predicted_s"], "floor_s": answer["floor_s"] or 0,
               "waited_s": statistics.median(sum(line["stall_s"].values()) for line in lines),
               # What rests in memory is read once, and may be another part than when the store was only opened.
               "read_bytes": (read - opened_read - resting_bytes(answer) + resting_bytes(opened)) / options.steps,
               "written_bytes": (written - opened_written) / options.steps,
               "log_read_bytes": median_of(lines, "nvme_read_bytes"), "resting_bytes": resting_bytes(answer, ["resting weights"]),
               "planned_read_bytes": answer["planned_bytes_per_parameter"]["read"] * answer["parameters"],
               "planned_written_bytes": answer["planned_bytes_per_parameter"]["written"] * answer["parameters"],
               "peak_rss_bytes": answer["peak_rss_bytes"], "budget_bytes": answer["budget_bytes"],
               "group_peak_bytes": group.peak_bytes(), "killed": group.killed(), "load": os.getloadavg()[0]}
        row["compute_s"] = row["step_s"] - row["waited_s"]
        if options.in_memory:
            in_memory = {"host_budget": options.in_memory, "weights": "host"}
            _, _, _, inside = run.train(None, options.steps, in_memory)
            row["compute_s"] = row["in_memory_s"] = median_of(inside, "step_s")
            if row["log_read_bytes"] and shutil.which("fio"):
                with reading(run.folder / "fio", row["log_read_bytes"] / row["step_s"]):
                    _, _, _, inside = run.train(None, options.steps, in_memory)
                row["beside_reads_s"] = median_of(inside, "step_s")
                row["of_beside_reads"] = row["step_s"] / max(row["beside_reads_s"], row["floor_s"])
        if options.peft and base not in CODE_BITS:
            row["peft_s"] = peft_step_s(options, run.model)
        row["of_bound"] = row["step_s"] / max(row["compute_s"], row["floor_s"])
        blocks, embedding, head = bytes_at_rest(MODELS[options.params], base)
        row["base_bytes"] = blocks + (head if MODELS[options.params]["tie_word_embeddings"] else embedding + head)
        row["expected_read_bytes"] = 2 * blocks + head + embedding if base not in CODE_BITS else row["planned_read_bytes"]
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
    shutil.rmtree(run.store)
    return rows


def say(base, rows):
    one, gb = rows[-1], 1e9
    words = [f"{base}: {one['parameters']} parameters, {one['trained_parameters']} trained; base {one['base_bytes'] / gb:.3f} GB, "
             f"{one['resting_bytes'] / gb:.3f} of it in memory",
             f"a step reads {one['read_bytes'] / gb:.3f} of {one['expected_read_bytes'] / gb:.3f} GB, planned "
             f"{one['planned_read_bytes'] / gb:.3f}, and writes {one['written_bytes'] / gb:.3f} of {one['planned_written_bytes'] / gb:.3f}",
             f"peak {one['peak_rss_bytes'] / 2**20:.0f}, of the group {one['group_peak_bytes'] / 2**20:.0f}, of "
             f"{one['budget_bytes'] / 2**20:.0f} MiB; killed {one['killed']}"]
    for key, what in (("step_s", "s a step"), ("in_memory_s", "s in memory"), ("beside_reads_s", "s in memory beside fio"),
                      ("floor_s", "s of the drive alone"), ("peft_s", "s with PEFT in memory"),
                      ("of_bound", "of the longer of computing and reading"),
                      ("of_beside_reads", "of the longer of computing beside fio and reading")):
        values = [row[key] for row in rows if key in row]
        if values:
            words.append(f"{statistics.median(values):.3f} {what} [{min(values):.3f}-{max(values):.3f}]")
    print("; ".join(words), flush=True)


def share_apart(row):
    """Of the base. What the engine counts is exact; the kernel also counts what a process maps again of its libraries."""
    counted = abs(row["log_read_bytes"] - row["expected_read_bytes"])
    of_the_kernel = abs(row["read_bytes"] - row["expected_read_bytes"]) - LIBRARY_BYTES
    return max(counted, of_the_kernel) / row["base_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("penstock")
    parser.add_argument("folder")
    parser.add_argument("--params", choices=MODELS, default="1.3B")
    parser.add_argument("--base", choices=(*CODE_BITS, "bf16"), nargs="*", default=["nf4", "bf16"])
    parser.add_argument("--memory", default="3GiB")
    parser.add_argument("--steps", type=int, default=3, help="in a turn; the first does not count for time")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--probe", default="5s", help="how long the drive is measured")
    parser.add_argument("--in-memory", help="the host budget of the same with all weights in memory")
    parser.add_argument("--peft", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return train_with_peft(options)
    options.penstock = str(Path(options.penstock).resolve())
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    folder = Run(options, "").folder
    group = ControlGroup(bytes_of(options.memory))
    everything = []
    try:
        folder.mkdir(parents=True)
        train_memory.probe(options, folder)
        write_base(folder / "model", MODELS[options.params])
        for base in options.base:
            rows = measure(options, base, group)
            everything += rows
            if not options.json:
                say(base, rows)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        group.close()
    if options.json:
        print(json.dumps(everything))
    apart = max(share_apart(row) for row in everything)
    wrong = [row for row in everything if row["killed"] or row["peak_rss_bytes"] > row["budget_bytes"]]
    print(f"killed or over the budget: {len(wrong)} of {len(everything)}; bytes read at most {100 * apart:.2f} % of the base "
          "from what was expected", file=sys.stderr if options.json else sys.stdout)
    sys.exit(1 if wrong or apart > 0.01 else 0)


if __name__ == "__main__":
    main()
