"""How hard is the memory budget? A model whose state is many times the budget trains in a control group that is the
host budget, never clipped and always clipped. It must not be killed, and the bytes on the drives must be the plan's.

On paper, all state on NVMe: 14 B read and 12 B written a parameter and step, a retained gradient that finds no room 4 B
more. What is printed as moved is what the kernel has counted for the process, beyond what opening the store moves.

usage: train_memory.py PENSTOCK FOLDER [--params 1.3B|7B|tiny] [--memory 3GiB] [--steps 10] [--tokens 128]
       [--moments fp32] [--space single] [--json]
Needs root, for the control group. 1.3B takes 12 B a parameter with `single`, 24 B with `double`; 7B with int8 moments
6 B with `single`.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

SKIPPED = 77  # to the tests

MODELS = {"1.3B": dict(hidden_size=2048, intermediate_size=5504, num_hidden_layers=24, num_attention_heads=16,
                       num_key_value_heads=16, vocab_size=32000, tie_word_embeddings=True),
          "7B": dict(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32,
                     num_key_value_heads=32, vocab_size=32000, tie_word_embeddings=False),
          "tiny": dict(hidden_size=512, intermediate_size=1376, num_hidden_layers=12, num_attention_heads=8,
                       num_key_value_heads=8, vocab_size=2048, tie_word_embeddings=True)}
CLIPS = {"never": 0, "always": 1e-6}


class ControlGroup:
    """A memory limit; version 1 or 2 of control groups."""

    def __init__(self, limit, whose=""):
        self.name = f"penstock-bench-{os.getpid()}{whose}"
        v1, v2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
        self.is_v1 = (v1 / "memory.limit_in_bytes").exists()
        self.folder = (v1 if self.is_v1 else v2) / self.name
        try:
            self.folder.mkdir()
            (self.folder / ("memory.limit_in_bytes" if self.is_v1 else "memory.max")).write_text(str(limit))
            if not self.is_v1:
                (self.folder / "memory.swap.max").write_text("0")
        except OSError as error:
            self.close()
            print(f"no control group with a memory limit can be made here: {error}", file=sys.stderr)
            sys.exit(SKIPPED)

    def enter(self):
        (self.folder / "cgroup.procs").write_text("0")

    def killed(self):
        """Processes that the limit has killed."""
        events = self.folder / ("memory.oom_control" if self.is_v1 else "memory.events")
        words = dict(line.split() for line in events.read_text().splitlines())
        return int(words.get("oom_kill", 0))

    def peak_bytes(self):
        peak = self.folder / ("memory.max_usage_in_bytes" if self.is_v1 else "memory.peak")
        return int(peak.read_text()) if peak.exists() else 0

    def close(self):
        if self.folder.exists():
            self.folder.rmdir()


def bytes_of(text):
    for suffix, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if text.endswith(suffix):
            return int(float(text[:-3]) * factor)
    return int(text)


class Run:
    name = "penstock-train-memory"

    def __init__(self, options, clip):
        self.options = options
        self.folder = Path(options.folder) / self.name
        self.store = self.folder / "store"
        self.clip = clip

    def config(self, steps):
        o = self.options
        model = self.folder / "model.json"
        model.write_text(json.dumps({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
                                     "max_position_embeddings": 2048, **MODELS[o.params]}))
        path = self.folder / "config.json"
        path.write_text(json.dumps({
            "model": str(model), "sequence_length": o.tokens, "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1, "seed": 1, "max_steps": steps, "gradient_clipping": self.clip,
            "head_rows": 8192, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}},
            "penstock": {"stores": [str(self.store)], "run": str(self.folder / "run"), "host_budget": o.memory,
                         "machine": str(self.folder / "machine.json"), "moments": o.moments, "space": o.space, "durability": "step",
                         "weights": o.weights, **({} if o.share is None else {"host_state_share": o.share})}}))
        return path

    def begin_anew(self):
        for folder in (self.store, self.folder / "run"):
            shutil.rmtree(folder, ignore_errors=True)
        self.store.mkdir(parents=True)

    def log(self):
        return [json.loads(line) for line in (self.folder / "run/log.jsonl").read_text().splitlines()]

    def command(self, group, *words):
        """The answer, and the bytes that the kernel has counted for the process."""
        log = open(self.folder / "said.txt", "a", encoding="utf-8")
        process = subprocess.Popen([self.options.penstock, *map(str, words), "--json"], stdout=subprocess.PIPE, stderr=log,
                                   text=True, preexec_fn=group.enter if group else None)
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"{words}: {process.returncode}\n{said}\n{(self.folder / 'said.txt').read_text()[-2000:]}")
        return json.loads(said), usage.ru_inblock * 512, usage.ru_oublock * 512


def resting_bytes(answer, lines=("resting weights", "resting state")):
    """Of host memory, what is read once when the store is opened."""
    return sum(line["bytes"] for line in answer["budget"] if line["tier"] == "host" and line["line"] in lines)


def planned(answer, is_struck):
    """Seconds, and the bytes a parameter that are read and written. A struck step also brings back the gradients that
    were spilled, and reads once more the weights that its updates had not kept. Exact where no state rests in host
    memory, whose tiles read neither."""
    if is_struck:
        struck = answer["planned_when_struck"]
        return struck["predicted_s"], struck["read"], struck["written"]
    bytes = answer["planned_bytes_per_parameter"]
    return answer["predicted_s"], bytes["read"], bytes["written"]


def probe(options, folder):
    """Measures the drive, for the plans of all runs."""
    probed = [options.penstock, "nvme", "probe", str(folder), "--duration", options.probe, "--profile", str(folder / "machine.json")]
    done = subprocess.run(probed, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr)


def measure(options, name, group):
    run = Run(options, CLIPS[name])
    run.begin_anew()
    run.command(group, "train", run.config(1))  # makes the store
    opened, opened_read, opened_written = run.command(group, "train", run.config(1))  # nothing to do
    steps = options.steps
    answer, read, written = run.command(group, "train", run.config(1 + steps))
    parameters = answer["parameters"]
    predicted_s, planned_read, planned_written = planned(answer, name == "always")
    struck = sum(line["grad_norm"] > run.clip > 0 for line in run.log()[1:])
    return {"clipping": name, "parameters": parameters, "steps": steps, "steps_clipped": struck,
            "step_s": answer["step_s"], "predicted_s": predicted_s, "loss_last": answer["loss_last"],
            # What rests in memory may be another part than when the store was only opened.
            "read_bytes": (read - opened_read - resting_bytes(answer) + resting_bytes(opened)) / steps / parameters,
            "planned_read_bytes": planned_read,
            "written_bytes": (written - opened_written) / steps / parameters,
            "planned_written_bytes": planned_written,
            "peak_rss_bytes": answer["peak_rss_bytes"], "budget_bytes": answer["budget_bytes"],
            "group_peak_bytes": group.peak_bytes(), "killed": group.killed()}


def arguments_of_run(description, **defaults):
    """The parser of a benchmark whose runs are Runs."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("penstock")
    parser.add_argument("folder")
    parser.add_argument("--params", choices=MODELS, default="1.3B")
    parser.add_argument("--memory")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--moments", default="fp32")
    parser.add_argument("--space")
    parser.add_argument("--weights")
    parser.add_argument("--share", type=float, help="of the state that rests in host memory; none: the planner chooses")
    parser.add_argument("--probe", default="5s", help="how long the drive is measured")
    parser.add_argument("--clipping", choices=CLIPS, nargs="*", default=list(CLIPS))
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(**defaults)
    return parser


def main():
    options = arguments_of_run(__doc__, memory="3GiB", steps=10, space="single", weights="auto").parse_args()
    options.penstock = str(Path(options.penstock).resolve())
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    folder = Run(options, 0).folder
    folder.mkdir(parents=True, exist_ok=True)
    rows, group = [], ControlGroup(bytes_of(options.memory))
    try:
        probe(options, folder)
        for name in options.clipping:
            row = measure(options, name, group)
            rows.append(row)
            if not options.json:
                print("{clipping}: {parameters} parameters, {steps} steps, {steps_clipped} clipped; {step_s:.2f} s a step, "
                      "predicted {predicted_s:.2f}; read {read_bytes:.3f} of {planned_read_bytes:.3f} B, written "
                      "{written_bytes:.3f} of {planned_written_bytes:.3f} B a parameter; peak {0:.0f}, of the "
                      "group {1:.0f}, of {2:.0f} MiB; killed {killed}".format(
                          *(row[name] / 2**20 for name in ("peak_rss_bytes", "group_peak_bytes", "budget_bytes")), **row), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        group.close()
    if options.json:
        print(json.dumps(rows))
    apart = max(abs(row[f"{way}_bytes"] / row[f"planned_{way}_bytes"] - 1) for row in rows for way in ("read", "written"))
    wrong = [row for row in rows if row["killed"] or row["peak_rss_bytes"] > row["budget_bytes"]]
    print(f"killed or over the budget: {len(wrong)} of {len(rows)}; bytes at most {100 * apart:.2f} % from the plan's",
          file=sys.stderr if options.json else sys.stdout)
    sys.exit(1 if wrong or apart > 0.01 else 0)


if __name__ == "__main__":
    main()
