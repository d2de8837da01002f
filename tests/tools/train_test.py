#!/usr/bin/env python3
"""`penstock train` and its files, as a user runs it: configs, resuming, Hugging Face folders.

Usage: train_test.py PENSTOCK [CLASS].
"""
import contextlib
import fcntl
import json
import math
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
from pathlib import Path

PENSTOCK = Path(sys.argv.pop(1)).resolve()
USAGE = 2
TINY = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4,
        "vocab_size": 257, "n_positions": 64, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
LANES = ("nvme_read", "nvme_write", "host_to_device", "device_to_host", "update", "collective", "compute")
TEXT = "Of Mans First Disobedience, and the Fruit Of that Forbidden Tree, whose mortal tast Brought Death into the World. "


class TrainCase(unittest.TestCase):
    def setUp(self):
        # Beside the build: /tmp may be a tmpfs, where no store can be.
        self.folder = Path(tempfile.mkdtemp(dir=PENSTOCK.parent))
        self.addCleanup(shutil.rmtree, self.folder, True)
        (self.folder / "tiny.json").write_text(json.dumps(TINY))
        (self.folder / "text.txt").write_text(TEXT * 40)

    def path(self, name):
        return str(self.folder / name)

    def config(self, **changes):
        """A small run; a section in `changes` is merged with what is here."""
        file = {"model": self.path("tiny.json"), "data": self.path("text.txt"), "sequence_length": 16, "max_steps": 4,
                "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "seed": 3,
                "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1}},
                "penstock": {"stores": [self.path("store")], "run": self.path("run"), "host_budget": "1GiB"}}
        for key, value in changes.items():
            if isinstance(value, dict) and key in file:
                file[key] = {**file[key], **value}
            else:
                file[key] = value
        path = self.folder / "config.json"
        path.write_text("// What this run does.\n" + json.dumps(file))
        return str(path)

    def run_command(self, *arguments, code=0):
        # One thread: a product waits for its slowest, and tests run beside one another.
        done = subprocess.run([PENSTOCK, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=300,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stdout}{done.stderr}")
        return done

    def json_of(self, *arguments, code=0):
        return json.loads(self.run_command(*arguments, "--json", code=code).stdout)

    def log(self, run="run"):
        return [json.loads(line) for line in (self.folder / run / "log.jsonl").read_text().splitlines()]


class Configs(TrainCase):
    def test_check_says_what_becomes_of_every_key_and_ends_with_2_where_one_cannot_be_followed(self):
        good = self.json_of("config", "check", self.config(zero_optimization={"stage": 3}))
        verdicts = {key["key"]: key["verdict"] for key in good["keys"]}
        self.assertEqual(verdicts["max_steps"], "honoured")
        self.assertEqual(verdicts["zero_optimization.stage"], "honoured")
        self.assertEqual(good["config"]["optimizer"]["params"]["lr"], 1e-2)
        bad = self.json_of("config", "check", self.config(gradient_cliping=1, amp={"enabled": True}), code=USAGE)
        verdicts = {key["key"]: key for key in bad["keys"]}
        self.assertEqual(verdicts["gradient_cliping"]["nearest"], "gradient_clipping")
        self.assertEqual(verdicts["amp.enabled"]["verdict"], "refused")
        self.assertIn("bf16.enabled", verdicts["amp.enabled"]["note"])
        # What no key is wrong in alone.
        bad = self.json_of("config", "check", self.config(train_batch_size=7), code=USAGE)
        self.assertIn("train_batch_size", bad["error"]["message"])
        self.run_command("config", "check", self.path("absent.json"), code=USAGE)

    def test_every_known_key_is_listed(self):
        keys = {key["key"] for key in self.json_of("config", "keys")["keys"]}
        self.assertIn("zero_optimization.offload_optimizer.nvme_path", keys)
        page = self.run_command("config", "keys", "--help").stdout
        for key in keys:
            self.assertIn(key, page)

    def test_a_run_follows_the_file_and_flags_change_it(self):
        config = self.config(scheduler={"type": "linear", "params": {"warmup_steps": 2, "end_ratio": 0.5}})
        answer = self.json_of("train", config, "--steps", 3, "--lr", "0.02")
        self.assertEqual(answer["steps"], 3)
        self.assertEqual(answer["config"]["optimizer"]["params"]["lr"], 0.02)
        self.assertEqual(json.loads((self.folder / "run" / "config.json").read_text()), answer["config"])
        log = self.log()
        self.assertEqual([step["lr"] for step in log], [0.01, 0.02, 0.01])
        self.assertEqual([step["step"] for step in log], [1, 2, 3])

    def test_the_runs_folder_says_what_steps_and_their_plan_make_of_the_machine(self):
        begin = time.monotonic()
        answer = self.json_of("train", self.config(gradient_clipping=0), "--budget", "host=1GiB")
        seconds = time.monotonic() - begin
        log, plan = self.log(), json.loads((self.folder / "run" / "plan.json").read_text())
        self.assertEqual(list(self.folder.glob("run/*.partial")), [])
        for step in log:
            self.assertTrue({"compute"} <= set(step["busy_s"]) <= set(LANES), step["busy_s"])
            self.assertGreater(step["floor_share"], 0)
            # By the sizes of TINY: 2 blocks of 12 * 64^2 and a head of 257 * 64 weights, 2 operations each, and attention
            # over half of 16 tokens; 64 tokens, forward and twice as much back.
            flops = 3 * 64 * (2 * (2 * 12 * 64 * 64 + 2 * 16 * 64) + 2 * 257 * 64)
            self.assertAlmostEqual(step["tflops"] * step["step_s"] * 1e12 / flops, 1, places=6)
            self.assertLess(0, step["mfu"])
            self.assertLess(step["mfu"], 1)
        # Which updates and writes are under way when a step ends, the machine decides.
        for lane in LANES:
            busy_s = sum(step["busy_s"].get(lane, 0) for step in log)
            self.assertLess(busy_s, seconds)
            if not lane.startswith("nvme"):  # how often a step is durable, the drives decide
                self.assertEqual(busy_s > 0, lane in ("update", "compute"), lane)
        self.assertEqual((plan["since_step"], plan["budget"]), (0, answer["budget"]))
        self.assertEqual(plan["budget_bytes"]["host"], 1 << 30)
        self.assertAlmostEqual(plan["predicted_s"], log[0]["predicted_s"])
        # Updates share the processor. Both are sums, in orders of their own.
        self.assertGreaterEqual(plan["lanes"]["compute"] * (1 + 1e-9), plan["compute_s"])
        # Weights of 2 B, their masters' low halves and two moments of 4 B, wherever they rest.
        rest = {role: sum(tiers.values()) for role, tiers in plan["state_bytes"].items()}
        self.assertEqual(set(rest.values()), {rest["weight"], 2 * rest["weight"]})
        self.assertEqual(sum(rest.values()), 6 * rest["weight"])
        self.assertEqual([drive["endurance_bytes"] for drive in plan["drives"]], [None])
        # What there is no time for in a run of 4 such steps is left out, and that is said.
        changes = [change["what"].split(":")[0] for change in plan["advice"]["changes"]]
        self.assertEqual(changes, ["drives", "host memory", "updates on the CPU", "compute"][:len(changes)])
        self.assertEqual(plan["advice"]["complete"], len(changes) == 4)
        # Another run on the store writes its own. Its progress fits into the terminal.
        screen, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
        subprocess.run([PENSTOCK, "train", self.config(), "--steps", "5"], stdout=subprocess.DEVNULL, stderr=slave, check=True, timeout=300)
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # which is how a terminal says that nobody writes to it any more
            while part := os.read(screen, 1 << 16):  # may bring less than there is
                shown += part
        os.close(screen)
        drawn = re.findall(r"\r\x1b\[K(\[[^\r\n]*)", shown.decode())
        self.assertEqual(max(map(len, drawn)), 49)
        self.assertIn("] 100 % step 5, loss ", drawn[-1])
        self.assertEqual(json.loads((self.folder / "run" / "plan.json").read_text())["since_step"], 4)

    def test_another_run_on_the_store_asks_for_nothing_and_says_what_it_changes(self):
        self.json_of("train", self.config())
        (self.folder / "tiny.json").unlink()
        done = self.run_command("train", "--store", self.path("store"), "--steps", 6, "--json")
        self.assertEqual(json.loads(done.stdout)["steps"], 6)
        self.assertIn("changed: max_steps: 4, now 6", done.stderr)
        self.assertIn("resuming after step 4", done.stderr)
        # The numbers are those of a run that was not stopped.
        stopped = [step["loss"] for step in self.log()]
        (self.folder / "tiny.json").write_text(json.dumps(TINY))
        whole = self.config(max_steps=6, penstock={"stores": [self.path("store2")], "run": self.path("run2")})
        self.json_of("train", whole)
        self.assertEqual(stopped, [step["loss"] for step in self.log("run2")])
        # What cannot change midway is refused.
        done = self.run_command("train", "--store", self.path("store"), "--seq", 8, "--steps", 7, code=USAGE)
        self.assertIn("sequence_length 8", done.stderr)

    def test_a_store_that_something_else_made_is_left_alone(self):
        self.json_of("update", "--params", "1M", "--steps", 1, "--store", self.path("store"), "--budget", "host=1GiB")
        done = self.run_command("train", self.config(), code=USAGE)
        self.assertIn("it names no model", done.stderr)
        self.run_command("checkpoint", "export", self.path("store"), self.path("out"), code=USAGE)
        self.assertEqual(self.json_of("checkpoint", "ls", self.path("store"))["step"], 1)

    def test_fp16_finds_its_loss_scale_and_goes_on_with_it_after_a_stop(self):
        fp16 = dict(precision="fp16", fp16={"initial_scale_power": 24, "hysteresis": 2, "loss_scale_window": 3}, max_steps=14)
        self.json_of("train", self.config(**fp16))
        whole = self.log()
        scales = [step["loss_scale"] for step in whole]
        self.assertEqual(scales[0], 2.0**24)
        self.assertTrue(any(step["skipped"] for step in whole))
        for step, following in zip(whole, whole[1:]):
            self.assertLessEqual(following["loss_scale"], step["loss_scale"] * (1 if step["skipped"] else 2))
        self.assertLess(min(scales), 2.0**24)
        self.assertLess(whole[-1]["loss"], whole[0]["loss"])
        # Stopped after steps that overflowed, that did not, and before one that does.
        place = {"stores": [self.path("store2")], "run": self.path("run2")}
        for until in (1, 3, 6, 9, 14):
            self.json_of("train", self.config(**fp16, penstock=place), "--steps", until)
        self.assertEqual([(step["loss"], step["loss_scale"], step["skipped"]) for step in whole],
                         [(step["loss"], step["loss_scale"], step["skipped"]) for step in self.log("run2")])

    def test_an_interrupt_commits_and_stops_and_kills_lose_nothing(self):
        said = self.run_command("train", self.config(max_steps=40), "--progress", "json").stderr
        shown = re.findall(r'"what": ?"(step [^"]*)"', said)
        self.assertTrue(shown)
        for line in shown:
            self.assertRegex(line, r"^step \d+, loss [0-9.]+, ([0-9 a-z.]+ to go, )?\d+ tokens/s, [0-9.]+ s, predicted [0-9.]+, at least [0-9.]+ \(\d+ %\); "
                                   r"lr [0-9.e-]+, norm [0-9.e+-]+; drives [0-9.]+ GB/s read, [0-9.]+ written; [0-9.e-]+ TFLOP/s, "
                                   r"MFU [0-9.e-]+ %; "
                                   r"waited (for nothing|\d+ % for [a-z_ ]+(, \d+ % for [a-z_ ]+)*)$")
        whole = {step["step"]: step["loss"] for step in self.log()}
        place = {"stores": [self.path("store2")], "run": self.path("run2")}
        config = self.config(max_steps=40, penstock=place)
        log = self.folder / "run2" / "log.jsonl"
        for way in (signal.SIGINT, signal.SIGKILL):
            run = subprocess.Popen([PENSTOCK, "train", config, "--json", "--progress", "json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env={**os.environ, "OMP_NUM_THREADS": "1"})
            seen = len(log.read_text().splitlines()) if log.exists() else 0
            while run.poll() is None and (not log.exists() or len(log.read_text().splitlines()) < seen + 5):
                time.sleep(0.01)
            run.send_signal(way)
            answer, said = run.communicate(timeout=300)
            if run.returncode == 0:
                self.skipTest("the run was through before it could be stopped")
            if way == signal.SIGINT:
                self.assertEqual(run.returncode, 130, said)
                committed = int(re.search(r"step ([0-9]+) is committed", said).group(1))
                self.assertEqual(self.json_of("checkpoint", "ls", self.path("store2"))["step"], committed)
                # What was done is told all the same, and each step was when it ended.
                answer = json.loads(answer)
                self.assertEqual((answer["steps"], answer["error"]["code"]), (committed, 130))
                told = [json.loads(line)["step"] for line in said.splitlines() if line.startswith('{"step"')]
                self.assertEqual(told, self.log("run2"))
                self.assertEqual(answer["loss_last"], told[-1]["loss"])
        self.json_of("train", config)
        resumed = {}
        for line in log.read_text().splitlines():
            step = json.loads(line)
            # A step that was lost with its process is taken again, and comes out the same.
            self.assertEqual(resumed.setdefault(step["step"], step["loss"]), step["loss"])
        self.assertEqual(resumed, whole)

    def test_a_dry_run_says_what_would_be_done_and_leaves_nothing(self):
        answer = self.json_of("train", self.config(), "--dry-run")
        self.assertTrue(answer["dry_run"])
        self.assertGreater(answer["bytes_per_parameter"]["written"], 0)
        self.assertTrue(any(line["line"] == "program" for line in answer["budget"]))
        self.assertFalse((self.folder / "store").exists())
        self.assertFalse((self.folder / "run").exists())

    def test_refuses_before_anything_is_made(self):
        for changes, said in (({"optimizer": {"type": "Lamb"}}, "Lamb"), ({"model": "/no/such/model"}, "ENOENT"),
                              ({"parameters": [{"pattern": "lora", "frozen": True}]}, "lora"),
                              ({"penstock": {"device_budget": "large"}}, "device_budget"),
                              ({"penstock": {"host_budget": "much"}}, "host_budget"),
                              ({"penstock": {"device": "gpu"}}, "cuda:N"),
                              ({"penstock": {"device": "host"}}, "device_budget"),
                              ({"penstock": {"device": "cpu", "device_budget": "1GiB"}}, "in place"),
                              ({"penstock": {"durability": "never"}}, "durability"),
                              ({"gradient_accumulation_steps": 70000}, "65536")):
            done = self.run_command("train", self.config(**changes), "--store", self.path("refused"), code=USAGE)
            self.assertIn(said, done.stderr)
            self.assertFalse((self.folder / "refused").exists(), said)
        for words in ((self.path("absent.json"),), (str(self.folder),), ("--data", self.path("absent.txt")), ("--data", str(self.folder)),
                      ("--model", self.path("absent"))):
            done = self.run_command("train", *words, "--store", self.path("refused"), code=USAGE)
            self.assertRegex(done.stderr.splitlines()[-1], "^try: .", words)


class Evaluation(TrainCase):
    def test_of_several_sets_each_has_a_loss_of_its_own(self):
        (self.folder / "numbers.txt").write_text(" ".join(str(i * i) for i in range(1000)))
        sets = [self.path("text.txt"), self.path("numbers.txt")]
        # With a rate of 0, whatever is trained on leaves the weights as they began.
        same = {"held_out_share": 0.2, "eval_every": 1, "eval_batches": 3, "max_steps": 1,
                "optimizer": {"type": "AdamW", "params": {"lr": 0}}}
        last = self.json_of("train", self.config(data=[{"path": path} for path in sets], **same))
        entry = self.log()[-1]
        for number, one in enumerate(sets):
            places = {"stores": [self.path(f"of{number}")], "run": self.path(f"run{number}")}
            self.json_of("train", self.config(data=one, penstock=places, **same))
            alone = self.log(f"run{number}")[-1]
            self.assertEqual(entry["eval_sets"][number]["loss"], alone["eval_loss"])
            self.assertNotIn("eval_sets", alone)
        self.assertEqual([one["set"] for one in entry["eval_sets"]], sets)
        self.assertEqual([one["tokens"] for one in entry["eval_sets"]], [3 * 2 * 16] * 2)
        self.assertEqual(entry["eval_tokens"], 2 * 3 * 2 * 16)
        self.assertAlmostEqual(sum(one["loss"] for one in entry["eval_sets"]) / 2, entry["eval_loss"], places=9)
        self.assertEqual(last["eval_loss"], entry["eval_loss"])

    def test_it_is_the_loss_of_what_is_held_out_and_changes_no_bit_of_the_training(self):
        self.json_of("train", self.config(held_out_share=0.2))
        evaluated = self.config(held_out_share=0.2, eval_every=2, eval_batches=3,
                                penstock={"stores": [self.path("store2")], "run": self.path("run2")})
        answer = self.json_of("train", evaluated)
        plain, log = self.log(), self.log("run2")
        self.assertEqual([step["loss"] for step in plain], [step["loss"] for step in log])
        self.assertEqual([step["grad_norm"] for step in plain], [step["grad_norm"] for step in log])
        self.assertEqual(["eval_loss" in step for step in log], [False, True, False, True])
        self.assertEqual(log[1]["eval_tokens"], 3 * 2 * 16)
        self.assertEqual(answer["eval_loss"], log[3]["eval_loss"])
        self.assertAlmostEqual(log[3]["eval_perplexity"], math.exp(log[3]["eval_loss"]))
        self.assertLess(log[3]["eval_loss"], log[1]["eval_loss"])
        self.assertNotIn("eval_sets", log[1])
        # One that is stopped and goes on evaluates the same.
        self.json_of("train", self.config(held_out_share=0.2, eval_every=2, eval_batches=3, max_steps=3,
                                          penstock={"stores": [self.path("store3")], "run": self.path("run3")}))
        self.json_of("train", "--store", self.path("store3"), "--steps", 4)
        self.assertEqual(self.log("run3")[3]["eval_loss"], log[3]["eval_loss"])
        for store in ("2", "3"):
            self.export(self.path("store"), "a" + store)
            self.export(self.path("store" + store), "b" + store)
            self.assertEqual(self.weights("a" + store), self.weights("b" + store))

    def test_a_run_that_does_not_become_better_ends_early(self):
        # A rate at which the loss rises after a while.
        early = dict(held_out_share=0.2, eval_every=1, max_steps=40, early_stopping={"patience": 2},
                     optimizer={"type": "AdamW", "params": {"lr": 0.2}})
        done = self.run_command("train", self.config(**early), "--json")
        losses = [step["eval_loss"] for step in self.log()]
        self.assertTrue(json.loads(done.stdout)["stopped_early"])
        self.assertLess(len(losses), 40)
        self.assertGreaterEqual(min(losses[-2:]), min(losses[:-2]))
        for i in range(2, len(losses) - 1):
            self.assertLess(min(losses[i - 1:i + 1]), min(losses[:i - 1]), f"it should have ended after step {i + 1}")
        self.assertEqual([bool(step.get("stopped_early")) for step in self.log()], [False] * (len(losses) - 1) + [True])
        self.assertIn("stopped early: 2 evaluations without a lower loss", done.stderr)
        # Started again it stays there; one that is stopped on the way ends at the same step.
        self.assertIn("where the run stopped early", self.run_command("train", self.config(**early)).stdout)
        ours = {"stores": [self.path("store2")], "run": self.path("run2")}
        for until in [*range(1, len(losses)), 40]:
            self.json_of("train", self.config(**early, penstock=ours), "--steps", until)
        self.assertEqual([step["eval_loss"] for step in self.log("run2")], losses)
        done = self.run_command("train", self.config(**{**early, "eval_every": 0}), code=USAGE)
        self.assertIn("no step is evaluated", done.stderr)

    def test_nothing_held_out_cannot_be_evaluated(self):
        done = self.run_command("train", self.config(held_out_share=0, eval_every=2), code=USAGE)
        self.assertIn("held_out_share", done.stderr)

    def export(self, store, name):
        return self.json_of("checkpoint", "export", store, self.path(name), "--dtype", "fp32")

    def weights(self, name):
        return (self.folder / name / "model.safetensors").read_bytes()


class Samples(TrainCase):
    """What a run answers as it goes on. Here bytes are tokens; the tokenizers of models are finetune_test.py's."""

    ASKED = {"prompts": ["Of Mans First ", "the Fruit"], "max_new_tokens": 20}

    def test_they_change_no_bit_of_the_training(self):
        self.json_of("train", self.config())
        ours = {"stores": [self.path("store2")], "run": self.path("run2")}
        done = self.run_command("train", self.config(sample_every=3, samples={**self.ASKED, "temperature": 1}, penstock=ours))
        plain, log = self.log(), self.log("run2")
        for key in ("loss", "grad_norm"):
            self.assertEqual([step[key] for step in plain], [step[key] for step in log])
        self.assertEqual(["samples" in step for step in log], [False, False, True, True])
        for sample, prompt in zip(log[2]["samples"], self.ASKED["prompts"]):
            self.assertEqual(sample["prompt"], prompt)
            self.assertTrue(len(sample["tokens"]) == 20 or sample["ended"])
            self.assertIn(f"{prompt} => ", done.stderr)
        self.assertNotEqual(log[2]["samples"], log[3]["samples"])
        for store in ("store", "store2"):
            self.json_of("checkpoint", "export", self.path(store), self.path(store + "_out"), "--dtype", "fp32")
        self.assertEqual(*((self.folder / f"{store}_out" / "model.safetensors").read_bytes() for store in ("store", "store2")))
        # One that is stopped and goes on draws the same.
        ours = {"stores": [self.path("store3")], "run": self.path("run3")}
        config = self.config(sample_every=3, samples={**self.ASKED, "temperature": 1}, penstock=ours)
        self.json_of("train", config, "--steps", 2)
        self.json_of("train", config)
        self.assertEqual(self.log("run3")[2]["samples"], log[2]["samples"])
        # And so does what is asked afterwards, of a run's folder or its config; the likeliest is asked for by default.
        for source in (self.path("run3"), config):
            answer = self.json_of("generate", source)
            self.assertEqual((answer["step"], answer["samples"]), (4, log[3]["samples"]))
        answer = self.json_of("generate", self.path("run3"), "Brought Death", "--temperature", 0, "--new-tokens", 5)
        [sample] = answer["samples"]
        self.assertEqual((sample["prompt"], len(sample["tokens"])), ("Brought Death", 5))

    def test_it_answers_what_it_has_learnt(self):
        (self.folder / "text.txt").write_text("the quick brown fox. " * 100)
        self.json_of("train", self.config(max_steps=200, sample_every=200, samples={"prompts": ["the quick"], "max_new_tokens": 12},
                                          precision="fp32"))
        [sample] = self.log()[-1]["samples"]
        self.assertEqual(sample["text"], " brown fox. ")

    def test_prompts_come_from_a_file_too_and_draws_have_a_seed_of_their_own(self):
        (self.folder / "prompts.txt").write_text('the Fruit\n\n"Of Mans First "\r\n{"text": "Brought"}\n')
        for name, more in (("a", {}), ("b", {"seed": 9}), ("c", {"seed": 9})):
            samples = {"prompts": ["whose "], "file": self.path("prompts.txt"), "max_new_tokens": 20, "temperature": 1, **more}
            place = {"stores": [self.path("store-" + name)], "run": self.path(name)}
            self.json_of("train", self.config(sample_every=4, samples=samples, penstock=place))
        drawn = [self.log(name)[-1]["samples"] for name in "abc"]
        self.assertEqual([sample["prompt"] for sample in drawn[0]], ["whose ", "the Fruit", "Of Mans First ", "Brought"])
        self.assertEqual([step["loss"] for step in self.log("a")], [step["loss"] for step in self.log("b")])
        self.assertNotEqual(drawn[0], drawn[1])
        self.assertEqual(drawn[1], drawn[2])
        self.assertEqual(self.json_of("generate", self.path("c"))["samples"], drawn[2])
        self.assertNotEqual(self.json_of("generate", self.path("c"), "--seed", 10)["samples"], drawn[2])
        for content, words in (("", "has no prompts"), ('ok\n{"txt": 1}\n', "line 2: has {"), ('"broken\n', 'line 1: has "broken')):
            (self.folder / "prompts.txt").write_text(content)
            done = self.run_command("train", self.config(sample_every=1, samples={"file": self.path("prompts.txt")}), code=USAGE)
            self.assertIn(words, done.stderr)
        done = self.run_command("train", self.config(sample_every=1, samples={"file": self.path("absent")}), code=USAGE)
        self.assertIn("absent", done.stderr)

    def test_what_cannot_be_asked_is_refused_before_anything_is_made(self):
        for samples, words in (({"top_k": 1}, "samples.prompts: missing"),
                               ({"prompts": []}, "a list of prompts expected"),
                               ({"prompts": [""]}, "has no tokens"),
                               ({"prompts": ["x" * 33]}, "33 tokens, at most those of a micro-batch expected, which are 32"),
                               ({"prompts": ["x" * 20], "max_new_tokens": 46}, "the model has 64 positions"),
                               ({"prompts": [{"messages": [{"role": "user", "content": "x"}]}]}, "takes plain strings, not messages"),
                               ({"prompts": ["x"], "tokenizer": self.path("absent")}, "its tokenizer cannot be loaded"),
                               ({"prompts": [3]}, "a string, "), ({"promts": ["x"]}, "samples.prompts")):
            done = self.run_command("train", self.config(sample_every=2, samples=samples), code=USAGE)
            self.assertIn(words, done.stderr + done.stdout)
        self.assertFalse((self.folder / "store").exists())
        done = self.run_command("generate", self.config(samples=self.ASKED), code=USAGE)
        self.assertIn("has no store", done.stderr)

    def test_what_is_remembered_is_within_the_budget(self):
        asked = dict(sample_every=2, samples={"prompts": ["x"] * 2000, "max_new_tokens": 60})
        planned = self.json_of("train", self.config(**asked), "--dry-run")
        # Keys and values of 60 tokens in 2 layers of 64 bf16, the prompts themselves, and logits.
        self.assertEqual(planned["samples_bytes"], 2000 * (60 * 2 * 2 * 64 * 2 + 64 * 2 + 257 * 6))
        # The least that the same run takes without, to 32 MiB; it varies by less than 16 MiB.
        fits, fits_not = 576, 64
        while fits - fits_not > 32:
            middle = (fits + fits_not) // 2
            done = subprocess.run([PENSTOCK, "train", self.config(), "--dry-run", "--budget", f"host={middle}MiB"],
                                  capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            fits, fits_not = (middle, fits_not) if done.returncode == 0 else (fits, middle)
        done = self.run_command("train", self.config(**asked), "--budget", f"host={fits + 16}MiB", code=3)
        self.assertIn("keys and values of 2000 prompts of up to 1 tokens with 60 new ones need 58.59 MiB", done.stderr)
        self.assertFalse((self.folder / "store" / "rank0.tiles").exists())


class Snapshots(TrainCase):
    def ls(self, store="store"):
        return self.json_of("checkpoint", "ls", self.path(store))

    def kept(self, store="store"):
        return [one["step"] for one in self.ls(store)["snapshots"]]

    def test_a_rollback_leaves_a_run_that_was_stopped_there_and_goes_on_as_one_that_never_went_wrong(self):
        stores = [self.path("a"), self.path("b")]
        ours = {"stores": stores, "run": self.path("run")}
        self.json_of("train", self.config(max_steps=9, keep_every=3, penstock=ours))
        whole = [step["loss"] for step in self.log()]
        listed = self.json_of("checkpoint", "ls", *stores)
        self.assertEqual([one["step"] for one in listed["snapshots"]], [3, 6, 9])
        # One slot of the two, and pages.
        space = [sum(path.stat().st_blocks * 512 for path in self.folder.glob(f"?/kept/{step}/rank0.tiles"))
                 for step in (3, 6, 9)]
        self.assertEqual([one["bytes"] for one in listed["snapshots"]], space)
        for bytes_kept in space:
            self.assertLess(bytes_kept, 0.8 * listed["bytes"])
        at_nine = self.weights_of(stores, "nine")
        back = self.json_of("checkpoint", "rollback", *stores, "--step", 3)
        self.assertEqual((back["from"], back["step"]), (9, 3))
        stopped = {"stores": [self.path("c")], "run": self.path("run_c")}
        self.json_of("train", self.config(max_steps=3, penstock=stopped))
        self.assertEqual(self.weights_of(stores, "three"), self.weights_of(stopped["stores"], "stopped"))
        self.json_of("train", self.config(max_steps=9, penstock={**ours, "run": self.path("again")}))
        self.assertEqual([step["loss"] for step in self.log("again")], whole[3:])
        self.assertEqual(self.weights_of(stores, "nine_again"), at_nine)
        gone = self.json_of("checkpoint", "rm", *stores, "--step", 6)
        self.assertEqual([one["step"] for one in gone["snapshots"]], [3, 9])
        self.assertEqual(list(self.folder.glob("?/kept/6")), [])
        done = self.run_command("checkpoint", "rollback", *stores, "--step", 6, code=USAGE)
        self.assertIn("step 6 is not among them: 3, 9", done.stderr)
        done = self.run_command("checkpoint", "rollback", *stores, code=USAGE)
        self.assertIn("snapshots of 3, 9", done.stderr)

    def weights_of(self, stores, name):
        self.json_of("checkpoint", "export", ",".join(stores), self.path(name), "--dtype", "fp32")
        return (self.folder / name / "model.safetensors").read_bytes()

    def test_the_best_stay(self):
        # A rate at which the loss rises after a while.
        config = self.config(held_out_share=0.2, eval_every=1, keep_best=2, keep_every=5, max_steps=8,
                             optimizer={"type": "AdamW", "params": {"lr": 0.2}})
        self.json_of("train", config)
        losses = {step["step"]: step["eval_loss"] for step in self.log()}
        best = sorted(losses, key=lambda step: (losses[step], step))[:2]
        self.assertEqual(self.kept(), sorted({*best, 5}))
        self.assertEqual({one["step"]: one.get("eval_loss") for one in self.ls()["snapshots"]},
                         {step: losses[step] for step in sorted({*best, 5})})
        done = self.run_command("train", self.config(keep_best=2, eval_every=0), code=USAGE)
        self.assertIn("keep_best", done.stderr)

    def test_what_was_to_follow_the_last_step_of_a_killed_process_is_done_by_the_next(self):
        config = self.config(held_out_share=0.2, eval_every=2, keep_every=4, keep_best=1, max_steps=4)
        self.json_of("train", config)
        lines = self.log()
        path = self.folder / "run" / "log.jsonl"
        text = path.read_text().splitlines(keepends=True)
        begun = {key: value for key, value in lines[-1].items() if not key.startswith("eval_")}

        def but_time(line):
            return {key: value for key, value in line.items() if key != "eval_s"}
        for last in (json.dumps(begun), text[-1].rstrip("\n")):  # killed in the evaluation, and in the snapshot
            path.write_text("".join(text[:-1]) + last)
            shutil.rmtree(self.folder / "store" / "kept" / "4")
            self.json_of("train", config)
            self.assertEqual([but_time(line) for line in self.log()], [but_time(line) for line in lines])
            self.assertIn(4, self.kept())
        shutil.rmtree(self.folder / "store" / "kept" / "4")
        path.write_text("".join(text) + text[-1][:20])  # a step that went with its process
        self.json_of("train", self.config(held_out_share=0.2, eval_every=2, keep_every=4, max_steps=5))
        self.assertEqual([line["step"] for line in self.log()], [1, 2, 3, 4, 5])
        self.assertIn(4, self.kept())

    def test_a_snapshot_by_hand_and_a_rollback_that_is_killed(self):
        self.json_of("train", self.config(max_steps=2))
        self.assertEqual(self.json_of("checkpoint", "snapshot", self.path("store"))["step"], 2)
        two = self.weights_of([self.path("store")], "two")
        self.json_of("train", self.config(max_steps=4))
        four = self.weights_of([self.path("store")], "four")
        rollback = [PENSTOCK, "checkpoint", "rollback", self.path("store"), "--step", "2"]
        for wait_s in (0.0, 0.01, 0.02, 0.03, 0.05):
            killed = subprocess.Popen(rollback, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(wait_s)
            killed.kill()
            killed.wait()
            step = self.ls()["step"]
            self.assertIn(step, (2, 4))
            self.assertEqual(self.weights_of([self.path("store")], f"after{wait_s}"), two if step == 2 else four)
            self.run_command("checkpoint", "scrub", self.path("store"))
        self.run_command(*rollback[1:])
        self.assertEqual(self.weights_of([self.path("store")], "back"), two)


class Verify(TrainCase):
    """Every bit of a tiered run against the plain loop."""

    def test_optimizers_moments_precisions_and_placements_leave_the_bits_of_the_plain_loop(self):
        (self.folder / "dropout.json").write_text(
            json.dumps({**TINY, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}))
        shared = dict(model=self.path("dropout.json"), gradient_accumulation_steps=3, eval_every=3, eval_batches=2,
                      held_out_share=0.2)
        on_drives, in_host = {"host_state_share": 0, "weights": "nvme"}, {"host_state_share": 1, "weights": "host"}
        frozen = [{"pattern": "h.0.", "frozen": True}, {"pattern": "wpe", "frozen": True}, {"pattern": "mlp", "lr": 0.05}]
        for name, changes in {
                "AdamW on drives, a frozen block": dict(parameters=frozen, penstock=on_drives, gradient_clipping=0.5),
                "AdamW, int8, keeping": dict(penstock={**in_host, "moments": "int8", "activations": "keep",
                                                       "micro_batch_group": 2}),
                "Lion, bf16 moments": dict(optimizer={"type": "Lion", "params": {"lr": 1e-3}},
                                           penstock={"host_state_share": 0.5, "moments": "bf16"}),
                "SGD in fp32, not clipped": dict(optimizer={"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}},
                                                 precision="fp32", gradient_clipping=0, penstock=on_drives),
                "fp16 that overflows": dict(precision="fp16", fp16={"initial_scale_power": 26, "hysteresis": 1},
                                            penstock=on_drives)}.items():
            with self.subTest(name):
                answer = self.json_of("verify", self.config(**shared, **changes), "--steps", 8)
                self.assertEqual((answer["words_different"], answer["losses_different"]), (0, 0))
                self.assertGreater(answer["words_compared"], 200_000)
                self.assertLess(answer["log"][-1]["tiered_loss"], answer["log"][0]["tiered_loss"])
                self.assertFalse((self.folder / "store").exists())

    def test_the_grid_goes_through_every_placement(self):
        config = self.config(gradient_accumulation_steps=1, penstock={"host_budget": "1GiB"})
        answer = self.json_of("verify", config, "--grid", "--steps", 1)
        self.assertEqual((answer["words_different"], answer["losses_different"]), (0, 0))
        names = [row["placement"] for row in answer["placements"]]
        self.assertEqual(len(set(names)), 6 * 6 * 2)
        self.assertIn("gradients spilled; offload; on the host device; groups of 1", names)
        self.assertGreater(answer["words_compared"], 72 * 200_000)
        self.assertFalse((self.folder / "store").exists())

    def test_the_run_itself_is_left_alone(self):
        self.json_of("train", self.config(max_steps=2))
        answer = self.json_of("verify", self.config(max_steps=2), "--steps", 3)
        self.assertEqual(answer["words_different"], 0)
        self.assertEqual(self.json_of("checkpoint", "ls", self.path("store"))["step"], 2)
        self.assertEqual(os.listdir(self.folder / "store"), ["rank0.tiles"])
        self.assertEqual(len(self.log()), 2)


class HuggingFace(TrainCase):
    """Against transformers and torch."""

    def setUp(self):
        super().setUp()
        try:
            os.environ["HF_HUB_OFFLINE"] = "1"
            import torch
            import transformers
        except ImportError as error:
            self.skipTest(f"{error} (tools/setup --checks installs it)")
        self.torch, self.transformers = torch, transformers
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()

    def model(self, kind, folder, dtype, shard="1GB"):
        t, torch = self.transformers, self.torch
        torch.manual_seed(5)
        common = dict(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, vocab_size=257,
                      max_position_embeddings=64, bos_token_id=1, eos_token_id=2)
        config = {"gpt2": lambda: t.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=257, n_positions=64,
                                               resid_pdrop=0, embd_pdrop=0, attn_pdrop=0),
                  "llama": lambda: t.LlamaConfig(**common, num_key_value_heads=2),
                  "qwen3": lambda: t.Qwen3Config(**common, num_key_value_heads=2, head_dim=32, tie_word_embeddings=True),
                  "gemma2": lambda: t.Gemma2Config(**common, num_key_value_heads=2, head_dim=32, sliding_window=7,
                                                   query_pre_attn_scalar=24, attn_logit_softcapping=5.0,
                                                   final_logit_softcapping=8.0),
                  "gemma3": lambda: t.Gemma3TextConfig(**common, num_key_value_heads=1, head_dim=32, sliding_window=7,
                                                       layer_types=["sliding_attention", "full_attention"]),
                  }[kind]()
        model = t.AutoModelForCausalLM.from_config(config).to(dtype)
        model.save_pretrained(self.path(folder), max_shard_size=shard)
        (self.folder / folder / "tokenizer_config.json").write_text('{"here": true}')
        return t.AutoModelForCausalLM.from_pretrained(self.path(folder), dtype=dtype)

    def logits(self, model):
        tokens = self.torch.arange(48).reshape(2, 24) * 5 % 257
        with self.torch.no_grad():
            return model.eval()(input_ids=tokens).logits.float()

    def test_what_is_imported_and_exported_has_identical_logits(self):
        for kind, dtype, precision in (("gpt2", self.torch.float32, "fp32"), ("llama", self.torch.bfloat16, "bf16"),
                                       ("qwen3", self.torch.float16, "fp16"), ("gemma3", self.torch.bfloat16, "bf16")):
            with self.subTest(kind):
                model = self.model(kind, kind, dtype, shard="100KB")
                config = self.config(model=self.path(kind), precision=precision, penstock={"stores": [self.path(kind + "_store")]})
                self.json_of("checkpoint", "import", self.path(kind), "--config", config)
                answer = self.json_of("checkpoint", "export", self.path(kind + "_store"), self.path(kind + "_out"),
                                      "--shard", "100kB")
                self.assertEqual(answer["step"], 0)
                self.assertTrue((self.folder / (kind + "_out") / "tokenizer_config.json").exists())
                self.assertTrue((self.folder / (kind + "_out") / "model.safetensors.index.json").exists())
                again = self.transformers.AutoModelForCausalLM.from_pretrained(self.path(kind + "_out"), dtype="auto")
                self.assertEqual(again.dtype, dtype)
                self.assertTrue(self.torch.equal(self.logits(model), self.logits(again)))

    def train_with_torch(self, model, steps, samples, rates):
        """Every step learns from all samples, as the command's here does."""
        torch = self.torch
        decaying = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() == 1]
        optimizer = torch.optim.AdamW([{"params": decaying, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}],
                                      lr=1.0, betas=(0.9, 0.95), eps=1e-8)
        tokens, targets = (torch.tensor([sample[shift:shift + 16] for sample in samples]) for shift in (0, 1))
        losses = []
        for step in range(steps):
            for group in optimizer.param_groups:
                group["lr"] = rates[step]
            logits = model(input_ids=tokens).logits.float()
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, 257), targets.reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
        return losses

    def test_twenty_steps_follow_pytorch_and_the_export_loads(self):
        text = (TEXT * 2)[:8 * 16 + 1].encode()
        (self.folder / "all.txt").write_bytes(text)
        samples = [list(text[i * 16:i * 16 + 17]) for i in range(8)]
        for kind in ("gpt2", "llama", "qwen3", "gemma2", "gemma3"):
            with self.subTest(kind):
                model = self.model(kind, kind, self.torch.float32)
                config = self.config(model=self.path(kind), data=self.path("all.txt"), held_out_share=0, max_steps=20,
                                     precision="fp32", train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=4,
                                     optimizer={"params": {"lr": 1e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}},
                                     scheduler={"type": "cosine", "params": {"warmup_steps": 3}},
                                     penstock={"stores": [self.path(kind + "_store")], "run": self.path(kind + "_run")})
                answer = self.json_of("train", config)
                log = self.log(kind + "_run")
                losses = self.train_with_torch(model, 20, samples, [step["lr"] for step in log])
                self.assertLess(abs(losses[0] - answer["loss_first"]), 1e-5)
                for ours, theirs in zip((step["loss"] for step in log), losses):
                    self.assertLess(abs(ours - theirs), 1e-3)
                self.assertLess(losses[-1], 0.8 * losses[0])
                self.json_of("checkpoint", "export", self.path(kind + "_store"), self.path(kind + "_out"))
                exported = self.transformers.AutoModelForCausalLM.from_pretrained(self.path(kind + "_out"), dtype="auto")
                apart = self.relative_difference(exported, model)
                print(f"{kind}: weights apart by {apart:.2e} after 20 steps", flush=True)
                self.assertLess(apart, 1e-5)

    def relative_difference(self, ours, theirs):
        squares = apart = 0.0
        for a, b in zip(ours.parameters(), theirs.parameters()):
            squares += b.double().square().sum().item()
            apart += (a.double() - b.double()).square().sum().item()
        return math.sqrt(apart / squares)

    def test_a_trained_run_exports_what_it_computes_with(self):
        self.model("llama", "llama", self.torch.bfloat16)
        config = self.config(model=self.path("llama"), held_out_share=0.2, eval_every=4, max_steps=4)
        answer = self.json_of("train", config)
        self.json_of("checkpoint", "export", self.path("store"), self.path("out"))
        # The run that begins with the export computes the same held-out loss before it has learnt anything.
        again = self.config(model=self.path("out"), held_out_share=0.2, eval_every=1, max_steps=1,
                            optimizer={"params": {"lr": 0, "weight_decay": 0}},
                            penstock={"stores": [self.path("store2")], "run": self.path("run2")})
        self.assertEqual(self.json_of("train", again)["eval_loss"], answer["eval_loss"])
        # The masters round to what forward computes with.
        self.json_of("checkpoint", "export", self.path("store"), self.path("masters"), "--dtype", "fp32")
        load = self.transformers.AutoModelForCausalLM.from_pretrained
        weights, masters = load(self.path("out"), dtype="auto"), load(self.path("masters"), dtype="auto")
        self.assertEqual(masters.dtype, self.torch.float32)
        differ = 0
        for a, b in zip(weights.parameters(), masters.parameters()):
            differ += int((a.float() != b).sum())
            self.assertLess(((a.float() - b).abs() / b.abs().clamp(min=1e-30)).max().item(), 2.0**-8 * 1.01)
        self.assertGreater(differ, 1000)

    def test_refuses_folders_that_do_not_suit(self):
        self.model("llama", "llama", self.torch.float32)
        for name in ("model.safetensors", "config.json"):
            broken = self.folder / ("without_" + name)
            shutil.copytree(self.path("llama"), broken)
            (broken / name).unlink()
            self.run_command("train", self.config(model=str(broken)), code=USAGE)
            self.assertFalse((self.folder / "store").exists())
        self.json_of("train", self.config(max_steps=1))
        self.run_command("checkpoint", "export", self.path("store"), self.path("llama"), code=USAGE)  # is there already
        self.run_command("checkpoint", "export", self.path("store"), code=USAGE)
        done = self.run_command("checkpoint", "import", self.path("llama"), "--store", self.path("store"), code=USAGE)
        self.assertIn("--force", done.stderr)


class Doctor(TrainCase):
    def test_measured_compute_is_in_the_forecast(self):
        profile = self.path("profile.json")
        measured = self.json_of("doctor", "--measure", "--profile", profile)["measured"]
        self.assertGreater(measured["device_flops"], 1e8)
        least, most = measured["device_flops_range"]
        self.assertTrue(least <= measured["device_flops"] <= most)
        self.assertEqual(measured["profile_path"], profile)
        kept = json.loads(Path(profile).read_text())
        self.assertEqual((kept["device_flops"], kept["devices"]), (measured["device_flops"], 0))
        kept["drives"] = [{"path": "/", "device": "any", "mix_curve": [[0, 1.0], [1, 2.0]]}]
        Path(profile).write_text(json.dumps(kept))
        plan = self.json_of("plan", "--model", "gpt2", "--machine", profile, "--tokens", "1024")
        self.assertEqual(plan["unknown_rates"], [])
        # Forward and backward are 6 flops a parameter and token, attention and the head's second pass besides.
        floor_s = 6 * 1024 * plan["model"]["parameters"] / measured["device_flops"]
        self.assertTrue(floor_s < plan["lanes"]["compute"] < 2 * floor_s, (floor_s, plan["lanes"]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
