#!/usr/bin/env python3
"""`penstock train` and `penstock verify` in several ranks, as a user starts them: by --ranks, torchrun and Slurm.

Usage: ranks_test.py PENSTOCK [CLASS].
"""
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import manual_page

PENSTOCK = Path(sys.argv.pop(1)).resolve()
TORCHRUN = PENSTOCK.parents[2] / ".venv/bin/torchrun"
README = Path(__file__).resolve().parents[2] / "README.md"
USAGE, DOES_NOT_FIT, ENVIRONMENT, CORRUPT, INTERRUPTED = 2, 3, 4, 5, 130
TINY = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4,
        "vocab_size": 257, "n_positions": 64, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
TEXT = "Of Mans First Disobedience, and the Fruit Of that Forbidden Tree, whose mortal tast Brought Death into the World. "
# One thread: a product waits for its slowest, and tests run beside one another.
ENVIRON = {**{name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE") and not name.startswith("SLURM_")}, "OMP_NUM_THREADS": "1"}


def processes_of(word):
    """Those whose command line has it, but for this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if word in (entry / "cmdline").read_bytes().decode(errors="replace"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def rank_of(process):
    for variable in (Path("/proc") / str(process) / "environ").read_bytes().decode(errors="replace").split("\0"):
        if variable.startswith("RANK="):
            return int(variable[5:])
    return None


class RanksCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """The drive is measured once: every rank of every run would do it again."""
        cls.place = Path(tempfile.mkdtemp(dir=PENSTOCK.parent))
        cls.addClassCleanup(shutil.rmtree, cls.place, True)
        cls.machine = cls.place / "machine.json"
        subprocess.run([PENSTOCK, "nvme", "probe", cls.place, "--duration", "0.1s", "--size", "64MiB", "--profile", cls.machine],
                       check=True, capture_output=True)

    def setUp(self):
        # Beside the build: /tmp may be a tmpfs, where no store can be.
        self.folder = Path(tempfile.mkdtemp(dir=PENSTOCK.parent))
        self.addCleanup(shutil.rmtree, self.folder, True)
        (self.folder / "tiny.json").write_text(json.dumps(TINY))
        (self.folder / "text.txt").write_text(TEXT * 40)

    def path(self, name):
        return str(self.folder / name)

    def config(self, name="run", **changes):
        """A small run with a store and a folder of its own; a section in `changes` is merged with what is here."""
        file = {"model": self.path("tiny.json"), "data": self.path("text.txt"), "sequence_length": 16, "max_steps": 4,
                "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "seed": 3, "held_out_share": 0.1,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
                "penstock": {"stores": [self.path(name + ".store")], "run": self.path(name), "host_budget": "2GiB",
                             "machine": str(self.machine)}}
        for key, value in changes.items():
            file[key] = {**file[key], **value} if isinstance(value, dict) and key in file else value
        path = self.folder / (name + ".json")
        path.write_text(json.dumps(file))
        return str(path)

    def run_command(self, *arguments, code=0, environ=None):
        done = subprocess.run([PENSTOCK, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300,
                              env={**ENVIRON, **(environ or {})})
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout}{done.stderr}")
        return done

    def json_of(self, *arguments, code=0):
        return json.loads(self.run_command(*arguments, "--json", code=code).stdout)

    def log(self, name="run"):
        path = self.folder / name / "log.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def weights(self, name="run", dtype="auto", *more):
        out = Path(tempfile.mkdtemp(dir=self.folder)) / "out"
        self.run_command("checkpoint", "export", self.path(name + ".store"), out, "--dtype", dtype, *more)
        return (out / "model.safetensors").read_bytes()

    def start(self, config, ranks=2):
        run = subprocess.Popen([PENSTOCK, "train", config, "--ranks", str(ranks)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True, env=ENVIRON)
        self.addCleanup(run.kill)
        return run

    def wait_for_steps(self, run, name, steps):
        while run.poll() is None and len(self.log(name)) < steps:
            time.sleep(0.01)
        if run.poll() is not None:
            self.fail(f"the run ended early: {run.communicate()[1]}")

    def expect_nothing_left(self, config):
        until = time.monotonic() + 60  # the launcher has killed and reaped them: they are gone, or about to be
        while processes_of(config) and time.monotonic() < until:
            time.sleep(0.05)
        self.assertEqual(processes_of(config), [])


class Stages(RanksCase):
    def test_every_stage_gives_the_same_losses_and_weights(self):
        found = []
        for stage in (0, 1, 2, 3, None):
            name = f"stage{stage}"
            changes = {} if stage is None else {"zero_optimization": {"stage": stage}}
            answer = self.json_of("train", self.config(name, eval_every=2, eval_batches=3, **changes), "--ranks", 2)
            self.assertEqual((answer["ranks"], answer["steps"], answer["config"]["train_batch_size"]), (2, 4, 8))
            log = [(step["loss"], step["grad_norm"], step.get("eval_loss")) for step in self.log(name)]
            self.assertEqual(len(log), 4)
            found.append((log, self.weights(name), self.weights(name, "fp32")))
        for other in found[1:]:
            self.assertEqual(other, found[0])

    def test_every_stage_answers_the_same_as_it_goes_on(self):
        asked = dict(sample_every=4, samples={"prompts": ["Of Mans ", "the Fruit"], "max_new_tokens": 12, "temperature": 1})
        self.json_of("train", self.config("silent"), "--ranks", 2)
        answers = []
        for stage in (0, 3):
            name = f"stage{stage}"
            self.json_of("train", self.config(name, zero_optimization={"stage": stage}, **asked), "--ranks", 2)
            self.assertEqual([step["loss"] for step in self.log(name)], [step["loss"] for step in self.log("silent")])
            answers.append(self.log(name)[-1]["samples"])
            # And afterwards one process, from the stores of both.
            answer = self.json_of("generate", self.path(name))
            self.assertEqual((answer["step"], answer["samples"]), (4, answers[-1]))
        self.assertEqual(answers[0], answers[1])
        small = json.loads((self.folder / "stage3" / "config.json").read_text())
        small["penstock"]["host_budget"] = "64MiB"
        (self.folder / "small.json").write_text(json.dumps(small))
        done = self.run_command("generate", self.path("small.json"), code=DOES_NOT_FIT)
        self.assertIn("of the largest unit", done.stderr)
        shutil.move(self.folder / "stage3.store" / "rank1.tiles", self.folder / "rank1.tiles")
        done = self.run_command("generate", self.path("stage3"), code=USAGE)
        self.assertIn("store: 1 of 2 ranks' stores are here", done.stderr)
        self.assertEqual([answer["prompt"] for answer in answers[0]], ["Of Mans ", "the Fruit"])

    def test_the_samples_of_a_step_do_not_depend_on_the_number_of_ranks(self):
        first = []
        for ranks in (1, 2, 4):
            name = f"world{ranks}"
            config = self.config(name, gradient_accumulation_steps=4 // ranks, eval_every=1, max_steps=1)
            self.json_of("train", config, *(["--ranks", ranks] if ranks > 1 else []))
            first.append(self.log(name)[0])
        # The same terms, dropout included, added up in another order; evaluation is of weights that differ by rounding.
        for other in first[1:]:
            self.assertAlmostEqual(other["loss"], first[0]["loss"], delta=1e-9)
            self.assertEqual(other["eval_tokens"], first[0]["eval_tokens"])
            self.assertAlmostEqual(other["eval_loss"], first[0]["eval_loss"], delta=0.05)

    def test_slurm_starts_them_as_well(self):
        self.json_of("train", self.config("launched"), "--ranks", 2)
        job = {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2", "SLURM_NNODES": "1"}
        config = self.config("srun")
        tasks = []
        for rank in (1, 0):
            task = subprocess.Popen([PENSTOCK, "train", config], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env={**ENVIRON, **job, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)})
            self.addCleanup(task.kill)
            tasks.append((rank, task))
        for rank, task in tasks:
            out, err = task.communicate(timeout=300)
            self.assertEqual(task.returncode, 0, out + err)
            self.assertEqual("steps 1 to 4" in out, rank == 0, out)
        self.assertEqual([step["loss"] for step in self.log("srun")], [step["loss"] for step in self.log("launched")])
        self.assertEqual(self.weights("srun"), self.weights("launched"))

    def test_as_many_drives_as_ranks_are_one_for_each(self):
        stores = {"penstock": {"stores": [self.path("a"), self.path("b")]}}
        self.json_of("train", self.config("two", max_steps=2, **stores), "--ranks", 2)
        self.json_of("train", self.config("two", **stores), "--ranks", 2)  # goes on
        self.assertEqual([sorted(file.name for file in (self.folder / each).iterdir()) for each in "ab"],
                         [["rank0.tiles"], ["rank1.tiles"]])
        self.json_of("train", self.config("one"), "--ranks", 2)
        self.assertEqual([step["loss"] for step in self.log("two")], [step["loss"] for step in self.log("one")])
        self.run_command("checkpoint", "export", self.path("a") + "," + self.path("b"), self.path("out"))
        self.assertEqual((self.folder / "out" / "model.safetensors").read_bytes(), self.weights("one"))

    def test_verify_holds_them_against_a_plain_loop_of_as_many_ranks(self):
        stages = ["stage 0", "stage 2", "stage 3"]
        for ranks, hybrid in ((3, []), (4, ["stage 3 within every 2"])):
            answer = self.json_of("verify", self.config(f"verify{ranks}", precision="bf16"), "--ranks", ranks, "--steps", 2)
            self.assertEqual((answer["words_different"], answer["losses_different"], answer["ranks"]), (0, 0, ranks))
            self.assertEqual([row["placement"] for row in answer["placements"]], stages + hybrid)
            self.assertGreater(answer["words_compared"], 3 * 4 * 100_000)
            self.assertFalse((self.folder / f"verify{ranks}.store").exists())

    def test_in_codes_they_hold_against_a_plain_loop_and_are_not_gone_on_with_otherwise(self):
        codes = {"zero_optimization": {"zero_quantized_weights": True, "zero_quantized_gradients": True}}
        answer = self.json_of("verify", self.config("verified", precision="bf16", **codes), "--ranks", 2, "--steps", 2)
        self.assertEqual((answer["words_different"], answer["losses_different"]), (0, 0))
        self.assertEqual([row["placement"] for row in answer["placements"]], ["stage 2", "stage 3"])
        self.json_of("train", self.config("run", max_steps=2, **codes), "--ranks", 2)
        done = self.run_command("train", self.config("run"), "--ranks", 2, code=USAGE)
        self.assertIn("in codes: weights gradients", done.stderr)
        done = self.run_command("checkpoint", "reshard", self.path("run.store"), self.path("new"), "--ranks", 2, "--stage", 0, code=USAGE)
        self.assertIn("the run gathers weights in int8", done.stderr)
        stage_0 = {"zero_optimization": {**codes["zero_optimization"], "stage": 0}}
        done = self.run_command("train", self.config("refused", **stage_0), "--ranks", 2, code=USAGE)
        self.assertIn("every rank has all of them", done.stderr)

    def test_on_the_host_device_they_leave_the_bits_of_ranks_in_place(self):
        on_device = {"penstock": {"device": "host", "device_budget": "512MiB", "activations": "offload"}}
        for name, changes in (("in_place", {}), ("on_device", on_device)):
            self.json_of("train", self.config(name, eval_every=2, eval_batches=3, **changes), "--ranks", 2)
        of_steps = [[(step["loss"], step["grad_norm"], step.get("eval_loss")) for step in self.log(name)] for name in ("in_place", "on_device")]
        self.assertEqual(len(of_steps[0]), 4)
        self.assertEqual(of_steps[1], of_steps[0])
        self.assertEqual(self.weights("on_device", "fp32"), self.weights("in_place", "fp32"))
        answer = self.json_of("verify", self.config("verified", precision="bf16", **on_device), "--ranks", 2, "--steps", 2)
        self.assertEqual((answer["words_different"], answer["losses_different"]), (0, 0))


class Choice(RanksCase):
    """The stage, where the config says none."""

    def setUp(self):
        super().setUp()
        (self.folder / "tiny.json").write_text(json.dumps({**TINY, "n_embd": 256, "n_layer": 12}))
        # So slow a way between ranks that gathering for each pass costs more than all else.
        machine = json.loads(self.machine.read_text())
        (self.folder / "slow.json").write_text(json.dumps({**machine, "collective_gbps": 0.05}))

    def run_of(self, name, host_budget="900MiB", machine="slow.json", max_steps=2, **changes):
        """Drives without room for all of the state on each rank."""
        placed = {"machine": self.path(machine) if machine else str(self.machine), "weights": "nvme", "host_state_share": 0, "nvme_budget": "300MiB", "host_budget": host_budget}
        return self.config(name, max_steps=max_steps, penstock=placed, **changes)

    def train(self, *run, **how):
        done = self.run_command("train", self.run_of(*run, **how), "--ranks", 2)
        stage = json.loads((self.folder / run[0] / "config.json").read_text())["zero_optimization"]["stage"]
        return stage, re.findall("^zero_optimization: .*", done.stderr, re.M)

    def test_is_the_fastest_that_fits_changes_no_bit_and_stays_when_the_run_goes_on(self):
        stage, said = self.train("open")
        self.assertEqual((stage, len(said)), (2, 1), said)
        self.assertRegex(said[0], "^zero_optimization: stage 2, the fastest that fits, .* a step; stage 3: .*, stage 0 does not fit$")
        # It goes on with other budgets and another machine as it began, or in another stage that the user names.
        self.assertEqual(self.train("open", "800MiB", machine=None, max_steps=3), (2, []))
        self.assertEqual(self.train("open", max_steps=4, zero_optimization={"stage": 3}), (3, []))
        self.assertEqual(self.train("named", max_steps=4, zero_optimization={"stage": 3}), (3, []))
        self.assertEqual([step["loss"] for step in self.log("open")], [step["loss"] for step in self.log("named")])
        self.assertEqual(self.weights("open", "fp32"), self.weights("named", "fp32"))

    def test_where_none_fits_it_says_what_each_rank_is_short_of(self):
        said = self.run_command("train", self.run_of("none", "300MiB"), "--ranks", 2, code=DOES_NOT_FIT).stderr
        self.assertIn("zero_optimization: stage 3, none fits, and this one takes the least memory", said)
        self.assertRegex(said, "(?m)^try: raise --budget host= by at least [0-9.]+ MiB, for each of its 2 ranks$")


class Lora(RanksCase):
    def lora(self, name, **changes):
        return self.config(name, precision="bf16", lora={"rank": 4, "dropout": 0.1}, **changes)

    def test_adapters_over_a_bf16_base_hold_against_a_plain_loop_of_as_many_ranks(self):
        answer = self.json_of("verify", self.lora("verify"), "--ranks", 2, "--steps", 3)
        self.assertEqual((answer["words_different"], answer["losses_different"], answer["ranks"]), (0, 0, 2))
        self.assertEqual([row["placement"] for row in answer["placements"]], ["stage 0", "stage 2", "stage 3"])

    def test_they_are_the_same_in_every_stage_and_through_a_reshard(self):
        found = []
        for stage in (0, 2, 3):
            name = f"stage{stage}"
            self.json_of("train", self.lora(name, eval_every=2, eval_batches=2, keep_every=2, zero_optimization={"stage": stage}), "--ranks", 2)
            losses = [(step["loss"], step.get("eval_loss")) for step in self.log(name)]
            self.assertEqual(len(losses), 4)
            found.append((losses, self.adapter(name)))
        self.assertEqual(found[1], found[0])
        self.assertEqual(found[2], found[0])
        self.json_of("checkpoint", "reshard", self.path("stage3.store"), self.path("one.store"), "--ranks", 1)
        self.assertEqual(self.adapter("one"), found[0][1])
        # Of a step that was kept the frozen weights are those of the stores themselves.
        kept = self.weights("stage3", "fp32", "--merged", "--step", 2)
        self.json_of("checkpoint", "rollback", self.path("stage3.store"), "--step", 2)
        self.assertEqual(self.weights("stage3", "fp32", "--merged"), kept)

    def adapter(self, name):
        out = Path(tempfile.mkdtemp(dir=self.folder)) / "out"
        self.run_command("checkpoint", "export", self.path(name + ".store"), out, "--dtype", "fp32", "--adapter")
        return (out / "adapter_model.safetensors").read_bytes()


class Snapshots(RanksCase):
    def ls(self, name="run"):
        return self.json_of("checkpoint", "ls", self.path(name + ".store"))["snapshots"]

    def kept(self, name="run"):
        return [one["step"] for one in self.ls(name)]

    def files(self, step, name="run"):
        return sorted((self.folder / (name + ".store")).glob(f"kept/rank?/{step}/rank?.tiles"))

    def test_a_step_is_kept_on_all_ranks(self):
        goes_on = dict(keep_every=2, keep_best=1, eval_every=1, eval_batches=1)
        self.json_of("train", self.config(**goes_on, max_steps=5), "--ranks", 2)
        losses = {step["step"]: step["eval_loss"] for step in self.log()}
        best = min(losses, key=losses.get)
        self.assertEqual(self.kept(), sorted({2, 4, best}))
        self.assertEqual({one["step"]: one["eval_loss"] for one in self.ls()}, {step: losses[step] for step in self.kept()})
        for one in self.ls():
            files = self.files(one["step"])
            self.assertEqual([file.name for file in files], ["rank0.tiles", "rank1.tiles"])
            self.assertEqual(one["bytes"], sum(file.stat().st_blocks * 512 for file in files))
        # What one rank alone has is no snapshot: it is not listed, and goes when the run goes on.
        shutil.rmtree(self.folder / "run.store" / "kept" / "rank1" / "2")
        self.assertNotIn(2, self.kept())
        said = self.run_command("train", self.config(keep_every=3, max_steps=6), "--ranks", 2).stderr
        self.assertIn("the snapshot of step 2 is removed: rank 1 had none", said)
        self.assertEqual(self.files(2), [])
        self.assertEqual(self.kept(), sorted({4, best, 6}))
        # By hand, while no run goes on.
        self.json_of("checkpoint", "rm", self.path("run.store"), "--step", 6)
        self.assertEqual((self.kept(), self.files(6)), (sorted({4, best}), []))
        self.assertEqual(self.json_of("checkpoint", "snapshot", self.path("run.store"))["step"], 6)
        self.assertEqual((self.kept(), len(self.files(6))), (sorted({4, best, 6}), 2))

    def test_a_rollback_leaves_ranks_that_were_stopped_there_and_go_on_as_if_they_had_never_gone_further(self):
        run = self.config(keep_every=2, max_steps=5)
        self.json_of("train", run, "--ranks", 2)
        losses = [step["loss"] for step in self.log()]
        self.json_of("train", self.config("stopped", max_steps=2), "--ranks", 2)
        stopped, store, shard = self.weights("stopped", "fp32"), self.folder / "run.store", self.folder / "rank1.tiles"
        shutil.copy(store / "rank1.tiles", shard)
        # The step that was kept is read where it lies, and the newest, too, where it was not kept.
        self.assertEqual(self.weights("run", "fp32", "--step", 2), stopped)
        self.assertEqual(self.weights("run", "fp32", "--step", 5), self.weights("run", "fp32"))
        said = self.run_command("checkpoint", "export", store, self.path("third"), "--step", 3, code=USAGE).stderr
        self.assertIn("step 3 is not among them: 2, 4", said)
        self.assertFalse((self.folder / "third").exists())
        back = self.json_of("checkpoint", "rollback", store, "--step", 2)
        self.assertEqual((back["from"], back["step"], [one["step"] for one in back["snapshots"]]), (5, 2, [2, 4]))
        self.assertEqual(self.weights(dtype="fp32"), stopped)
        # One that was killed when rank 0 had gone back, and rank 1 had not.
        shutil.copy(shard, store / "rank1.tiles")
        for rank in (0, 1):
            (store / "kept" / f"rank{rank}" / "rollback").write_text("2\n")
        said = self.run_command("checkpoint", "export", store, self.path("out"), code=USAGE).stderr
        self.assertIn("rank 0 is at step 2, rank 1 at step 5", said)
        self.assertIn("a rollback to step 2 was cut short", self.run_command("checkpoint", "ls", store).stdout)
        said = self.run_command("checkpoint", "rm", store, "--step", 2, code=USAGE).stderr
        self.assertIn("a rollback to step 2 was cut short", said)
        said = self.run_command("train", run, "--ranks", 2).stderr
        self.assertIn("a rollback to step 2 was cut short, and is done now", said)
        self.assertEqual([(step["step"], step["loss"]) for step in self.log()[5:]], list(enumerate(losses, 1))[2:])
        self.assertEqual(list(store.glob("kept/rank?/rollback")), [])


class Reshard(RanksCase):
    def reshard(self, source, target, ranks, *flags):
        return self.json_of("checkpoint", "reshard", self.path(source + ".store"), self.path(target + ".store"), "--ranks", ranks, *flags)

    def files(self, name):
        return {file.name: file.read_bytes() for file in (self.folder / (name + ".store")).iterdir()}

    def test_a_run_goes_on_as_if_its_world_had_never_changed(self):
        whole = self.config("whole", zero_optimization={"stage": 3})
        self.json_of("train", whole, "--ranks", 2)
        half = self.config("half", max_steps=2, zero_optimization={"stage": 3})
        self.json_of("train", half, "--ranks", 2)
        worlds = ["half", "three", "four", "one", "back"]
        before, masters = self.files("half"), self.weights("half", "fp32")
        for source, target, ranks in zip(worlds, worlds[1:], (3, 4, 1, 2)):
            flags = ["--stage", 0] if ranks == 4 else ["--stage", 3]
            answer = self.reshard(source, target, ranks, *flags)
            self.assertEqual((answer["step"], answer["ranks"]), (2, ranks))
            # Eight samples in micro-batches of two: not among three.
            self.assertEqual(answer["gradient_accumulation_steps"], {1: 4, 2: 2, 3: None, 4: 1}[ranks])
            self.run_command("checkpoint", "scrub", self.path(target + ".store"))
            self.assertEqual(self.weights(target, "fp32"), masters)
        self.assertEqual(self.files("half"), before)
        # Moments, counts and the trainer's state as well: it goes on with the very bits of the run that was whole.
        self.json_of("train", self.config("back", zero_optimization={"stage": 3}), "--ranks", 2)
        self.assertEqual([step["loss"] for step in self.log("back")], [step["loss"] for step in self.log("whole")][2:])
        self.assertEqual(self.weights("back", "fp32"), self.weights("whole", "fp32"))
        for name, ranks in (("one", 1), ("four", 4), ("three", 3)):
            stage = {"stage": 0 if ranks == 4 else 3}
            config = self.config(name, gradient_accumulation_steps=max(1, 4 // ranks), zero_optimization=stage)
            self.json_of("train", config, *(["--ranks", ranks] if ranks > 1 else []))
            self.assertEqual([step["step"] for step in self.log(name)], [3, 4])
            if ranks == 3:
                continue  # six samples a step
            # The same samples; gradients are rounded once for each rank.
            for mine, other in zip(self.log(name), self.log("back")):
                self.assertAlmostEqual(mine["loss"], other["loss"], delta=0.02)

    def test_weights_that_were_imported_begin_a_run_of_several_ranks(self):
        self.json_of("train", self.config("one", max_steps=1))
        self.json_of("checkpoint", "export", self.path("one.store"), self.path("weights"))
        begins = dict(model=self.path("weights"), max_steps=2)

        def imported(name, *flags, code=0, **changes):
            config = self.config(name, **begins, **changes)
            return self.run_command("checkpoint", "import", self.path("weights"), "--store", self.path(name + ".store"), "--config", config, *flags, code=code)

        imported("in")
        self.reshard("in", "two", 2)
        self.assertIn("for 2 ranks", imported("direct", "--ranks", 2).stdout)
        for dtype in ("auto", "fp32"):
            self.assertEqual(self.weights("direct", dtype), self.weights("two", dtype))
        self.run_command("checkpoint", "scrub", self.path("direct.store"))
        for name in ("two", "direct", "anew"):
            self.json_of("train", self.config(name, **begins), "--ranks", 2)
            self.assertEqual([step["loss"] for step in self.log(name)], [step["loss"] for step in self.log("two")])
            self.assertEqual(self.weights(name, "fp32"), self.weights("two", "fp32"))
        # Each stage has its own cut, and what is there stays.
        imported("direct", "--ranks", 3, code=USAGE)
        imported("direct", "--ranks", 4, "--force", zero_optimization={"stage": 0}, gradient_accumulation_steps=1)
        self.assertEqual(set(self.files("direct")), {f"rank{rank}.tiles" for rank in range(4)})
        self.assertEqual(self.weights("direct", "fp32"), self.weights("in", "fp32"))
        imported("none", "--ranks", 65, code=USAGE)
        imported("none", "--ranks", 2, code=USAGE, penstock={"space": "single"})
        self.assertFalse((self.folder / "none.store").exists())

    def test_what_it_refuses_stays_as_it_was(self):
        self.json_of("train", self.config("two", max_steps=1, zero_optimization={"stage": 3}), "--ranks", 2)
        before = self.files("two")

        def refused(said, code, *arguments):
            self.assertIn(said, self.run_command("checkpoint", "reshard", *arguments, code=code).stderr)
            self.assertEqual(self.files("two"), before)

        source = self.path("two.store")
        refused("a folder of the store that is read", USAGE, source, source, "--ranks", 3)
        refused("--ranks: missing", USAGE, source, self.path("new"))
        refused("--ranks: 65", USAGE, source, self.path("new"), "--ranks", 65)
        refused("--stage: 4", USAGE, source, self.path("new"), "--ranks", 3, "--stage", 4)
        refused("No such file", USAGE, self.path("none"), self.path("new"), "--ranks", 3)
        (self.folder / "part").mkdir()
        shutil.copy(Path(source) / "rank0.tiles", self.folder / "part")
        refused("1 of 2 ranks' stores are here", USAGE, self.path("part"), self.path("new"), "--ranks", 3)
        self.assertFalse((self.folder / "new").exists())
        self.reshard("two", "three", 3)
        refused("has a store already: rank0.tiles", USAGE, source, self.path("three.store"), "--ranks", 4)
        self.reshard("two", "three", 2, "--force")
        self.assertEqual(set(self.files("three")), {"rank0.tiles", "rank1.tiles"})
        said = self.run_command("train", self.config("two", zero_optimization={"stage": 0}), "--ranks", 2, code=USAGE).stderr
        self.assertIn("made with zero_optimization.stage 3", said)
        self.assertIn(f"`penstock checkpoint reshard {source} NEW --ranks 2 --stage 0`", said)
        said = self.run_command("train", self.config("two", zero_optimization={"stage": 3, "mics_shard_size": 1}), "--ranks", 2, code=USAGE).stderr
        self.assertIn(f"`penstock checkpoint reshard {source} NEW --ranks 2 --stage 3 --shard-size 1`", said)
        refused("--shard-size: 2: of 3 ranks", USAGE, source, self.path("new"), "--ranks", 3, "--shard-size", 2)
        self.reshard("two", "copies", 2, "--stage", 3, "--shard-size", 1)
        self.assertEqual(self.weights("copies"), self.weights("two"))
        said = self.run_command("train", self.config("two"), "--ranks", 3, code=USAGE).stderr
        self.assertIn(f"`penstock checkpoint reshard {source} NEW --ranks 3`", said)

    def test_a_killed_one_leaves_nothing_that_opens(self):
        wide = {**TINY, "n_embd": 256, "n_layer": 6, "vocab_size": 4096}
        (self.folder / "tiny.json").write_text(json.dumps(wide))
        self.json_of("train", self.config("two", max_steps=1), "--ranks", 2)
        run = subprocess.Popen([PENSTOCK, "checkpoint", "reshard", self.path("two.store"), self.path("new.store"), "--ranks", "4"],
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(run.kill)
        while run.poll() is None and not (self.folder / "new.store" / "rank3.tiles").exists():
            time.sleep(0.001)
        run.kill()
        if run.wait() == 0:
            self.skipTest("it was done before it could be killed")
        self.assertFalse((self.folder / "new.store" / "rank0.tiles").exists())
        said = self.run_command("checkpoint", "export", self.path("new.store"), self.path("out"), code=USAGE).stderr
        self.assertRegex(said, "rank0.tiles|has the store of rank [1-3], and rank 0's is nowhere here")
        self.reshard("two", "new", 4, "--force")
        self.assertEqual(self.weights("new"), self.weights("two"))


class Ends(RanksCase):
    def test_a_killed_rank_is_named_and_a_restart_ends_with_the_same_bits(self):
        self.json_of("train", self.config("whole", max_steps=30), "--ranks", 2)
        masters = self.weights("whole", "fp32")
        for victim in (1, 0):
            config = self.config(f"killed{victim}", max_steps=30, penstock={"hangs_after_s": 60})
            run = self.start(config)
            self.wait_for_steps(run, f"killed{victim}", 3)
            os.kill(next(process for process in processes_of(config) if rank_of(process) == victim), signal.SIGKILL)
            said = run.communicate(timeout=120)[1]
            self.assertEqual(run.returncode, ENVIRONMENT, said)
            refusals = re.findall("^penstock: .*", said, re.M)
            self.assertEqual(len(refusals), 1, said)
            self.assertRegex(refusals[0], f"^penstock: rank {victim} died in step [0-9]+$")
            self.expect_nothing_left(config)
            self.json_of("train", config, "--ranks", 2)
            losses = {}
            for step in self.log(f"killed{victim}"):
                self.assertEqual(losses.setdefault(step["step"], step["loss"]), step["loss"])
            self.assertEqual([losses[step] for step in sorted(losses)], [step["loss"] for step in self.log("whole")])
            self.assertEqual(self.weights(f"killed{victim}", "fp32"), masters)

    def test_a_stopped_rank_is_named_and_all_end(self):
        for victim in (1, 0):
            config = self.config(f"stopped{victim}", max_steps=100000, penstock={"hangs_after_s": 5})
            run = self.start(config)
            self.wait_for_steps(run, f"stopped{victim}", 2)
            os.kill(next(process for process in processes_of(config) if rank_of(process) == victim), signal.SIGSTOP)
            said = run.communicate(timeout=120)[1]
            self.assertEqual(run.returncode, ENVIRONMENT, said)
            self.assertRegex(said, f"(?m)^penstock: rank {victim} hangs in step [0-9]+: no sign of life for ")
            self.expect_nothing_left(config)

    def test_an_interrupt_commits_the_same_step_of_all(self):
        config = self.config("asked", max_steps=100000)
        run = self.start(config)
        self.wait_for_steps(run, "asked", 3)
        run.send_signal(signal.SIGINT)
        said = run.communicate(timeout=120)[1]
        self.assertEqual(run.returncode, INTERRUPTED, said)
        committed = int(re.search("step ([0-9]+) is committed", said).group(1))
        self.assertEqual(len(self.log("asked")), committed)
        self.expect_nothing_left(config)
        self.weights("asked")  # of stores that are at one step

    def test_no_rank_outlives_a_killed_launcher(self):
        config = self.config("orphans", max_steps=100000)
        run = self.start(config)
        self.wait_for_steps(run, "orphans", 1)
        run.kill()
        run.communicate(timeout=120)
        self.expect_nothing_left(config)

    def test_a_rank_that_cannot_begin_is_named(self):
        config = self.config("small", penstock={"host_budget": "20MiB"})
        said = self.run_command("train", config, "--ranks", 2, code=DOES_NOT_FIT).stderr
        self.assertEqual(len(re.findall("^penstock: ", said, re.M)), 1, said)
        self.expect_nothing_left(config)


class Hosts(RanksCase):
    """Two hosts: network namespaces with names and a cable between them, where these can be made; else both on 127.0.0.1."""
    NAMES = ("host-a", "host-b")
    OF_HOSTS = ("a", "b")

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.enter, cls.address = [[], []], "127.0.0.1"
        try:
            cls.why_no_networks = cls.make_networks()
        except OSError as error:
            cls.why_no_networks = str(error)

    @classmethod
    def make_networks(cls):
        enter = []
        for name in cls.NAMES:
            # Ends with this process, and the namespaces with it.
            holder = subprocess.Popen(["unshare", "--net", "--uts", "sh", "-c", f"hostname {name} && ip link set lo up && echo made && exec cat"],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            cls.addClassCleanup(holder.communicate)
            cls.addClassCleanup(holder.kill)
            if holder.stdout.readline() != "made\n":
                return "no network namespaces here"
            enter.append(["nsenter", "-t", str(holder.pid), "-n", "-u"])
        other = enter[1][2]
        for host, words in ((0, f"link add cable0 type veth peer name cable1 netns {other}"), (0, "addr add 10.77.0.1/24 dev cable0"),
                            (1, "addr add 10.77.0.2/24 dev cable1"), (0, "link set cable0 up"), (1, "link set cable1 up")):
            if subprocess.run([*enter[host], "ip", *words.split()], check=False, capture_output=True).returncode != 0:
                return f"ip {words}: refused"
        cls.enter, cls.address = enter, "10.77.0.1"
        return None

    def name_of(self, host):
        return os.uname().nodename if self.why_no_networks else self.NAMES[host]

    def configs(self, name, **changes):
        """One for each host, which has a store of its own; the run's folder is the first's."""
        penstock = changes.pop("penstock", {})
        found = []
        for host in self.OF_HOSTS:
            own = {"stores": [self.path(f"{name}.{host}")], "run": self.path(name), **penstock}
            found.append(self.config(f"{name}-{host}", penstock=own, **changes))
        return found

    def free_port(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    def torchrun_of(self, host, rank_here, ranks_here, meeting):
        return {"RANK": host * ranks_here + rank_here, "WORLD_SIZE": 2 * ranks_here, "LOCAL_RANK": rank_here, "LOCAL_WORLD_SIZE": ranks_here,
                "GROUP_RANK": host, "TORCHELASTIC_RUN_ID": self.id(), **meeting}

    def slurm_of(self, host, rank_here, ranks_here, meeting):
        return {"SLURM_JOB_ID": os.getpid(), "SLURM_STEP_ID": 0, "SLURM_PROCID": host * ranks_here + rank_here, "SLURM_NTASKS": 2 * ranks_here,
                "SLURM_NNODES": 2, "SLURM_NODEID": host, "SLURM_LOCALID": rank_here, **meeting}

    def start_ranks(self, configs, ranks_here=2, launcher=None, verb=("train",)):
        """By rank; a process that enters a namespace stays the same process."""
        meeting = {"MASTER_ADDR": self.address, "MASTER_PORT": self.free_port(), "PENSTOCK_SECRET": self.id()}
        ranks = []
        for host, config in enumerate(configs):
            for rank_here in range(ranks_here):
                place = (launcher or self.torchrun_of)(host, rank_here, ranks_here, meeting)
                rank = subprocess.Popen([*self.enter[host], PENSTOCK, verb[0], config, *verb[1:], "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env={**ENVIRON, **{name: str(value) for name, value in place.items()}})
                self.addCleanup(rank.kill)
                ranks.append(rank)
        return ranks

    def ends_of(self, ranks, code):
        ends = [rank.communicate(timeout=300) for rank in ranks]
        for rank, (out, err) in zip(ranks, ends):
            self.assertEqual(rank.returncode, code, [out + err for out, err in ends])
        return ends

    def train(self, configs, **how):
        ends = self.ends_of(self.start_ranks(configs, **how), 0)
        self.assertEqual([out for out, _ in ends[1:]], [""] * (len(ends) - 1))
        return json.loads(ends[0][0])

    def train_by_torchrun(self, configs):
        port, agents = self.free_port(), []
        for host, config in enumerate(configs):
            words = [*self.enter[host], TORCHRUN, "--no-python", "--nnodes", 2, "--nproc-per-node", 2, "--node-rank", host,
                     "--master-addr", self.address, "--master-port", port, PENSTOCK, "train", config]
            agents.append(subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRON))
            self.addCleanup(agents[-1].kill)
        self.ends_of(agents, 0)

    def masters(self, name):
        out = Path(tempfile.mkdtemp(dir=self.folder)) / "out"
        stores = ",".join(self.path(f"{name}.{host}") for host in self.OF_HOSTS)
        self.run_command("checkpoint", "export", stores, out, "--dtype", "fp32")
        return (out / "model.safetensors").read_bytes()

    def files(self, name):
        return [sorted(file.name for file in (self.folder / f"{name}.{host}").iterdir()) for host in self.OF_HOSTS]

    def test_every_stage_leaves_the_bits_of_as_many_ranks_on_one_host(self):
        self.json_of("train", self.config("one", max_steps=2), "--ranks", 4)
        masters, log = self.weights("one", "fp32"), [(step["loss"], step["grad_norm"]) for step in self.log("one")]
        hybrid = {"stage": 3, "mics_shard_size": 2}  # what is gathered stays within a host
        for name, zero, launcher in (("stage0", {"stage": 0}, None), ("stage2", {"stage": 2}, TORCHRUN), ("stage3", {"stage": 3}, self.slurm_of),
                                     ("hybrid", hybrid, None)):
            configs = self.configs(name, max_steps=2, zero_optimization=zero)
            if launcher == TORCHRUN and TORCHRUN.exists():
                self.train_by_torchrun(configs)
            else:
                answer = self.train(configs, launcher=None if launcher == TORCHRUN else launcher)
                # The budget is a host's, of two ranks.
                self.assertEqual((answer["ranks"], answer["steps"], answer["budget_bytes"]), (4, 2, 2**30), name)
            self.assertEqual([(step["loss"], step["grad_norm"]) for step in self.log(name)], log, name)
            self.assertEqual(self.masters(name), masters, name)
            self.assertEqual(self.files(name), [["rank0.tiles", "rank1.tiles"], ["rank2.tiles", "rank3.tiles"]], name)

    def test_verify_holds_all_hosts_against_a_plain_loop_of_the_first(self):
        configs = self.configs("verify", precision="bf16")
        answer = json.loads(self.ends_of(self.start_ranks(configs, verb=("verify", "--steps", "2")), 0)[0][0])
        self.assertEqual((answer["words_different"], answer["losses_different"], answer["ranks"]), (0, 0, 4))
        self.assertEqual([row["placement"] for row in answer["placements"]], ["stage 0", "stage 2", "stage 3", "stage 3 within every 2"])
        self.assertEqual([(self.folder / f"verify.{host}").exists() for host in self.OF_HOSTS], [False, False])

    def test_a_killed_rank_is_named_on_all_hosts_and_a_restart_ends_with_the_same_bits(self):
        self.json_of("train", self.config("whole", max_steps=20), "--ranks", 4)
        configs = self.configs("killed", max_steps=20, zero_optimization={"stage": 3, "mics_shard_size": 2})
        ranks = self.start_ranks(configs)
        self.wait_for_steps(ranks[0], "killed", 2)
        ranks[3].kill()
        killed = time.monotonic()
        ranks[3].communicate(timeout=60)
        for _, err in self.ends_of(ranks[:3], ENVIRONMENT):
            refusals = re.findall("^penstock: .*", err, re.M)
            self.assertEqual(len(refusals), 1, err)
            self.assertRegex(refusals[0], f"^penstock: rank 3 on {self.name_of(1)} died in step [0-9]+$")
        self.assertLess(time.monotonic() - killed, 30)
        for config in configs:
            self.expect_nothing_left(config)
        self.assertEqual(self.files("killed"), [["rank0.tiles", "rank1.tiles"], ["rank2.tiles", "rank3.tiles"]])
        self.train(configs)
        losses = {step["step"]: step["loss"] for step in self.log("killed")}
        self.assertEqual([losses[step] for step in sorted(losses)], [step["loss"] for step in self.log("whole")])
        self.assertEqual(self.masters("killed"), self.weights("whole", "fp32"))

    def test_what_hosts_do_not_have_alike_is_named(self):
        by_step = {"durability": "step"}
        self.train(self.configs("two", max_steps=1, penstock=by_step), ranks_here=1)
        shutil.copytree(self.path("two.b"), self.path("first"))
        self.train(self.configs("two", max_steps=4, penstock=by_step), ranks_here=1)
        before = self.masters("two")
        go_on = self.configs("two", max_steps=5, penstock=by_step)
        first, other = f"rank 0 on {self.name_of(0)}", f"rank 1 on {self.name_of(1)}"

        def refused(said, code, store="two.b", **changes):
            configs = [go_on[0], self.config("other", **{"max_steps": 5, **changes}, penstock={"stores": [self.path(store)], **by_step})]
            for _, err in self.ends_of(self.start_ranks(configs, ranks_here=1), code):
                self.assertIn(said, err)
            self.assertEqual(self.masters("two"), before)

        refused("none.bin", USAGE, data=self.path("none.bin"))
        refused(f"{other}: what it trains", USAGE, max_steps=6)
        refused(f"{self.path('empty')}: no store for {other}, although {first} has one", USAGE, store="empty")
        refused(f"no step in common: {first} at step 4, {other} at step 1", CORRUPT, store="first")
        self.train(go_on, ranks_here=1)
        self.assertEqual([step["step"] for step in self.log("two")], [1, 2, 3, 4, 5])

    def test_the_hosts_have_networks_of_their_own(self):
        if self.why_no_networks:
            self.skipTest(f"both hosts were on 127.0.0.1: {self.why_no_networks}")
        self.assertNotEqual(self.enter[0], self.enter[1])


class Refusals(RanksCase):
    def test_each_says_what_to_do(self):
        def refused(said, *arguments, environ=None):
            done = self.run_command(*arguments, code=USAGE, environ=environ)
            self.assertIn(said, done.stderr)

        self.json_of("train", self.config("two"), "--ranks", 2)
        refused("made by 2 ranks, 1 is here", "train", self.config("two"))
        refused("made by 2 ranks, 3 are here", "train", self.config("two"), "--ranks", 3)
        (self.folder / "two.store" / "rank1.tiles").unlink()
        refused("no store for rank 1, although rank 0 has one", "train", self.config("two"), "--ranks", 2)
        self.json_of("train", self.config("one"))
        refused("made by 1 rank, 2 are here", "train", self.config("one"), "--ranks", 2)
        refused("at most 64", "train", self.config("many"), "--ranks", 65)
        refused("MASTER_PORT", "train", self.config("env"), environ={"RANK": "0", "WORLD_SIZE": "2"})
        slurm = {"SLURM_PROCID": "0", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "4", "SLURM_NNODES": "2"}
        refused("MASTER_ADDR is not set", "train", self.config("env"), environ=slurm)
        refused("SLURM_NTASKS", "train", self.config("env"), environ={"SLURM_PROCID": "0", "SLURM_STEP_ID": "0"})
        refused("where 1 were started", "train", self.config("env"), "--ranks", 2, environ={"RANK": "0", "WORLD_SIZE": "1"})
        refused("--grid", "verify", self.config("grid"), "--ranks", 2, "--grid")
        for changes, said in (({"zero_optimization": {"stage": 4}}, "0 to 3"), ({"train_batch_size": 6}, "train_batch"),
                              ({"penstock": {"moments": "bf16"}}, "bf16"),
                              ({"penstock": {"space": "single"}}, "one slot"), ({"penstock": {"hangs_after_s": 0}}, "hangs_after_s")):
            refused(said, "train", self.config("refused", **changes), "--ranks", 2)
            self.assertFalse((self.folder / "refused.store").exists(), said)


class Readme(RanksCase):
    def test_its_lines_for_several_ranks_run(self):
        lines = [line.split("#")[0] for line in README.read_text().splitlines() if "--ranks 2" in line or line.startswith("torchrun") and "--nnodes" not in line]
        self.assertEqual(len(lines), 2)
        logs = []
        for number, line in enumerate(lines):
            words = shlex.split(line)
            if words[0] == "torchrun":
                if not TORCHRUN.exists():
                    self.skipTest("no torchrun in .venv")
                words[0] = str(TORCHRUN)
            config = self.config(f"line{number}")
            words = [str(PENSTOCK) if word == "build/bin/penstock" else config if word.endswith(".json") else word for word in words]
            words = words[:words.index(config) + 1] + [word for word in words[words.index(config) + 1:] if word in ("--ranks", "2")]
            done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300, env=ENVIRON)
            self.assertEqual(done.returncode, 0, f"{words}: {done.stdout}{done.stderr}")
            self.assertEqual(done.stdout.count("steps 1 to 4"), 1, done.stdout)
            logs.append([step["loss"] for step in self.log(f"line{number}")])
        self.assertEqual(logs[0], logs[1])


class ManualPage(RanksCase):
    """penstock-ranks(1), done as it says."""

    PAGE = README.parent / "tools" / "manual" / "penstock-ranks.1"

    def test_what_it_shows_runs(self):
        page = self.PAGE.read_text()
        (self.folder / "model.json").write_text(json.dumps(TINY))
        said = {}
        for name, block in manual_page.blocks(page):
            if name:
                file = json.loads(block)
                file["penstock"]["machine"] = str(self.machine)
                (self.folder / name).write_text(json.dumps(file))
            for line in block.splitlines() if block.startswith("$ ") else ():
                words = line.removeprefix("$ penstock ")
                done = subprocess.run([PENSTOCK, *shlex.split(words)], capture_output=True, text=True, check=False, timeout=300,
                                      env=ENVIRON, cwd=self.folder)
                self.assertEqual(done.returncode, 0, f"{words}: {done.stdout}{done.stderr}")
                said[words] = done.stdout
        one_node, nodes, coded, trained, cut, *exported_and_imported = said.values()
        self.assertEqual(len(exported_and_imported), 2)
        for row in ("state, by ZeRO", "stage 0", "stages 1 and 2", "stage 3"):
            self.assertIn(row, one_node)
            self.assertIn(row, nodes)
        self.assertIn("hybrid", nodes)
        self.assertRegex(coded, r"codes: weights in int8, gradients in int4: a rank sends .* of weights, .* of gradients less a step")
        bound = re.search(r"compute-bound from about \S+ tokens a step", one_node)[0]
        self.assertIn(bound, page)
        self.assertEqual(trained.count("steps 1 to 4"), 1, trained)
        self.assertTrue((self.folder / "three").exists(), cut)


if __name__ == "__main__":
    unittest.main(verbosity=2)
