#!/usr/bin/env python3
"""`penstock train` and its config as a user runs it: what becomes of each key, resuming, interrupts and kills.

Usage: train_test.py PENSTOCK [CLASS].
"""
import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
import unittest

from train_support import ENVIRONMENT, PENSTOCK, TINY, USAGE, TrainCase

LANES = ("nvme_read", "nvme_write", "host_to_device", "device_to_host", "update", "collective", "compute")


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

    def test_what_check_passes_train_does_not_refuse_for_the_file_alone(self):
        store = self.path("store")
        for changes, said in (({"penstock": {"host_budget": "0"}}, "config: penstock.host_budget: 0"),
                              ({"penstock": {"host_budget": "much"}}, "config: penstock.host_budget: "),
                              ({"penstock": {"nvme_budget": "1 parsec"}}, "config: penstock.nvme_budget: "),
                              ({"penstock": {"device_budget": "x"}}, "config: penstock.device_budget: "),
                              ({"penstock": {"durability": "every"}}, "config: penstock.durability: 'every'"),
                              ({"penstock": {"stores": [store, store + "/./"]}}, "/./: given twice"),
                              ({"keep_best": 2}, "config: keep_best: 2: eval_every is 0"),
                              ({"early_stopping": {"patience": 3}}, "config: early_stopping.patience: 3: eval_every is 0")):
            config = self.config(**changes)
            for verb in (("config", "check"), ("train",)):
                self.assertIn(said, self.run_command(*verb, config, code=USAGE).stderr, (verb, changes))
        self.assertEqual(sorted(each.name for each in self.folder.iterdir()), ["config.json", "text.txt", "tiny.json"])

    def test_every_known_key_is_listed(self):
        keys = {key["key"] for key in self.json_of("config", "keys")["keys"]}
        self.assertIn("zero_optimization.offload_optimizer.nvme_path", keys)
        page = self.run_command("config", "keys", "--help").stdout
        for key in keys:
            self.assertIn(key, page)

    def test_a_run_follows_the_file_and_flags_change_it(self):
        config = self.config(scheduler={"type": "linear", "params": {"warmup_steps": 2, "end_ratio": 0.5}}, gradient_clipping=1e-3)
        answer = self.json_of("train", config, "--steps", 3, "--lr", "0.02")
        self.assertEqual(answer["steps"], 3)
        self.assertEqual(answer["config"]["optimizer"]["params"]["lr"], 0.02)
        # Those that change a batch take the place of what the file says of its whole size, too.
        sized = self.config(train_batch_size=4)
        for flags, sizes in ((("--micro-batches", 3), (6, 2, 3)), (("--sequences", 1), (2, 1, 2))):
            said = self.json_of("train", sized, *flags, "--dry-run")["config"]
            self.assertEqual(tuple(said[key] for key in ("train_batch_size", "train_micro_batch_size_per_gpu",
                                                         "gradient_accumulation_steps")), sizes)
        self.assertEqual(json.loads((self.folder / "run" / "config.json").read_text()), answer["config"])
        log = self.log()
        self.assertEqual([step["lr"] for step in log], [0.01, 0.02, 0.01])
        self.assertEqual([step["step"] for step in log], [1, 2, 3])
        # Those that are clipped take longer.
        self.assertAlmostEqual(answer["predicted_s"], sum(step["predicted_s"] for step in log) / 3)

    def test_the_runs_folder_says_what_steps_and_their_plan_make_of_the_machine(self):
        begin = time.monotonic()
        measured_at_start = self.config(gradient_clipping=0, penstock={"machine": ""})
        answer = self.json_of("train", measured_at_start, "--budget", "host=1GiB")
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

    def test_a_sequence_has_at_most_as_many_tokens_as_a_gpt2_has_positions(self):
        self.json_of("train", self.config(sequence_length=64), "--dry-run")
        done = self.run_command("train", self.config(sequence_length=65), "--dry-run", code=USAGE)
        self.assertIn("sequence_length: 65 tokens, the model has 64 positions\ntry: --seq 64", done.stderr)

    def test_a_models_config_that_no_root_has_room_for_is_refused_before_anything_is_made(self):
        (self.folder / "tiny.json").write_text(json.dumps({**TINY, "id2label": {str(i): "x" * 50 for i in range(600)}}))
        done = self.run_command("train", self.config(), code=USAGE)
        self.assertRegex(done.stderr, "config.json: [0-9]+ B, at most 32000 B expected, which every root keeps\ntry: leave out")
        self.assertFalse((self.folder / "store").exists())

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

    def test_imported_weights_begin_a_run_in_any_order_of_samples(self):
        self.json_of("train", self.config(max_steps=1))
        self.json_of("checkpoint", "export", self.path("store"), self.path("weights"))
        place = {"stores": [self.path("imported")], "run": self.path("goes_on")}
        self.json_of("checkpoint", "import", self.path("weights"), "--config", self.config(penstock=place))

        def goes_on(seed, steps, code=0):
            config = self.config(model=self.path("weights"), seed=seed, max_steps=steps, penstock=place)
            return self.run_command("train", config, code=code)
        goes_on(77, 1)
        done = goes_on(78, 2, code=USAGE)
        self.assertIn("seed 77", done.stderr)

    def test_other_data_at_the_same_path_is_refused_until_it_is_named_anew(self):
        self.json_of("train", self.config())
        began_with = json.loads((self.folder / "run" / "config.json").read_text())["data"][0]["hash"]
        with (self.folder / "text.txt").open("r+") as text:
            text.write("In")
        more = ("train", "--store", self.path("store"), "--steps", 5)
        refused = self.run_command(*more, code=USAGE)
        self.assertIn(f"the run was told {began_with}", refused.stderr)
        done = self.run_command("train", self.config(data=[{"path": self.path("text.txt"), "hash": began_with}, self.path("text.txt")]),
                                code=USAGE)
        told = re.search(r'or ("hash": "\w+") beside it in the config', done.stderr).group(1)
        # A config that names no hash is the one that the run began with.
        refused = self.run_command("train", self.config(max_steps=5), code=USAGE)
        self.assertIn(f"the run was told {began_with}", refused.stderr)
        self.assertEqual(json.loads((self.folder / "run" / "config.json").read_text())["data"][0]["hash"], began_with)
        done = self.run_command(*more, "--data", self.path("text.txt"))
        self.assertRegex(done.stderr, f'changed: data: .*"hash":"{began_with}".*, now .*"hash":"(?!{began_with})')
        self.json_of("train", self.config(max_steps=6, data=[{"path": self.path("text.txt"), **json.loads("{%s}" % told)}]))

    def test_a_refused_run_leaves_the_runs_folder_as_it_was(self):
        self.json_of("train", self.config())
        kept = (self.folder / "run" / "config.json").read_bytes()
        other = {**TINY, "n_embd": 32}
        (self.folder / "other.json").write_text(json.dumps(other))
        self.run_command("train", "--store", self.path("store"), "--run", self.path("run"), "--model", self.path("other.json"),
                         "--steps", 9, code=USAGE)
        self.assertEqual((self.folder / "run" / "config.json").read_bytes(), kept)
        self.run_command("train", self.config(model=self.path("other.json"), penstock={"run": self.path("new")}), code=USAGE)
        self.assertFalse((self.folder / "new").exists())

    def test_one_run_at_a_time_writes_to_a_folder(self):
        (self.folder / "run").mkdir()
        held = os.open(self.folder / "run", os.O_RDONLY)
        self.addCleanup(os.close, held)
        fcntl.flock(held, fcntl.LOCK_EX)
        done = self.run_command("train", self.config(), code=ENVIRONMENT)
        self.assertIn(f"--run: {self.path('run')}: another run writes its log there", done.stderr)
        self.assertFalse((self.folder / "store").exists())
        fcntl.flock(held, fcntl.LOCK_UN)
        self.json_of("train", self.config())
        other = {"stores": [self.path("other")]}
        done = self.run_command("train", self.config(penstock=other))
        self.assertIn(f"has the log of the store {self.path('store')}; that of {self.path('other')} follows it", done.stderr)

    def test_a_store_that_another_process_has_is_waited_for_with_a_word(self):
        self.json_of("train", self.config())
        with open(self.folder / "store" / "rank0.tiles", "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            waits = subprocess.Popen([PENSTOCK, "train", self.config(max_steps=5), "--force"], stderr=subprocess.PIPE, text=True,
                                     stdout=subprocess.DEVNULL)
            self.assertIn("another process has it; waiting for its end, up to 10 s", waits.stderr.readline())
        waits.communicate()
        self.assertEqual(waits.returncode, 0)

    def test_a_model_with_a_tokenizer_is_not_trained_on_bytes(self):
        model = self.folder / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(TINY))
        (model / "tokenizer.json").write_text("{}")
        done = self.run_command("train", "--model", model, "--store", self.path("store"), "--steps", 1, code=USAGE)
        self.assertIn(f"data: missing: the model in {model} reads tokens of its tokenizer.json", done.stderr)
        self.assertIn(f"`penstock data FILE --model {model} --out DIR`, then --data DIR", done.stderr)
        self.json_of("train", "--model", model, "--from-scratch", "--store", self.path("store"), "--steps", 1, "--seq", 16)

    def test_an_interrupt_before_the_first_step_leaves_the_store_as_it_was(self):
        self.json_of("train", self.config())
        config = self.config(max_steps=9, penstock={"machine": ""})  # drives are measured
        begun = subprocess.Popen([PENSTOCK, "train", config], stderr=subprocess.PIPE, text=True, stdout=subprocess.DEVNULL)
        self.assertIn("measure drives", begun.stderr.readline())
        begun.send_signal(signal.SIGINT)
        said = begun.communicate()[1]
        self.assertEqual(begun.returncode, 130)
        self.assertIn("interrupted before the first step: the store is as it was", said)
        self.assertEqual(self.json_of("checkpoint", "ls", self.path("store"))["step"], 4)

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


if __name__ == "__main__":
    unittest.main(verbosity=2)
