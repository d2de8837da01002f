#!/usr/bin/env python3
"""Steps that several ranks keep and go back to, and stores that are made anew for another number of them.

Usage: ranks_kept_test.py PENSTOCK [CLASS].
"""
import json
import shutil
import subprocess
import time
import unittest
from pathlib import Path

from ranks_support import CORRUPT, DIFFERS, ENVIRON, PENSTOCK, TINY, USAGE, RanksCase


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
        partial = self.folder / "run.store" / "kept" / "rank1" / "4.partial"  # as a kill leaves it
        partial.mkdir()
        said = self.run_command("train", self.config(keep_every=3, max_steps=6), "--ranks", 2).stderr
        self.assertIn("the snapshot of step 2 is removed: rank 1 had none", said)
        self.assertFalse(partial.exists())
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
        self.assertEqual(self.json_of("checkpoint", "ls", store)["step"], 2)  # which both ranks have had
        said = self.run_command("checkpoint", "rm", store, "--step", 2, code=USAGE).stderr
        self.assertIn("a rollback to step 2 was cut short", said)
        said = self.run_command("train", run, "--ranks", 2).stderr
        self.assertIn("a rollback to step 2 was cut short, and is done now", said)
        self.assertEqual([(step["step"], step["loss"]) for step in self.log()[5:]], list(enumerate(losses, 1))[2:])
        self.assertEqual(list(store.glob("kept/rank?/rollback")), [])

    def test_a_damaged_copy_takes_no_store_back_and_the_run_goes_on(self):
        run = self.config(keep_every=2, max_steps=3)
        self.json_of("train", run, "--ranks", 2)
        store, newest = self.folder / "run.store", self.weights(dtype="fp32")
        damaged = self.files(2)[1]
        content = bytearray(damaged.read_bytes())
        for at in range(len(content) // 2, len(content), 3000):
            content[at] ^= 1
        damaged.write_bytes(content)
        said = self.run_command("checkpoint", "rollback", store, "--step", 2, code=CORRUPT).stderr
        self.assertRegex(said, "kept/rank1/2/rank1.tiles: the block at [0-9]+ of the copy, of .*, fails the checksum")
        self.assertEqual((self.weights(dtype="fp32"), list(store.glob("kept/rank?/rollback"))), (newest, []))
        # Marked before it was damaged, by one that was killed then.
        for rank in (0, 1):
            (store / "kept" / f"rank{rank}" / "rollback").write_text("2\n")
        said = self.run_command("train", run, "--ranks", 2, code=CORRUPT).stderr
        self.assertRegex(said, "a rollback to step 2 was cut short, and its copies cannot be used: ")
        self.assertIn("try: start again: the run goes on from where it was", said)
        self.json_of("checkpoint", "rm", store, "--step", 2)
        self.json_of("train", self.config(max_steps=4), "--ranks", 2)
        self.assertEqual([step["step"] for step in self.log()], [1, 2, 3, 4])

    def test_where_one_rank_alone_can_go_back_another_kept_step_mends_both(self):
        run = self.config(keep_every=1, max_steps=3)
        self.json_of("train", run, "--ranks", 2)
        store, newest = self.folder / "run.store", self.weights(dtype="fp32")
        shutil.copy(store / "rank1.tiles", self.folder / "rank1.tiles")
        self.json_of("checkpoint", "rollback", store, "--step", 2)
        # Killed when rank 0 had gone back, and rank 1's copy was damaged.
        shutil.copy(self.folder / "rank1.tiles", store / "rank1.tiles")
        damaged = self.files(2)[1]
        damaged.write_bytes(damaged.read_bytes()[:-8192])
        for rank in (0, 1):
            (store / "kept" / f"rank{rank}" / "rollback").write_text("2\n")
        done = subprocess.run([PENSTOCK, "train", run, "--ranks", "2"], capture_output=True, text=True, check=False, env=ENVIRON)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("go back to another step that is kept: `penstock checkpoint rollback`; some ranks' stores are at step 2", done.stderr)
        self.json_of("checkpoint", "rollback", store, "--step", 3)
        self.assertEqual(self.weights(dtype="fp32"), newest)
        self.json_of("train", self.config(max_steps=4), "--ranks", 2)

    def test_files_of_two_courses_of_one_run_are_not_taken_for_one(self):
        self.json_of("train", self.config(keep_every=2, max_steps=2), "--ranks", 2)
        store, before = self.folder / "run.store", self.folder / "before"
        shutil.copytree(store, before)
        self.json_of("train", self.config(keep_every=2, max_steps=4), "--ranks", 2)
        ends_at = self.weights(dtype="fp32")
        # A copy that has gone on by itself to the same step.
        shutil.copytree(before, self.folder / "other.store")
        self.json_of("train", self.config("other", keep_every=2, max_steps=4, optimizer={"params": {"lr": 2e-2}}), "--ranks", 2)
        mine = (store / "rank1.tiles").read_bytes()
        shutil.copy(self.folder / "other.store" / "rank1.tiles", store)
        refused = "store of rank 1: has come to step 4 by another course than rank 0's"
        for verb in (("checkpoint", "ls", store), ("checkpoint", "scrub", store), ("checkpoint", "export", store, self.path("out")),
                     ("train", self.config(max_steps=5), "--ranks", 2)):
            self.assertIn(refused, self.run_command(*verb, code=USAGE).stderr)
        # Nor of two steps with no step in common, until all go back to one that is kept.
        shutil.copy(before / "rank1.tiles", store)
        self.assertIn("or go back to one that is kept", self.run_command("checkpoint", "export", store, self.path("out"), code=USAGE).stderr)
        self.assertIn("go back to a step that is kept", self.run_command("train", self.config(max_steps=5), "--ranks", 2, code=CORRUPT).stderr)
        (store / "rank1.tiles").write_bytes(mine)
        # And of what is kept.
        kept = store / "kept" / "rank1" / "4"
        shutil.rmtree(kept)
        shutil.copytree(self.folder / "other.store" / "kept" / "rank1" / "4", kept)
        for verb in ("rollback", "export"):
            self.assertIn(refused, self.run_command("checkpoint", verb, store, *([self.path("out")] * (verb == "export")), "--step", 4,
                                                    code=USAGE).stderr)
        self.assertEqual(self.weights(dtype="fp32"), ends_at)
        # A run that has gone back and on again in the same way is at the same place.
        self.json_of("checkpoint", "rollback", store, "--step", 2)
        self.json_of("train", self.config(max_steps=4), "--ranks", 2)
        self.assertEqual(self.weights(dtype="fp32"), ends_at)

    def test_a_kept_step_is_what_its_folder_says(self):
        self.json_of("train", self.config(keep_every=1, max_steps=3), "--ranks", 2)
        store = self.folder / "run.store"
        one, two = (store / "kept" / "rank1" / str(step) for step in (1, 2))
        one.rename(store / "between")
        two.rename(one)
        (store / "between").rename(two)
        newest = self.weights(dtype="fp32")
        for verb in ("rollback", "export"):
            said = self.run_command("checkpoint", verb, store, *([self.path("out")] * (verb == "export")), "--step", 2, code=CORRUPT).stderr
            self.assertRegex(said, "kept/rank1/2: holds step 1, not 2\ntry: give its folder the name that it had, 1")
        self.assertEqual(self.weights(dtype="fp32"), newest)

    def test_a_rollback_to_where_the_store_is_mends_it_and_a_damaged_store_is_not_kept(self):
        self.json_of("train", self.config(keep_every=3, max_steps=3), "--ranks", 2)
        store = self.folder / "run.store"
        newest = self.weights(dtype="fp32")
        with open(store / "rank1.tiles", "r+b") as file:
            size = file.seek(0, 2)
            for place in range(size // 3, size, 4096):
                file.seek(place)
                byte = file.read(1)
                file.seek(place)
                file.write(bytes([byte[0] ^ 1]))
        self.run_command("checkpoint", "scrub", store, code=DIFFERS)
        self.assertRegex(self.run_command("checkpoint", "snapshot", store, code=CORRUPT).stderr, "rank1.tiles: the block at [0-9]+, of .*"
                         ", fails the checksum it was written with\ntry: `penstock checkpoint scrub` lists")
        self.json_of("checkpoint", "rollback", store, "--step", 3)
        self.json_of("checkpoint", "scrub", store)
        self.assertEqual(self.weights(dtype="fp32"), newest)

    def test_damaged_copies_of_any_rank_are_counted(self):
        store = self.folder / "run.store"
        for rank in range(2):
            self.json_of("train", self.config(max_steps=rank + 1), "--ranks", 2)
            with open(store / f"rank{rank}.tiles", "r+b") as file:
                file.seek(99)  # of the first header
                file.write(b"?")
            done = self.run_command("checkpoint", "scrub", store, code=DIFFERS)
            self.assertIn("every block is good, but 1 copy of headers", done.stderr, f"rank {rank}")

    def test_what_a_store_before_has_kept_is_no_step_of_the_new_one(self):
        self.json_of("train", self.config(keep_every=2, max_steps=2), "--ranks", 2)
        said = self.run_command("train", self.config(seed=4, max_steps=3), "--ranks", 2, "--force").stderr
        self.assertRegex(said, "kept/rank0/2: kept of the store before; nothing reads it, and it may be removed")
        store = self.path("run.store")
        self.assertEqual((self.kept(), len(self.files(2))), ([], 2))
        for verb in (("rollback", store), ("export", store, self.path("out"))):
            self.assertIn("step 2 is not among them: none", self.run_command("checkpoint", *verb, "--step", 2, code=USAGE).stderr)
        self.json_of("train", self.config(seed=4, max_steps=4), "--ranks", 2)


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
        scrubbed = {name: self.json_of("checkpoint", "scrub", self.path(name + ".store"))["blocks"] for name in ("in", "direct")}
        self.assertGreaterEqual(scrubbed["direct"], scrubbed["in"])  # of both ranks together
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

    def test_stores_that_came_to_a_step_by_two_courses_are_not_mixed(self):
        self.json_of("train", self.config(keep_every=1, max_steps=2), "--ranks", 2)
        store, before = self.folder / "run.store", self.folder / "rank1.tiles"
        shutil.copy(store / "rank1.tiles", before)
        self.json_of("checkpoint", "rollback", store, "--step", 1)
        other = {"type": "AdamW", "params": {"lr": 3e-3, "weight_decay": 0.1}}
        self.json_of("train", self.config(max_steps=2, optimizer=other), "--ranks", 2)
        shutil.copy(before, store / "rank1.tiles")
        for verb, *rest in (("reshard", self.path("new"), "--ranks", 1), ("export", self.path("out"))):
            said = self.run_command("checkpoint", verb, store, *rest, code=USAGE).stderr
            self.assertIn("store of rank 1: has come to step 2 by another course than rank 0's", said)
        self.assertFalse((self.folder / "new").exists())

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

    def test_copies_that_ranks_cannot_be_divided_into_are_one(self):
        self.json_of("train", self.config("two", max_steps=1, zero_optimization={"stage": 3}), "--ranks", 2)
        self.reshard("two", "four", 4, "--shard-size", 2)
        self.reshard("four", "three", 3)
        self.assertEqual(self.weights("three", "fp32"), self.weights("two", "fp32"))
        self.assertEqual(len(self.files("three")), 3)

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
        self.reshard("two", "new", 4)
        self.assertEqual(self.weights("new"), self.weights("two"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
