"""The command lines whose `try:` lines advice_test.py follows, and the files that they meet."""
import ctypes
import json
import os
import shlex
import shutil
import struct
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from advice_rules import Attempt

HERE = Path(__file__).resolve().parent
MANY = 1 << 50
TINY = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4,
        "vocab_size": 257, "n_positions": 64, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
TEXT = "Of Mans First Disobedience, and the Fruit Of that Forbidden Tree, whose mortal tast Brought Death into the World. "
CONFIG = {"model": "tiny.json", "data": "text.txt", "sequence_length": 16, "max_steps": 2, "train_micro_batch_size_per_gpu": 2,
          "gradient_accumulation_steps": 2, "seed": 3, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
          "penstock": {"stores": ["gpt"], "run": "run", "host_budget": "1GiB", "machine": "profile"}}
BENCH = "penstock nvme bench . --size 16MiB --duration 10ms --read-share 1"
UPDATE = "penstock update --params 131072 --steps 3 --budget host=1GiB --machine profile --store store"
MAKER = Attempt(shlex.split(UPDATE))
KIT = None
HAS_TRAINER = False


class Skip(Exception):
    pass


@dataclass
class Case:
    line: str
    has: tuple = ()           # of the kit: names of files and folders
    files: dict = field(default_factory=dict)  # name to content; None is a folder
    keys: dict = field(default_factory=dict)   # changes of config.json
    env: dict = field(default_factory=dict)
    limits: dict = field(default_factory=dict)
    damage: object = None     # a function of the folder
    disk: int = 0             # the folder is a file system of so many bytes; needs root
    rounds: int = 3           # how often advice is followed, at most
    meets: tuple = ()         # what nobody else meets, where this one is skipped

    def attempt(self):
        return Attempt(shlex.split(self.line), dict(self.env), dict(self.limits))

    @contextmanager
    def laid_out(self, folder):
        if (self.line.split()[1] in ("train", "generate") or "config.json" in self.line) and not HAS_TRAINER:
            raise Skip("this build has no trainer")
        with mounted(folder, self.disk):
            (folder / "a-folder").mkdir()
            for name in ("profile", *self.has):
                source = KIT / name
                if not source.exists():
                    raise Skip(f"{name} cannot be made here")
                (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
            if self.keys or "config.json" in self.line:
                config = json.loads(json.dumps(CONFIG))
                merge(config, self.keys)
                (folder / "config.json").write_text(json.dumps(config))
            for name, content in self.files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                if content is None:
                    path.mkdir()
                elif isinstance(content, bytes):
                    path.write_bytes(content)
                else:
                    path.write_text(content if isinstance(content, str) else json.dumps(content))
            if self.damage:
                self.damage(folder)
            yield


def merge(into, changes):
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        elif value is None:
            into.pop(key, None)
        else:
            into[key] = value


@contextmanager
def mounted(folder, size):
    if size == 0:
        yield
        return
    if os.geteuid() != 0:
        raise Skip("needs root")
    image = folder.with_name(folder.name + ".image")
    image.touch()
    os.truncate(image, size)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    try:
        if subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, check=False).returncode != 0:
            raise Skip("no loop device can be mounted here")
        try:
            yield
        finally:
            subprocess.run(["umount", folder], check=True)
    finally:
        image.unlink()


def refuse_io_uring():
    """As containers do: the kernel's answer to io_uring_setup is EPERM."""
    libc = ctypes.CDLL(None, use_errno=True)
    arch, load, equal, give = 4, 0x20, 0x15, 0x06
    del arch
    code = [(load, 0, 0, 0), (equal, 0, 1, 425), (give, 0, 0, 0x00050001), (give, 0, 0, 0x7FFF0000)]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(filters))
    libc.prctl(38, 1, 0, 0, 0)
    libc.prctl(22, 2, ctypes.create_string_buffer(program), 0, 0)


def make_kit(penstock, kit, subject):
    """What cases start from, made once."""
    global KIT, HAS_TRAINER
    KIT = kit
    kit.mkdir()
    HAS_TRAINER = (penstock.parent / "penstock-trainer").exists()
    env = {**os.environ, "XDG_CONFIG_HOME": str(kit / "xdg"), "OMP_NUM_THREADS": "1"}

    def run(line, must=True):
        done = subprocess.run([penstock, *shlex.split(line)[1:]], cwd=kit, env=env, capture_output=True, text=True, check=False)
        if must and done.returncode != 0:
            raise RuntimeError(f"{line}: {done.stderr}")

    (kit / "tiny.json").write_text(json.dumps(TINY))
    (kit / "text.txt").write_text(TEXT * 40)
    (kit / "config.json").write_text(json.dumps(CONFIG))
    run("penstock nvme probe . --size 16MiB --duration 20ms --profile profile")
    run(UPDATE.replace("--steps 3", "--steps 2"))
    if HAS_TRAINER:
        run("penstock train config.json")
        run("penstock checkpoint export gpt hf")
        (kit / "two.json").write_text(json.dumps({**CONFIG, "zero_optimization": {"stage": 3}}))
        run("penstock train two.json --ranks 2 --store two --run run2 --micro-batches 1")
        shutil.copytree(kit / "gpt", kit / "kept")
        run("penstock checkpoint snapshot kept")
    try:
        make_chats(kit)  # of which the command's own advice needs the prepared set alone
    except ImportError:
        return
    run("penstock data chats.jsonl --model chat-model --out set --length 64")


def make_chats(kit):
    sys.path.insert(0, str(HERE.parent / "python"))
    import data_support
    data_support.model_folder(kit / "chat-model", "chatml", hidden_size=64, num_hidden_layers=1, num_attention_heads=2,
                              intermediate_size=128, architectures=["LlamaForCausalLM"], num_key_value_heads=2)
    data_support.write_lines(kit / "chats.jsonl", [data_support.chat(f"What is {i}?", f"It is {i}.") for i in range(40)])


def flip(*places):
    """Flips a bit of the store's first file at each place."""
    def damage(folder):
        path = next(folder.glob("*/rank0.tiles"))
        content = bytearray(path.read_bytes())
        for place in places:
            content[place] ^= 1
        path.write_bytes(content)
    return damage


def cut(name, size):
    return lambda folder: os.truncate(folder / name, size)


DATA = ("text.txt", "tiny.json", "profile")
RUN = (*DATA, "gpt", "run")
TRAIN = "penstock train config.json"


def of_another(name):
    """The run's store is one that something else has made."""
    return lambda folder: shutil.copytree(KIT / name, folder / "gpt")


def of_vocabulary(words):
    return lambda folder: (folder / "other.json").write_text(json.dumps({**TINY, "vocab_size": words}))


def fio_that_fails(folder):
    (folder / "bin").mkdir()
    (folder / "bin" / "fio").write_text("#!/bin/sh\n[ $1 = --version ] && echo fio-3.33 && exit\necho 'fio: refused' >&2\nexit 1\n")
    (folder / "bin" / "fio").chmod(0o755)


def newer_format(folder):
    path = folder / "store" / "rank0.tiles"
    content = bytearray(path.read_bytes())
    for at in (0, 65536):
        content[at + 8:at + 12] = struct.pack("<I", 99)
    path.write_bytes(content)


def fill(folder):
    with open(folder / "filler", "wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, max(4096, shutil.disk_usage(folder).free - (1 << 20)))


def command_line_cases():
    yield from (Case(line) for line in (
        "penstock plan --machin cpu-2core", "penstock nvme bensh .", "penstock nvme", "penstock nvme bench", "penstock frobnicate",
        "penstock nvme bench . --zzzzzz", "penstock checkpoint", "penstock update --steps", "penstock version", "penstock help", "penstock checkpoint list", "penstock completion zsh",
        BENCH + " --bs 4k", "penstock plan gpt2 --machine cpu-2core",
        BENCH + " --block 1XB", BENCH + " --duration forever", BENCH + " --depth many", BENCH + " --read-share 2",
        BENCH + " --engine warp", BENCH + " --pattern zigzag"))
    yield Case("penstock manual --into absent")
    yield Case("penstock manual nvme prob")
    yield Case("penstock manual zzzzzzzz")
    yield Case("penstock doctor --profile profile", rounds=1)
    yield Case("penstock manual --into a-folder", files={"a-folder/penstock.1": "mine"})


def drive_cases():
    small = {"-f": 64 << 20}  # so that 4 GiB are refused, and not written
    yield Case(BENCH + " --block 3")
    yield Case(BENCH + " --depth 0")
    yield Case("penstock nvme bench . --size 16MiB --read-share 1 --duration 0", limits={"-f": 1 << 20}, rounds=1)
    yield Case(BENCH + " --block 64MiB --depth 1", limits=small)
    yield Case("penstock nvme bench . --size 4KiB --duration 10ms --read-share 1", limits=small, rounds=1)
    yield Case("penstock nvme bench . --size 1000TiB --duration 10ms --read-share 1", limits=small, rounds=1)
    yield Case("penstock nvme bench . --steady", rounds=1, limits=small)
    yield Case(BENCH + " --emit-fio text.txt", has=("text.txt",))
    yield Case("penstock nvme probe . --size 16MiB --duration 20ms --profile text.txt", has=("text.txt",))
    yield Case("penstock nvme probe . --size 16MiB --duration 20ms", env={"XDG_CONFIG_HOME": "", "HOME": ""})
    yield Case("penstock nvme compare . --size 16MiB --duration 1ms --depth 1 --block 4MiB --pairs 0", rounds=1)
    yield Case("penstock nvme compare . --size 16MiB --duration 20ms --pairs 1", damage=fio_that_fails, env={"PATH": "BIN:/usr/bin:/bin"}, rounds=1)
    yield Case(BENCH + " --engine io_uring", limits={"uring": 1})


def plan_cases():
    plan = "penstock plan --machine cpu-2core"
    yield from (Case(f"{plan} {flags}") for flags in (
        "--flops fast", "--durability often", "--optimizer sdg", "--params 0", "--model gpt2 --layers 3", "--budget disk=1GiB", "--budget host=0",
        "--base nf4", "--lora-rank 8 --update-only", "--micro-batches 2000000", "--lora-rank 0", "--tokens 2000000B", "--seq 100000 --model gpt2",
        "--seq 0.5", "--tokens 8 --seq 256", "--tokens 1024 --seq 256 --micro-batches 8", "--tokens 4 --seq 256 --micro-batches 8", "--params 20000B --layers 2 --budget host=1MiB", "--model absent.json", "--heads 4 --update-only", "--params 1e9 --hidden 2000000 --update-only",
        "--params 1e9 --layers 2000000 --update-only --budget host=1MiB", "--layers 4 --hidden 100 --heads 3",
        "--params 1B --layers 4 --hidden 64 --ffn 64 --vocab 1000", "--params 12 --layers 3", "--vocab 1000 --ffn 0 --update-only"))
    yield Case("penstock plan --machine cpu-2core --micro-batches 900000 --tokens 2B --seq 256 --budget host=64MiB", rounds=1)
    yield from (Case(f"{plan} --seq 256 {flags}") for flags in ("--ranks 0", "--ranks 65", "--stage 3", "--stage hybrid --ranks 2", "--nodes 0", "--network 5",
        "--quantized-weights", "--quantized-gradients", "--quantized-gradients --ranks 2 --update-only", "--quantized-weights --ranks 2 --stage 0"))
    yield from (Case(f"penstock plan --machine rtx4090-2gen4 --model gpt2 {flags}") for flags in ("--ranks 2", "--stage 3", "--quantized-gradients", "--quantized-weights"))
    yield Case("penstock plan --machine absent")
    yield Case("penstock plan --machine rtx4090", rounds=1)
    yield Case("penstock plan --machine cpu-2core --model openai/GPT-2", rounds=1)
    yield Case("penstock plan --machine empty", files={"empty": {"schema": "penstock.machine/1", "drives": []}})
    yield Case("penstock plan --machine broken", files={"broken": {"schema": "penstock.machine/1", "drives": [{"path": 7}]}})
    yield Case("penstock plan --machine cpu-2core --model odd.json", files={"odd.json": {"model_type": "bert", "hidden_size": 64}})
    yield Case("penstock plan --machine cpu-2core --model odd.json", files={"odd.json": "[]"})
    yield Case("penstock plan --machine cpu-2core --model gpt2 --budget host=700MiB")
    yield Case("penstock plan --machine cpu-2core --model llama-2-7b --budget nvme=1GiB")


def store_cases():
    yield from (Case(line) for line in (
        UPDATE + " --threads 2000", UPDATE + " --tile 3", UPDATE.replace("host=1GiB", "host=1KiB"),
        UPDATE.replace("--steps 3", "--steps x"), UPDATE.replace("host=1GiB", "1G"), UPDATE.replace("host=1GiB", "disk=1GiB"), UPDATE.replace("--machine profile", "--machine absent")))
    yield Case("penstock update --budget host=1KiB --machine profile", rounds=1)
    yield Case("penstock update --params 0 --machine profile --store new --budget host=1KiB", rounds=1)
    yield Case(UPDATE.replace("131072", "262144"), has=("store",))
    yield Case(UPDATE.replace("--machine profile", "--machine text.txt"), has=("text.txt",))
    yield Case(UPDATE.replace("--machine profile", "--machine other"), files={"other": {"schema": "penstock.machine/1", "host_gbps": 9, "drives": [
        {"path": "/gone", "device": "nvme77n1", "mix_curve": [[0, 1], [1, 2]]}]}})
    yield Case("penstock verify --params 1000B --store new --budget host=1GiB", rounds=1)
    yield Case("penstock checkpoint export gpt out --shard 0", has=("gpt",))
    yield Case("penstock update --store gpt --budget host=1GiB --machine profile", has=("gpt",), rounds=1)
    yield Case(UPDATE.replace("update", "verify").replace("--steps 3", "--steps 1"), has=("store",))
    yield Case(UPDATE, limits={"-f": 1 << 20})
    yield Case(UPDATE + " --durability step", has=("store",), limits={"-f": 1 << 20})
    yield Case(UPDATE, files={"store": None}, damage=lambda folder: (folder / "store" / "rank0.tiles").symlink_to("nowhere"))
    yield Case(UPDATE.replace("131072", "2M"), disk=48 << 20, meets=("free some space, or give another drive, or use --space single, which needs half of it",))
    for verb in (UPDATE, "penstock checkpoint ls store"):
        yield Case(verb, has=("store",), damage=cut("store/rank0.tiles", 8192))
        yield Case(verb, has=("store",), damage=cut("store/rank0.tiles", 100))
        yield Case(verb, has=("store",), damage=cut("store/rank0.tiles", 2 << 20))
        yield Case(verb, has=("store",), damage=flip(99, 65536 + 99))
        yield Case(verb, has=("store",), damage=flip(4096 + 99, 69632 + 99))
        yield Case(verb, has=("store",), damage=newer_format)
        yield Case(verb, has=("store",), damage=lambda folder: (folder / "store" / "rank0.tiles").write_bytes(bytes(1 << 20)))
    yield Case("penstock checkpoint scrub store", has=("store",), damage=flip(*range(1 << 20, 4 << 20, 8192)))
    yield Case(UPDATE.replace("--steps 3", "--steps 4"), has=("store",), damage=flip(*range(1 << 20, 4 << 20, 8192)))
    yield Case(UPDATE.replace("--steps 3", "--steps 4"), has=("store",), damage=flip(4096 + 99, *range(1 << 20, 4 << 20, 8192)))
    yield Case("penstock checkpoint export store", has=("store",))
    yield Case("penstock checkpoint import hf", has=("hf",))
    yield Case("penstock checkpoint import hf --store gpt", has=("hf", "gpt"))
    yield Case("penstock nvme probe . --size 16MiB --duration 20ms --profile broken", files={"broken": {"schema": "penstock.machine/1", "drives": [{"path": 7}]}})
    yield Case("penstock checkpoint import hf --store new --ranks 0", has=("hf",))
    yield Case("penstock checkpoint export kept out --step 77", has=("kept",))
    yield Case("penstock checkpoint rollback gpt", has=("gpt",))
    yield Case("penstock checkpoint rollback kept", has=("kept",))
    yield Case("penstock checkpoint rollback kept --step 77", has=("kept",))
    yield Case("penstock checkpoint rm kept", has=("kept",))
    yield Case("penstock checkpoint reshard gpt new", has=("gpt",))
    yield Case("penstock checkpoint reshard gpt store --ranks 2", has=("gpt", "store"))
    yield Case("penstock checkpoint snapshot gpt", has=("gpt",), damage=fill, disk=24 << 20,
               meets=("free some space, or remove a step that is kept: `penstock checkpoint ls` lists them",))


def run_cases():
    yield Case("penstock train --steps 2 --dry-run --machine profile", rounds=1)
    yield Case(TRAIN + " --budget 1GiB", has=DATA)
    yield Case(TRAIN + " --budget disk=1GiB", has=DATA, rounds=1)
    yield Case("penstock config check odd.json", files={"odd.json": {"frobnicate": 1}})
    yield Case("penstock config check config.json", keys={"penstock": {"host_budget": "0"}})
    yield Case("penstock config check odd.json", files={"odd.json": {"optimizer": {"params": {"amsgrad": True}}}})
    yield Case(TRAIN + " --budget host=40MiB", has=DATA, rounds=1)
    yield Case(TRAIN + " --ranks 2", has=RUN)
    yield Case(TRAIN + " --ranks 3", has=DATA, env={"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23457"})
    yield Case(TRAIN, has=DATA, env={"WORLD_SIZE": "2"}, rounds=1)
    yield Case("penstock train --model tiny.json --store new --steps 1 --budget host=1GiB --machine profile", has=DATA)
    yield Case(TRAIN, has=DATA, damage=of_another("store"))
    yield Case("penstock checkpoint reshard gpt gpt2 --ranks 1", has=("gpt",), files={"gpt2/rank0.tiles": b"x"})
    yield Case("penstock generate config.json", has=DATA, keys={"samples": {"prompts": ["Of "]}}, rounds=2)
    yield Case("penstock generate config.json", has=RUN)
    yield Case("penstock generate Hello", has=RUN, rounds=1)
    yield Case("penstock generate config.json --temperature hot", has=RUN, rounds=1)
    yield Case(TRAIN + " --sample-every 1", has=DATA, keys={"samples": {"prompts": ["Of Mans First"], "max_new_tokens": 300}})
    yield Case(TRAIN, has=DATA, keys={"eval_every": 1, "held_out_share": 0, "max_steps": 1})
    yield Case(TRAIN, has=DATA, keys={"keep_best": 1, "max_steps": 1})
    yield Case(TRAIN, has=DATA, keys={"early_stopping": {"patience": 1}, "max_steps": 1})
    yield Case(TRAIN, has=(*DATA, "set", "chat-model"), keys={"data": "set", "model": "chat-model"})
    yield Case(TRAIN, has=(*DATA, "set", "chat-model", "chats.jsonl"), keys={"data": "set", "sequence_length": 64})
    yield Case(TRAIN, has=DATA, keys={"data": "a-folder"})
    yield Case("penstock train --store gpt --steps 3", has=RUN, files={"text.txt": TEXT * 41})
    yield Case(TRAIN, has=DATA, keys={"max_step": 1})
    yield Case(TRAIN + " --run new", has=DATA, keys={"penstock": {"stores": ["new"]}})
    yield Case("penstock train chat-model --store new --steps 1", has=("chat-model",), rounds=1)
    yield Case(TRAIN + " --data chats.jsonl", has=(*DATA, "chats.jsonl"), rounds=1)
    yield Case(TRAIN + " --ranks 0", has=DATA)
    yield Case("penstock train --model chat-model --store new --steps 1 --machine profile", has=("chat-model",), rounds=1)
    yield Case("penstock generate chat-model hi", has=("chat-model",), rounds=1)
    yield Case(TRAIN + " --data tokens.xyz", has=DATA, files={"tokens.xyz": TEXT * 40})
    yield Case("penstock report run", has=("run",), env={"PENSTOCK_PYTHON": "/absent"})
    yield Case(TRAIN + " --store two", has=(*DATA, "two"), rounds=1)
    yield Case(TRAIN + " --store two --ranks 2", has=(*DATA, "two"), keys={"zero_optimization": {"stage": 0}, "gradient_accumulation_steps": 1}, rounds=1)
    yield Case("penstock train config.json --sample-every 1", has=DATA, damage=of_vocabulary(300), keys={"model": "other.json", "samples": {"prompts": ["Of "]},
               "penstock": {"stores": ["new"]}}, rounds=1)


def python_cases():
    chats = ("chats.jsonl", "chat-model")
    data = "penstock data chats.jsonl --model chat-model --length 64"
    yield Case("penstock data", has=chats, rounds=1)
    yield Case("penstock data chats.jsonl --out new", has=chats, rounds=1)
    yield Case(data + " --out new --lenght 64", has=chats, rounds=1)
    yield Case(data.replace("64", "100000") + " --out new", has=chats, rounds=1)
    yield Case(data + " --out set", has=(*chats, "set"), rounds=1)
    yield Case(data + " --out link --force", has=(*chats, "set"), rounds=1, damage=lambda folder: (folder / "link").symlink_to("set"))
    yield Case(data + " --out new --weights much", has=chats, rounds=1)
    yield Case(data + " --out new", rounds=1, has=("chat-model",), files={"chats.jsonl": '{"messages": 7}\n' + json.dumps({"text": TEXT}) + "\n"})
    yield Case(data + " --out new", rounds=1, has=chats, damage=lambda folder: [path.unlink() for path in (folder / "chat-model").glob("chat_template*")])
    yield Case("penstock data show a-folder", has=chats)
    yield Case("penstock report run --out text.txt", has=("run", "text.txt"))
    yield Case("penstock report absent", has=("run",), rounds=1)


CASES = {"Command": [*command_line_cases(), *drive_cases(), *plan_cases(), *store_cases(), *run_cases()],
         "Python": [*python_cases()]}

# What cannot be met here: why not, and words of the test that meets it ("" where none can).
GPU = "needs a GPU or its driver"
LIMIT = "needs a limit of the whole system or another user"
PROCESSES = "needs processes that meet, or fail to"
BROKEN = "must not happen"
SPOILT = "a run whose loss goes wrong: loss_rules_test.py follows it"
ELSEWHERE = {"Command": {
    "lower --budget device=, or end what else uses this GPU (nvidia-smi)": (GPU, ""),
    "install the NVIDIA driver (in a container: run it with --gpus all), or use the host device": (GPU, "gpus all"),
    "see nvidia-smi and CUDA_VISIBLE_DEVICES, or use the host device": (GPU, "CUDA_VISIBLE"),
    "lower --budget device=": ("takes more memory than there is", ""),
    "lower the host budget, or raise `ulimit -v`": ("takes more memory than there is", "HostArena"),
    "give a host budget of 2 MiB or more": ("the command asks for more than nothing", "HostArena"),
    "cmake -S . -B build -DPENSTOCK_STEPS=ON && cmake --build build": ("another build", "Command.SaysThatItWasBuiltWithout"),
    "put back a copy of that file, or go back to another step that is kept: `penstock checkpoint rollback`; some ranks' stores are at "
    "step ... already": ("several ranks that were killed as they went back", "test_where_one_rank_alone_can_go_back"),
    "start again: the run goes on from where it was; `penstock checkpoint rm --step ...` removes what is damaged":
        ("several ranks that were killed before they went back", "test_a_damaged_copy_takes_no_store_back"),
    "`penstock checkpoint rollback ... --step ...`, a snapshot that is kept":
        ("a store that was damaged", "test_what_a_corrupt_store_advises_brings_a_snapshot_back"),
    "`...`: the snapshot of step ... is a whole store":
        ("a store that was damaged", "test_what_a_corrupt_store_advises_brings_a_snapshot_back"),
    "another --run, or end that run first": (PROCESSES, "test_one_run_at_a_time_writes_to_a_folder"),
    'the data that the run began with, or "hash": "..." beside it in the config to go on with this':
        ("several files of data", "test_other_data_at_the_same_path_is_refused_until_it_is_named_anew"),
    "`ldd` on it says which library is missing": ("an installation without its libraries", ""),
    "`tools/setup` installs PyTorch, whose C++ library it needs; then build again": ("another build", ""),
    "...raise `ulimit -u`, `ulimit -v` or the cgroup's pids.max": (LIMIT, "test_fewer_threads_than_it_takes"),
    "raise `ulimit -u` or the cgroup's pids.max: the kernel could not start a thread for it; or --engine libaio": (LIMIT, "test_fewer_threads_than_it_takes"),
    "look into the kernel's log (dmesg) and at the drive's health (nvme smart-log); `penstock checkpoint scrub` lists every block "
    "that cannot be read; where some stay unreadable, `penstock checkpoint rollback` goes back to a snapshot, or put back a copy "
    "of the store's files": ("a drive that fails", "`penstock checkpoint scrub` lists"),
    "raise sysctl fs.aio-max-nr": (LIMIT, ""),
    "a kernel with CONFIG_AIO": (LIMIT, ""),
    "run `penstock doctor`, which explains each refusal": ("a system without any kind of I/O", ""),
    "the file system refuses this alignment for direct I/O; see `penstock doctor`": ("a file system that changes its mind", ""),
    "see `taskset -p $$` for the processors it may use": ("an argument of the C API", "UpdateWorkers"),
    "another process of this user is rank 0 there: give every process its own RANK, or this run another MASTER_PORT": (PROCESSES, "MASTER_PORT"),
    "give this run another MASTER_PORT": (PROCESSES, "MASTER_PORT"),
    "give every process its own RANK, and all the same WORLD_SIZE": (PROCESSES, "WORLD_SIZE"),
    "give all ranks the address of rank 0's host in MASTER_ADDR, and a free port in MASTER_PORT": (PROCESSES, "MASTER_ADDR"),
    "give the address of rank 0's host in MASTER_ADDR": (PROCESSES, "MASTER_ADDR"),
    "leave out penstock.device_share": (PROCESSES, "AreRefusedWhereUnitsAreToRestOnADevice"),
    "srun --ntasks-per-node": (PROCESSES, "SLURM_NNODES"),
    "number the ranks host by host: torchrun does, and `srun --distribution=block`": (PROCESSES, "SLURM_LOCALID"),
    "look at what those ranks have printed, and give all of them the same PENSTOCK_SECRET": (PROCESSES, "DoNotTakeInWhoDoesNotKnow"),
    "look at what rank ... has printed, and give all ranks the same PENSTOCK_SECRET": (PROCESSES, "DoNotTakeInWhoDoesNotKnow"),
    "give all ranks the same PENSTOCK_SECRET, and the address of rank 0's host": ("somebody else at rank 0's address", ""),
    "give each rank the folders that it was created with, or --force for new stores of all": (PROCESSES, "no store for"),
    "`penstock checkpoint reshard ... NEW --ranks ... --stage ... --shard-size ...`": ("several ranks", "NEW --ranks 2 --stage 3 --shard-size 1"),
    "where its passes take so long, a longer `penstock.hangs_after_s`": (PROCESSES, "hangs_after_s"),
    "go back to a step that is kept, which `penstock checkpoint ls` lists; else put back a copy of all ranks' stores, or make new ones with --force":
        (PROCESSES, "was not committed by all ranks"),
    "start the run again: it brings all ranks to the newest step that they have in common; or go back to one that is kept, "
    "which `penstock checkpoint ls` lists": ("several ranks", "or go back to one that is kept"),
    "make a new store with --force; one made with --space double survives this": ("a kill at one moment of a step", "--space single"),
    "make a new store with --force; this one was made for fewer parameters": ("a caller's own root", "RootPayload"),
    "open it with the version of penstock that wrote it, or make a new store with --force": ("another version", "written in store format 7"),
    "penstock checkpoint rollback... --step ..., before anything else runs on the store; the drive may be failing":
        ("damage of one step alone", "before anything else runs"),
    "run it again on an idle machine, with --pairs 9": ("a drive whose rates repeat", ""),
    "leave out --grid, or --ranks": ("a grid takes minutes", "--grid"),
    "run `penstock checkpoint scrub` on the store, and report it: this must not happen": (BROKEN, ""),
    "`penstock checkpoint scrub` says whether it is damaged": (BROKEN, ""),
    "`penstock checkpoint scrub` says whether the store is damaged": (BROKEN, "parse_trainer_state"),
    "measure one with `penstock nvme probe PATH`, or name a shipped machine with --machine": ("`--machine` refuses it before", ""),
    "a folder on a drive; `df -T` lists the file systems": ("tmpfs, whose folder is not the test's", "/dev/shm"),
    "fewer or shorter prompts, a smaller samples.max_new_tokens, or a larger budget": ("a budget to the MiB", ""),
    "leave out all but lora.adapter, lora.base and lora.dropout, or say lora.rank as well: the config counts then": ("adapters", "lora.adapter"),
    "lora.targets and lora.modules_to_save as its adapter_config.json has them": ("adapters", "modules_to_save"),
    "the model's own tokenizer in samples.tokenizer": ("two tokenizers", "samples.tokenizer"),
    "--params 7e9 --layers 32": ("the command plans the built-in model then", "solve_shape"),
    '"device_budget": "1GiB"': ("configs", "ComputeDevice"),
    'leave out the budget, or "device": "host"': ("configs", "ComputeDevice"),
    'install a torch with CUDA (pip install torch) and build again with it, or "device": "cpu"': (GPU, "built without CUDA"),
    'a torch for this driver\'s CUDA, or "device": "cpu"': (GPU, ""),
    "NCCL_DEBUG=WARN makes NCCL say more on standard output": (GPU, ""),
    "install NVIDIA's NCCL (pip install nvidia-nccl-cu13, or the package libnccl2), or name its file in PENSTOCK_NCCL":
        (GPU, "NcclLibrary"),
    "look at the network and the devices; where operations take so long, a longer `penstock.hangs_after_s`": (PROCESSES, "NcclRanks"),
    "give penstock_options.weights_out": ("an argument of the C API", "weights_out"),
    "resume from it, or replace it with --force": ("the command finds the store before", "Existing::refuse"),
    "`penstock checkpoint snapshot` takes one": (SPOILT, "rollback"),
    "look at log.jsonl for what they were: where it is the weights that are broken, `penstock checkpoint rollback` goes back "
    "to a snapshot; a larger loss_rules.at_most goes on": (SPOILT, "at_most"),
    'look at these samples, and run it again with "leave_out": [...], or with "loss_rules": {"not_finite": "skip"}, which '
    "leaves such batches out by itself": (SPOILT, "leave_out"),
    'look at these samples, and run it again with "leave_out": [...], or with "loss_rules": {"spike": "skip"}, which leaves '
    "such batches out by itself": (SPOILT, "leave_out"),
    'a larger budget, smaller micro-batches or a smaller "head_tokens"': ("a device's budget", ""),
}, "Python": {
    "... --help": ("argparse's refusals, of any wording", "--help"),
    "torch.cuda.is_available() must be True; `nvidia-smi` shows whether the driver is there": (GPU, "is_available"),
    "--model FOLDER names where it is now": ("the tokenizer's folder would be gone: seconds of transformers", ""),
    "WANDB_MODE=offline, or `wandb login`": ("a service", "WANDB_MODE"),
    'give {"text": ...}': ("a tokenizer without a template", ""),
    "a folder with a tokenizer as Hugging Face has it, in samples.tokenizer or --tokenizer":
        ("prompts of a run", "test_a_tokenizer_that_is_not_there_is_missing_and_nothing_of_the_network"),
    "another --out, or move that away": ("a folder of the user's beside the set", "test_what_is_the_users_stays"),
    "name another in samples.tokenizer": ("a broken tokenizer", ""),
    "install the package with pip, or name the command in PENSTOCK_COMMAND": ("a package without its command", "PENSTOCK_COMMAND"),
    "json.load() the file, or use `options`": ("a call from Python", ""),
    "penstock checkpoint export STORE FOLDER": ("a call from Python", ""),
}}
