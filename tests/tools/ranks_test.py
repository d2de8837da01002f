#!/usr/bin/env python3
"""`penstock train` and `penstock verify` in several ranks, as a user starts them: by --ranks, torchrun and Slurm.

Usage: ranks_test.py PENSTOCK [CLASS].
"""
import json
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from ranks_support import DOES_NOT_FIT, ENVIRON, PENSTOCK, TINY, USAGE, RanksCase


class Stages(RanksCase):
    def test_every_stage_gives_the_same_losses_and_weights(self):
        found = []
        for stage in (0, 1, 2, 3, None):
            name = f"stage{stage}"
            changes = {} if stage is None else {"zero_optimization": {"stage": stage}}
            answer = self.json_of("train", self.config(name, eval_every=2, eval_batches=3, **changes), "--ranks", 2)
            self.assertEqual((answer["ranks"], answer["steps"], answer["config"]["train_batch_size"]), (2, 4, 8))
            shared = {line["line"]: line["bytes"] for line in answer["budget"]}
            self.assertGreater(shared["gradients given"], 0)
            self.assertEqual("gathered weights" in shared, stage != 0)
            listed = self.json_of("checkpoint", "ls", self.path(name + ".store"))
            self.assertEqual((listed["parameters"], listed["ranks"]), (answer["parameters"], 2), name)
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

    def test_a_closed_standard_stream_is_no_file_of_the_run(self):
        config = self.config("closed")
        closed = ["sh", "-c", 'exec "$0" "$@" 2>&- <&-', PENSTOCK, "train", config, "--ranks", "2"]
        done = subprocess.run(closed, stdout=subprocess.PIPE, check=False, timeout=120, env=ENVIRON)
        self.assertEqual((done.returncode, [step["step"] for step in self.log("closed")]), (0, [1, 2, 3, 4]))

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
        # Of what both write, a drive of its own has half.
        self.assertEqual([json.loads((self.folder / name / "plan.json").read_text())["drives_share"] for name in ("two", "one")], [0.5, 1])
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

    def test_what_is_drawn_to_round_moments_does_not_depend_on_how_units_are_cut(self):
        # Blocks of 196 608 elements, cut in two and in three.
        (self.folder / "wide.json").write_text(json.dumps({**TINY, "n_embd": 128}))
        for moments, ranks in (("int8", 2), ("bf16", 3)):
            changes = dict(model=self.path("wide.json"), penstock={"moments": moments})
            answer = self.json_of("verify", self.config(f"verify_{moments}", **changes), "--ranks", ranks, "--steps", 3)
            self.assertEqual((answer["words_different"], answer["losses_different"]), (0, 0), moments)

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
        of_rank = json.loads((self.folder / "on_device" / "plan.json").read_text())["budget_bytes"]
        for tier, bytes_of_node in (("device", 512 << 20), ("host", 2 << 30)):  # less what ranks share
            self.assertLessEqual(of_rank[tier], bytes_of_node // 2)
            self.assertGreater(of_rank[tier], 0.9 * bytes_of_node / 2)
        answer = self.json_of("verify", self.config("verified", precision="bf16", **on_device), "--ranks", 2, "--steps", 2)
        self.assertEqual((answer["words_different"], answer["losses_different"]), (0, 0))


class Choice(RanksCase):
    """The stage, where the config says none."""

    def setUp(self):
        super().setUp()
        (self.folder / "tiny.json").write_text(json.dumps({**TINY, "n_embd": 256, "n_layer": 12}))
        # So slow a way between ranks that gathering for each pass costs more than all else, however slow these drives are.
        machine = json.loads(Path(self.machine).read_text())
        fast = [{**drive, "mix_curve": [[share, 5.0] for share, _ in drive["mix_curve"]]} for drive in machine["drives"]]
        (self.folder / "slow.json").write_text(json.dumps({**machine, "collective_gbps": 0.05, "drives": fast}))

    def run_of(self, name, host_budget="900MiB", machine="slow.json", max_steps=2, **changes):
        """Drives without room for all of the state on each rank."""
        placed = {"machine": self.path(machine) if machine else self.machine, "weights": "nvme", "host_state_share": 0, "nvme_budget": "300MiB", "host_budget": host_budget}
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
