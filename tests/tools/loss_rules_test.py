#!/usr/bin/env python3
"""What `penstock train` does about batches that are left out, by the config or by rules about their loss.

Usage: loss_rules_test.py PENSTOCK [CLASS].
"""
import json
import random
import shutil
import struct
import unittest

from machine_support import machine_profile
from train_support import PENSTOCK, TEXT, USAGE, TrainCase

COMPARISON = 6
UNTIED = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
          "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 257, "rms_norm_eps": 1e-5,
          "max_position_embeddings": 64, "tie_word_embeddings": False, "hidden_act": "silu", "rope_theta": 10000.0}
RARE = 1  # a byte
BF16_INFINITE = 0x7f80


class RulesCase(TrainCase):
    def place(self, name):
        return {"stores": [self.path("store-" + name)], "run": self.path("run-" + name), "machine": machine_profile(PENSTOCK)}

    def masters(self, name):
        out = self.folder / ("out-" + name)
        shutil.rmtree(out, ignore_errors=True)
        self.json_of("checkpoint", "export", self.path("store-" + name), out, "--dtype", "fp32")
        return (out / "model.safetensors").read_bytes()

    def course(self, name, *keys):
        """Of every step, the line that was written last."""
        lines = {step["step"]: step for step in self.log("run-" + name)}
        return [tuple(step[key] for key in ("step", "batch", "loss", *keys)) for step in lines.values()]

    def events(self, name):
        return [(step["step"], event) for step in self.log("run-" + name) for event in step.get("loss_events", [])]

    def broken(self, **changes):
        """A run on a model whose weight file has a broken row, as some have of a token that was never trained: the loss
        of the batch that has it is no number, whatever was learnt before. Five batches are an epoch."""
        text = bytearray((TEXT * 3)[:5 * 4 * 16 + 1].encode())
        text[84] = RARE
        (self.folder / "rare.txt").write_bytes(text)
        model = self.folder / "broken"
        if not model.exists():
            (self.folder / "untied.json").write_text(json.dumps(UNTIED))
            self.json_of("train", self.config(model=self.path("untied.json"), max_steps=1, penstock=self.place("whole-model")))
            self.json_of("checkpoint", "export", self.path("store-whole-model"), model)
            self.overwrite(model, RARE, 64, struct.pack("<H", BF16_INFINITE))
        return self.config(**{"model": str(model), "data": self.path("rare.txt"), "held_out_share": 0, "max_steps": 8, **changes})

    def overflowing(self, **changes):
        """A run whose model has a row of zeros, for a token that begins one sample: next to no epsilon is all that its norms
        divide by, so that gradients overflow, layer by layer, where the loss does not."""
        text = bytearray((TEXT * 3)[:5 * 4 * 16 + 1].encode())
        text[80] = RARE
        (self.folder / "zero.txt").write_bytes(text)
        model = self.folder / "overflows"
        if not model.exists():
            shape = {**UNTIED, "rms_norm_eps": 2e-38}
            (self.folder / "untied.json").write_text(json.dumps(shape))
            self.json_of("train", self.config(model=self.path("untied.json"), max_steps=1, penstock=self.place("finite-model")))
            self.json_of("checkpoint", "export", self.path("store-finite-model"), model)
            self.overwrite(model, RARE, 64, struct.pack("<64H", *[0] * 64))
        plain = dict(gradient_clipping=0, skip_overflow=False, held_out_share=0, max_steps=6)
        penstock = {"durability": "step", **changes.pop("penstock")}
        return self.config(**{**plain, "model": str(model), "data": self.path("zero.txt"), "penstock": penstock, **changes})

    def overwrite(self, model, row, width, values):
        """The first of a row's values in the embedding of an exported model."""
        file = model / "model.safetensors"
        content = bytearray(file.read_bytes())
        [header] = struct.unpack_from("<Q", content)
        tensor = json.loads(content[8:8 + header])["model.embed_tokens.weight"]
        self.assertEqual((tensor["dtype"], tensor["shape"]), ("BF16", [257, width]))
        at = 8 + header + tensor["data_offsets"][0] + row * width * 2
        content[at:at + len(values)] = values
        file.write_bytes(content)

    def jumping(self, **changes):
        """A run on a text that is soon learnt, and has a line of noise in it."""
        text = bytearray(("the quick brown fox. " * 200)[:40 * 4 * 16 + 1].encode())
        text[1000:1016] = random.Random(5).randbytes(16)
        (self.folder / "noise.txt").write_bytes(text)
        rules = {"spike": "skip", "window": 8, "deviations": 10, **changes.pop("loss_rules", {})}
        return self.config(**{"data": self.path("noise.txt"), "held_out_share": 0, "max_steps": 40, "loss_rules": rules, **changes})


class LeaveOut(RulesCase):
    def test_the_next_batch_takes_the_step_of_one_that_is_left_out(self):
        self.json_of("train", self.config(max_steps=5, penstock=self.place("whole")))
        whole = self.course("whole")
        self.assertEqual([batch for _, batch, _ in whole], [1, 2, 3, 4, 5])
        without = dict(max_steps=5, leave_out=[2, [4, 6]])
        self.json_of("train", self.config(**without, penstock=self.place("without")))
        course = self.course("without")
        self.assertEqual([batch for _, batch, _ in course], [1, 3, 7, 8, 9])
        self.assertEqual(course[0], whole[0])
        # One that hears of it where the first of them would be next, and is stopped again and again, ends the same.
        self.json_of("train", self.config(max_steps=5, penstock=self.place("told")), "--steps", 1)
        for until in (2, 3, 4, 5):
            self.json_of("train", self.config(**without, penstock=self.place("told")), "--steps", until)
        self.assertEqual(self.course("told"), course)
        self.assertEqual(self.masters("told"), self.masters("without"))
        self.assertNotEqual(self.masters("told"), self.masters("whole"))
        # What was left out stays so where the config forgets it; what was learnt before the config knew cannot be.
        self.json_of("train", self.config(max_steps=6, leave_out=[1, 7], penstock=self.place("told")))
        self.assertEqual(self.course("told")[-1][:2], (6, 10))

    def test_the_plain_loop_leaves_out_the_same(self):
        found = self.json_of("verify", self.config(leave_out=[1, [3, 4]], penstock=self.place("verified")), "--steps", 3)
        self.assertEqual((found["words_different"], found["losses_different"]), (0, 0))

    def test_an_epoch_has_so_many_steps_less(self):
        config = dict(max_steps=0, epochs=1, penstock=self.place("planned"))
        steps = [self.json_of("train", self.config(**config, **more), "--dry-run")["steps"]
                 for more in ({}, {"leave_out": [1, [3, 5], 100000]})]
        self.assertEqual(steps[1], steps[0] - 4)

    def test_says_what_is_wrong_with_a_list(self):
        for wrong, words in (([0], "has 0; numbers of batches, from 1"), (3, "is 3, a list as"),
                             (list(range(1, 400, 2)), "200 runs of batches, at most 100")):
            done = self.run_command("train", self.config(leave_out=wrong), code=USAGE)
            self.assertIn("leave_out", done.stderr)
            self.assertIn(words, done.stderr)


class Rules(RulesCase):
    def test_a_loss_that_is_no_number_stops_a_run_and_names_its_batch(self):
        done = self.run_command("train", self.broken(penstock=self.place("stopped")), code=COMPARISON)
        *before, last = self.log("run-stopped")
        step, batch = last["step"], last["batch"]
        self.assertEqual((last["stopped"], last["loss"], step), (True, None, len(before) + 1))
        [event] = last["loss_events"]
        self.assertEqual((event["why"], event["action"], event["loss"]), ("not_finite", "stop", None))
        self.assertIn(f"train: step {step}: the loss of batch {batch} is nan; micro-batch {event['micro_batch']} of it has nan: ",
                      done.stderr)
        self.assertIn(f"{self.path('rare.txt')}, tokens 80 to 95", event["samples"])  # the byte is token 84
        self.assertIn(f"{self.path('rare.txt')}, tokens 80 to 95", done.stderr)
        self.assertIn(f"step {step - 1} is committed", done.stderr)
        self.assertIn(f'"leave_out": [{batch}]', done.stderr)
        self.assertEqual(self.json_of("checkpoint", "ls", self.path("store-stopped"))["step"], step - 1)
        # It is the batch, not the run: what was committed goes on as one that never met it.
        self.json_of("train", self.broken(max_steps=5, leave_out=[batch], penstock=self.place("stopped")))
        self.json_of("train", self.broken(max_steps=5, leave_out=[batch], penstock=self.place("without")))
        self.assertEqual(self.course("stopped"), self.course("without"))
        self.assertEqual(self.masters("stopped"), self.masters("without"))
        # Where nothing is to be done about it the log says so of the step.
        ignored = dict(loss_rules={"not_finite": "ignore"}, max_steps=step, penstock=self.place("ignored"))
        self.json_of("train", self.broken(**ignored))
        last = self.log("run-ignored")[-1]
        self.assertEqual((last["step"], last["loss"], last["skipped"]), (step, None, True))

    def test_skip_leaves_the_bits_of_a_run_that_left_the_batch_out_from_the_start(self):
        rules = {"not_finite": "skip"}
        done = self.run_command("train", self.broken(loss_rules=rules, penstock=self.place("skips")))
        skipped = [event["batch"] for _, event in self.events("skips")]
        self.assertEqual(len(skipped), 2)  # in eight steps of two epochs
        for batch in skipped:
            self.assertIn(f"the loss of batch {batch} is nan", done.stderr)
        self.assertIn("; it is left out", done.stderr)
        self.json_of("train", self.broken(leave_out=skipped, penstock=self.place("knows")))
        self.assertEqual(self.course("skips", "lr", "grad_norm"), self.course("knows", "lr", "grad_norm"))
        self.assertEqual(self.masters("skips"), self.masters("knows"))
        for until in range(1, 9):
            self.json_of("train", self.broken(loss_rules=rules, penstock=self.place("stops")), "--steps", until)
        self.assertEqual(self.course("stops"), self.course("skips"))
        self.assertEqual(self.masters("stops"), self.masters("skips"))
        # Without clipping, where what was updated is taken back.
        plain = dict(gradient_clipping=0, skip_overflow=False)
        for name, more in (("plain-skips", dict(loss_rules=rules)), ("plain-knows", dict(leave_out=skipped))):
            place = {**self.place(name), "durability": "step"}
            self.json_of("train", self.broken(**plain, **more, penstock=place))
        self.assertEqual(self.course("plain-skips"), self.course("plain-knows"))
        self.assertEqual(self.masters("plain-skips"), self.masters("plain-knows"))

    def test_gradients_that_are_not_finite_are_not_learnt_from_where_the_loss_is(self):
        done = self.run_command("train", self.overflowing(penstock=self.place("stopped")), code=COMPARISON)
        last = self.log("run-stopped")[-1]
        step, batch = last["step"], last["batch"]
        [event] = last["loss_events"]
        self.assertEqual((event["why"], event["action"]), ("gradients_not_finite", "stop"))
        self.assertGreater(event["loss"], 0)
        self.assertIn(f"{self.path('zero.txt')}, tokens 80 to 95", event["samples"])
        self.assertIn(f"train: step {step}: the gradients of batch {batch} are not finite, where its loss is ", done.stderr)
        self.assertIn(f"step {step - 1} is committed", done.stderr)
        self.assertEqual(self.json_of("checkpoint", "ls", self.path("store-stopped"))["step"], step - 1)
        rules = {"not_finite": "skip"}
        self.json_of("train", self.overflowing(loss_rules=rules, penstock=self.place("skips")))
        skipped = [event["batch"] for _, event in self.events("skips")]
        self.assertEqual(skipped[0], batch)
        self.json_of("train", self.overflowing(leave_out=skipped, penstock=self.place("knows")))
        self.assertEqual(self.course("skips", "lr", "grad_norm"), self.course("knows", "lr", "grad_norm"))
        self.assertEqual(self.masters("skips"), self.masters("knows"))
        # Of several ranks one alone has them.
        ranks = dict(gradient_accumulation_steps=1)
        self.json_of("train", self.overflowing(loss_rules=rules, penstock=self.place("two"), **ranks), "--ranks", 2)
        self.assertEqual([event["batch"] for _, event in self.events("two")], skipped)
        self.json_of("train", self.overflowing(leave_out=skipped, penstock=self.place("two-know"), **ranks), "--ranks", 2)
        self.assertEqual(self.masters("two"), self.masters("two-know"))

    def test_ranks_decide_alike(self):
        ranks = dict(gradient_accumulation_steps=1)
        self.json_of("train", self.broken(loss_rules={"not_finite": "skip"}, penstock=self.place("skips"), **ranks), "--ranks", 2)
        skipped = [event["batch"] for _, event in self.events("skips")]
        self.assertEqual(len(skipped), 2)
        self.json_of("train", self.broken(leave_out=skipped, penstock=self.place("knows"), **ranks), "--ranks", 2)
        self.assertEqual(self.course("skips"), self.course("knows"))
        self.assertEqual(self.masters("skips"), self.masters("knows"))
        done = self.run_command("train", self.broken(penstock=self.place("stopped"), **ranks), "--ranks", 2, code=COMPARISON)
        self.assertIn(f"the loss of batch {skipped[0]} is nan", done.stderr)
        self.assertIn(" is committed", done.stderr)

    def test_lower_rate_leaves_the_batch_out_and_lowers_the_rate_from_there_on(self):
        rules = {"not_finite": "lower_rate", "rate_factor": 0.5}
        self.json_of("train", self.broken(max_steps=5, loss_rules=rules, penstock=self.place("lowers")))
        [(step, event)] = [(step, event) for step, event in self.events("lowers") if step <= 5][:1]
        self.assertEqual((event["action"], event["rate_factor"]), ("lower_rate", 0.5))
        rates = [step["lr"] for step in self.log("run-lowers")]
        # By hand: the batch is left out, and the rate halved at the same step.
        without = dict(leave_out=[event["batch"]], penstock=self.place("by-hand"))
        last = min(5, next((later for later, _ in self.events("lowers") if later > step), 6) - 1)
        if step > 1:
            self.json_of("train", self.broken(**without), "--steps", step - 1)
        self.json_of("train", self.broken(**without), "--steps", last, "--lr", 0.005)
        self.json_of("train", self.broken(max_steps=last, loss_rules=rules, penstock=self.place("again")))
        self.assertEqual(self.course("again", "lr"), self.course("by-hand", "lr"))
        self.assertEqual(self.masters("again"), self.masters("by-hand"))
        self.assertEqual(rates[:last], [0.01] * (step - 1) + [0.005] * (last - step + 1))
        # For some steps alone, through a stop.
        rules["rate_steps"] = 2
        for until in (step, 5):
            self.json_of("train", self.broken(max_steps=5, loss_rules=rules, penstock=self.place("for-two")), "--steps", until)
        rates = {at: rate for at, _, _, rate in self.course("for-two", "lr")}
        self.assertEqual([rates.get(at) for at in (step, step + 1, step + 2)][:6 - step], [0.005, 0.005, 0.01][:6 - step])

    def test_a_loss_that_jumps_is_a_spike(self):
        self.json_of("train", self.jumping(penstock=self.place("jumps")))
        [(step, event)] = self.events("jumps")
        log = self.log("run-jumps")
        self.assertEqual((event["why"], event["action"]), ("spike", "skip"))
        self.assertGreater(event["loss"], event["highest"])
        for entry in log[8:]:
            self.assertLess(entry["loss"], event["highest"] * 2)
        # The noise is in the micro-batch that is named: it touches tokens 992 to 1023.
        self.assertTrue(any(f"tokens {first} to {first + 15}" in sample for sample in event["samples"] for first in (992, 1008)))
        self.json_of("train", self.jumping(leave_out=[event["batch"]], loss_rules={"spike": "ignore"}, penstock=self.place("knows")))
        self.assertEqual(self.masters("jumps"), self.masters("knows"))
        done = self.run_command("train", self.jumping(loss_rules={"spike": "stop"}, penstock=self.place("stops")), code=COMPARISON)
        self.assertIn(f"step {step}: the loss of batch {event['batch']} is", done.stderr)
        self.assertIn("a spike: more than", done.stderr)

    def test_what_was_offloaded_and_put_on_a_device_is_taken_back_as_well(self):
        place = lambda name: {**self.place(name), "device_budget": "1GiB", "activations": "offload", "weights": "nvme",
                              "host_state_share": 0}
        self.json_of("train", self.broken(loss_rules={"not_finite": "skip"}, penstock=place("device")))
        [first, second] = [event["batch"] for _, event in self.events("device")]
        self.json_of("train", self.broken(leave_out=[first, second], penstock=self.place("host")))
        self.assertEqual(self.course("device"), self.course("host"))
        self.assertEqual(self.masters("device"), self.masters("host"))

    def test_a_run_whose_rules_act_too_often_stops(self):
        rules = {"not_finite": "skip", "at_most": 1}
        done = self.run_command("train", self.broken(max_steps=15, loss_rules=rules, penstock=self.place("often")), code=COMPARISON)
        self.assertIn("rules about the loss have left out batches 1 times already", done.stderr)
        self.assertEqual([event["action"] for _, event in self.events("often")], ["skip", "stop"])
        # Nor does it act once more when it is started again.
        self.run_command("train", self.broken(max_steps=15, loss_rules=rules, penstock=self.place("often")), code=COMPARISON)

    def test_says_what_cannot_be_followed(self):
        for changes, words in (({"loss_rules": {"not_finit": "skip"}}, "loss_rules.not_finite"),
                               ({"loss_rules": {"spike": "retry"}}, "one of these expected: ignore, stop, skip"),
                               ({"loss_rules": {"window": 1}}, "a whole number from 2 to"),
                               ({"loss_rules": {"window": 300}}, "at most 256"),
                               ({"loss_rules": {"not_finite": "skip"}, "gradient_clipping": 0}, '"skip_overflow": true'),
                               ({"loss_rules": {"spike": "lower_rate"}, "gradient_clipping": 0,
                                 "penstock": {"space": "single", "durability": "step"}}, "penstock.space is single")):
            done = self.run_command("train", self.config(**changes), code=USAGE)
            self.assertIn(words, done.stderr)
            self.assertFalse((self.folder / "store").exists())
            self.run_command("config", "check", self.config(**changes), code=USAGE)


class Rollback(RulesCase):
    RULES = {"not_finite": "rollback"}

    def test_goes_back_to_the_newest_snapshot_and_leaves_out_all_batches_since(self):
        goes_back = dict(loss_rules=self.RULES, keep_every=2, max_steps=6)
        done = self.run_command("train", self.broken(**goes_back, penstock=self.place("back")), "--json")
        events = [event for _, event in self.events("back")]
        self.assertEqual(events[0]["action"], "rollback")
        left_out = []
        for event in events:
            self.assertLessEqual(event["back_to"], event["step"] - 1)
            self.assertEqual(event["back_to"] % 2, 0)
            self.assertGreater(event["back_to"] + 2, event["step"] - 1)
            left_out.append([event["first_left_out"], event["batch"]])
            self.assertIn(f"; back to step {event['back_to']}, batches {event['first_left_out']} to {event['batch']} are left out",
                          done.stderr)
        self.assertTrue(any(first < last for first, last in left_out), left_out)
        self.json_of("train", self.broken(max_steps=6, leave_out=left_out, penstock=self.place("knows")))
        self.assertEqual(self.course("back", "lr", "grad_norm"), self.course("knows", "lr", "grad_norm"))
        self.assertEqual(self.masters("back"), self.masters("knows"))
        taken = len(self.log("run-back"))
        self.assertEqual(taken, 6 + sum(event["step"] - 1 - event["back_to"] for event in events))
        # One that is stopped after every step ends the same, and remembers how often it went back.
        for until in range(1, 7):
            self.json_of("train", self.broken(**goes_back, penstock=self.place("stops")), "--steps", until)
        self.assertEqual(self.course("stops"), self.course("knows"))
        self.assertEqual(self.masters("stops"), self.masters("knows"))
        rules = {**self.RULES, "at_most": len(events)}
        done = self.run_command("train", self.broken(**{**goes_back, "loss_rules": rules, "max_steps": 12}, penstock=self.place("stops")),
                                code=COMPARISON)
        self.assertIn(f"have left out batches {len(events)} times already", done.stderr)

    def test_before_anything_else_is_kept_it_goes_back_to_the_beginning(self):
        self.json_of("train", self.broken(loss_rules=self.RULES, keep_every=100, max_steps=4, penstock=self.place("back")))
        [(_, event), *_] = self.events("back")
        self.assertEqual((event["back_to"], event["first_left_out"]), (0, 1))
        self.assertEqual([one["step"] for one in self.json_of("checkpoint", "ls", self.path("store-back"))["snapshots"]], [0])
        left_out = [[1, max(event["batch"] for _, event in self.events("back"))]]
        self.json_of("train", self.broken(leave_out=left_out, max_steps=4, penstock=self.place("knows")))
        self.assertEqual(self.masters("back"), self.masters("knows"))

    def test_a_snapshot_of_what_was_given_up_is_not_gone_back_to(self):
        place = self.place("back")
        self.json_of("train", self.broken(loss_rules={"not_finite": "skip"}, keep_every=2, max_steps=8, penstock=place))
        self.json_of("checkpoint", "rollback", self.path("store-back"), "--step", 2)
        before = len(self.events("back"))
        self.json_of("train", self.broken(loss_rules=self.RULES, keep_every=100, max_steps=8, penstock=place))
        [(_, event), *_] = self.events("back")[before:]
        self.assertEqual((event["action"], event["back_to"] < event["step"]), ("rollback", True), event)

    def test_ranks_go_back_together(self):
        ranks = dict(gradient_accumulation_steps=1, max_steps=4)
        self.json_of("train", self.broken(loss_rules=self.RULES, keep_every=2, penstock=self.place("back"), **ranks), "--ranks", 2)
        events = [event for _, event in self.events("back")]
        self.assertTrue(any(event["back_to"] == 2 for event in events), events)
        left_out = [[event["first_left_out"], event["batch"]] for event in events]
        self.json_of("train", self.broken(leave_out=left_out, penstock=self.place("knows"), **ranks), "--ranks", 2)
        self.assertEqual(self.course("back", "lr", "grad_norm"), self.course("knows", "lr", "grad_norm"))
        self.assertEqual(self.masters("back"), self.masters("knows"))

    def test_is_refused_where_there_is_nothing_to_go_back_to(self):
        done = self.run_command("train", self.config(loss_rules=self.RULES), code=USAGE)
        self.assertIn('"keep_every": 100', done.stderr)
        self.assertFalse((self.folder / "store").exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
