#!/usr/bin/env python3
"""Steps that a run keeps, and goes back to.

Usage: train_kept_test.py PENSTOCK [CLASS].
"""
import json
import re
import shutil
import struct
import subprocess
import time
import unittest

from train_support import CORRUPT, PENSTOCK, USAGE, TrainCase


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

    def test_of_a_store_with_one_slot_a_tile_too(self):
        """Its copies take all that it has, and take its place as whole files."""
        stores = [self.path("a"), self.path("b")]
        section = {"stores": stores, "space": "single", "durability": "exit"}
        self.json_of("train", self.config(max_steps=3, penstock={**section, "run": self.path("run")}))
        at_three = self.weights_of(stores, "three")
        self.json_of("checkpoint", "snapshot", *stores)
        self.json_of("train", self.config(max_steps=6, penstock={**section, "run": self.path("run")}))
        at_six, losses = self.weights_of(stores, "six"), [step["loss"] for step in self.log()]
        back = self.json_of("checkpoint", "rollback", *stores, "--step", 3)
        self.assertEqual((back["from"], back["step"]), (6, 3))
        self.assertEqual(self.weights_of(stores, "back"), at_three)
        self.json_of("checkpoint", "scrub", *stores)
        self.json_of("train", self.config(max_steps=6, penstock={**section, "run": self.path("again")}))
        self.assertEqual([step["loss"] for step in self.log("again")], losses[3:])
        self.assertEqual(self.weights_of(stores, "six_again"), at_six)

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

    def test_those_kept_every_few_steps_stay_when_others_are_better(self):
        config = self.config(held_out_share=0.2, eval_every=1, keep_best=1, keep_every=2, max_steps=6)
        self.json_of("train", config)
        losses = {step["step"]: step["eval_loss"] for step in self.log()}
        best_so_far = [min(range(1, step + 1), key=losses.get) for step in (2, 4, 6)]
        self.assertTrue(any(step in best_so_far[:2] and step != best_so_far[2] for step in (2, 4)), losses)
        self.assertEqual(self.kept(), sorted({2, 4, 6, best_so_far[2]}))

    def test_only_what_was_evaluated_is_among_the_best(self):
        config = self.config(held_out_share=0.2, eval_every=3, keep_best=2, max_steps=9,
                             optimizer={"type": "AdamW", "params": {"lr": 0.2}})
        self.json_of("train", config)
        losses = {step["step"]: step["eval_loss"] for step in self.log() if "eval_loss" in step}
        self.assertEqual(sorted(losses), [3, 6, 9])
        best = sorted(losses, key=losses.get)[:2]
        self.assertEqual({one["step"]: one["eval_loss"] for one in self.ls()["snapshots"]}, {step: losses[step] for step in best})

    def tensors_of(self, folder):
        content = (self.folder / folder / "model.safetensors").read_bytes()
        begin = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:begin])
        return {name: content[begin + tensor["data_offsets"][0]:begin + tensor["data_offsets"][1]]
                for name, tensor in header.items() if name != "__metadata__"}

    def test_files_of_another_16_bit_type_are_rounded_once(self):
        self.json_of("train", self.config())
        for dtype in ("fp32", "fp16"):
            self.json_of("checkpoint", "export", self.path("store"), self.path(dtype), "--dtype", dtype)
        masters, halves = self.tensors_of("fp32"), self.tensors_of("fp16")
        self.assertEqual(sorted(masters), sorted(halves))
        for name, master in masters.items():
            values = struct.unpack(f"<{len(master) // 4}f", master)
            self.assertEqual(struct.pack(f"<{len(values)}e", *values), halves[name], name)

    def test_what_was_to_follow_the_last_step_of_a_killed_process_is_done_by_the_next(self):
        config = self.config(held_out_share=0.2, eval_every=2, keep_every=4, keep_best=1, max_steps=4)
        self.json_of("train", config)
        lines = self.log()
        path = self.folder / "run" / "log.jsonl"
        text = path.read_text().splitlines(keepends=True)
        begun = {key: value for key, value in lines[-1].items() if not key.startswith("eval_")}

        def but_time(line):
            return {key: value for key, value in line.items() if key != "eval_s"}
        # Killed in the evaluation, and in the snapshot; what a step has met may take more than one read of the file.
        long = {"loss_events": [{"samples": ["x" * 1000] * 150}]}
        for last, more in ((begun, {}), (lines[-1], {}), ({**begun, **long}, long)):
            path.write_text("".join(text[:-1]) + json.dumps(last))
            shutil.rmtree(self.folder / "store" / "kept" / "4")
            self.json_of("train", config)
            self.assertEqual([but_time(line) for line in self.log()], [but_time(line) for line in (*lines[:-1], {**lines[-1], **more})])
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

    def test_a_step_that_was_gone_back_from_is_not_missed(self):
        every_step = {"durability": "step"}  # on a slow drive a run may choose to leave only its last step
        self.json_of("train", self.config(max_steps=3, penstock=every_step))
        self.json_of("checkpoint", "rollback", self.path("store"), "--step", 2)
        listed = self.run_command("checkpoint", "ls", self.path("store"))
        self.assertNotIn("lost", listed.stdout + listed.stderr)
        again = self.run_command("train", self.config(max_steps=3, penstock=every_step))
        self.assertNotIn("lost", again.stderr)

    def test_what_was_kept_of_a_course_that_was_given_up_is_not_among_the_best(self):
        evaluated = dict(held_out_share=0.2, eval_every=1)
        self.json_of("train", self.config(**evaluated, keep_every=1, max_steps=4))
        given_up = {step["step"]: step["eval_loss"] for step in self.log()}
        self.json_of("checkpoint", "rollback", self.path("store"), "--step", 1)
        self.json_of("train", self.config(**evaluated, keep_best=2, max_steps=2, optimizer={"params": {"lr": 1.0}}))
        loss = self.log()[-1]["eval_loss"]
        self.assertGreater(loss, max(given_up[step] for step in (3, 4)))
        self.assertEqual({one["step"]: one["eval_loss"] for one in self.ls()["snapshots"]}, {**given_up, 2: loss})

    def advised(self, refusal):
        [command] = re.findall("`([^`]+)`", refusal.stderr)
        return command.replace("penstock ", f"{PENSTOCK} ", 1)

    def test_what_a_corrupt_store_advises_brings_a_snapshot_back(self):
        config = self.config(max_steps=4, penstock={"host_state_share": 0, "weights": "nvme"})
        self.json_of("train", config, "--steps", 2)
        self.json_of("checkpoint", "snapshot", self.path("store"))
        whole = self.weights_of([self.path("store")], "whole")
        file = self.folder / "store" / "rank0.tiles"
        half = file.stat().st_size // 2
        for begins, length in ((half, half), (0, half)):
            self.json_of("train", config)
            with file.open("r+b") as store:
                store.seek(begins)
                store.write(b"\xff" * length)
            config_of_more = self.config(max_steps=5, penstock={"host_state_share": 0, "weights": "nvme"})
            refusal = self.run_command("train", config_of_more, code=CORRUPT if begins > 0 else USAGE)
            scrubbed = self.run_command("checkpoint", "scrub", self.path("store"), code=6 if begins > 0 else USAGE)
            self.assertEqual(self.advised(scrubbed), self.advised(refusal))
            subprocess.run(self.advised(refusal), shell=True, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.assertEqual(self.weights_of([self.path("store")], f"back{begins}"), whole)

    def test_a_whole_snapshot_is_copied_back_on_every_drive(self):
        stores = [self.path("a"), self.path("b")]
        placed = {"stores": stores, "host_state_share": 0, "weights": "nvme"}
        self.json_of("train", self.config(max_steps=2, penstock=placed))
        self.json_of("checkpoint", "snapshot", *stores)
        whole = self.weights_of(stores, "whole")
        self.json_of("train", self.config(max_steps=3, penstock=placed))
        for store in stores:
            with open(store + "/rank0.tiles", "r+b") as file:
                file.write(b"\xff" * (self.folder / store / "rank0.tiles").stat().st_size)
        scrubbed = self.run_command("checkpoint", "scrub", *stores, code=USAGE)
        subprocess.run(self.advised(scrubbed), shell=True, check=True)
        self.assertEqual(self.weights_of(stores, "back"), whole)


if __name__ == "__main__":
    unittest.main(verbosity=2)
