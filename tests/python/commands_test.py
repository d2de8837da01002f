#!/usr/bin/env python3
"""The command called from Python, a C program beside it, and what examples and docstrings show.

Usage: commands_test.py [CASE...], with PENSTOCK_LIBRARY, PENSTOCK_COMMAND and PYTHONPATH set. Ends with 77 without torch.
"""
import functools
import importlib.util
import inspect
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import typing
import unittest
import unittest.mock
from pathlib import Path

from optimizer_support import Case, nn, torch

import penstock
from penstock import _command


class Commands(Case):
    def test_plan_is_the_commands_answer(self):
        found = penstock.plan(params=7e9, machine="rtx4090-2gen4", budget=dict(host="64GiB"))
        printed = subprocess.run(
            [os.environ["PENSTOCK_COMMAND"], "plan", "--params", "7e9", "--machine", "rtx4090-2gen4", "--budget",
             "host=64GiB", "--json"], capture_output=True, text=True, check=True)
        self.assertEqual(found, json.loads(printed.stdout))
        self.assertTrue(found["fits"])
        self.assertEqual(found["budget_bytes"]["host"], 64 << 30)

    def test_plan_takes_the_commands_options_but_those_that_draw_or_print(self):
        command = [os.environ["PENSTOCK_COMMAND"], "plan", "--help"]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = {name.replace("-", "_") for name in re.findall(r"^  (?:-\w,)?--([\w-]+)", printed, re.MULTILINE)}
        others = {"help", "gantt", "trace", "force", "json", "progress"}
        self.assertEqual(found - others, set(inspect.signature(penstock.plan).parameters))
        found = penstock.plan("gpt2", machine="cpu-2core", lora_rank=8, base="int8", advise=True, step_time="20s",
                              drive_life="1k")
        self.assertTrue(found["fits"])

    def test_what_does_not_fit_is_an_answer_too(self):
        found = penstock.plan(params=70e9, machine="cpu-2core", budget=dict(host="8GiB"))
        self.assertFalse(found["fits"])
        self.assertGreater(found["needed_bytes"]["host"]["total"], 8 << 30)

    def test_refusals_are_the_commands(self):
        with self.assertRaisesRegex(penstock.PenstockError, "nowhere: neither a file nor a shipped machine") as caught:
            penstock.plan(params=7e9, machine="nowhere")
        self.assertEqual(caught.exception.code, 2)
        self.assertIn("penstock nvme probe", caught.exception.remedy)
        with self.assertRaises(TypeError):
            penstock.plan(parameters=7e9)

    def test_a_command_that_dies_is_refused_though_it_said_nothing(self):
        command = self.folder / "command"
        for what, ended in (("exit 3", "3"), ("kill -9 $$", "-9"), ("echo broken", "0")):
            command.write_text(f"#!/bin/sh\n{what}\n")
            command.chmod(0o755)
            with unittest.mock.patch.dict(os.environ, PENSTOCK_COMMAND=str(command)):
                with self.assertRaisesRegex(penstock.PenstockError, f"ended with {ended} and no answer"):
                    penstock.plan(params=7e9)

    def stand_in(self, does):
        """A command that writes down its words, one a line, and then does that."""
        command = self.folder / "command"
        command.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {self.folder}/words\n{does}\n')
        command.chmod(0o755)
        self.enterContext(unittest.mock.patch.dict(os.environ, PENSTOCK_COMMAND=str(command)))

    def words(self):
        return (self.folder / "words").read_text().splitlines()

    def test_a_refusal_keeps_its_code_and_its_advice(self):
        self.stand_in("""echo '{"error": {"code": 5, "message": "is damaged", "try": "another"}}'; exit 5""")
        with self.assertRaises(penstock.Refusal) as caught:
            penstock.plan(params=7e9)
        found = caught.exception
        self.assertEqual((found.code, found.message, found.remedy), (5, "is damaged", "another"))

    def test_ctrl_c_waits_until_the_command_has_ended_by_itself(self):
        self.stand_in(f"trap 'sleep 0.2; touch {self.folder}/committed; exit 130' INT; echo begins >&2; for i in $(seq 500); do sleep 0.02; done")

        def interrupted(line):
            self.assertEqual(line, "begins")
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            _command.run(["train"], interrupted)
        self.assertTrue((self.folder / "committed").exists())

    def test_every_folder_is_probed(self):
        self.stand_in("echo '{}'")
        penstock.nvme.probe("/a", "/b", size="1GiB", duration="2s", engine="threads")
        self.assertEqual(self.words(), ["nvme", "probe", "/a", "/b", "--size", "1GiB", "--duration", "2s", "--engine", "threads", "--json"])

    def test_train_hands_on_what_it_was_told(self):
        self.stand_in("echo '{}'")
        run, config = self.folder / "deep" / "run", {"max_steps": 3, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}
        train = functools.partial(penstock.train, run=run, options=["--steps", "2"])
        with self.assertRaisesRegex(penstock.Refusal, "not a run"):  # the stand-in leaves none
            train(config, seed=5, optimizer={"params": {"lr": 1e-2}})
        self.assertEqual(self.words(), ["train", str(run / "told.json"), "--steps", "2", "--json"])
        self.assertEqual(json.loads((run / "told.json").read_text()), {
            "max_steps": 3, "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}}, "seed": 5, "penstock": {"run": str(run)}})
        self.assertEqual(config["optimizer"]["params"]["lr"], 1e-3)  # the caller's stays
        with self.assertRaisesRegex(penstock.Refusal, "not a run"):
            train(self.folder / "config.json")
        self.assertEqual(self.words(), ["train", str(self.folder / "config.json"), "--steps", "2", "--run", str(run), "--json"])
        with self.assertRaisesRegex(penstock.Refusal, "keywords change a config that is a dict"):
            train(self.folder / "config.json", seed=5)

    def test_probe_writes_the_profile_that_plan_reads(self):
        profile = self.folder / "profile.json"
        with self.assertLogs("penstock", "INFO"):
            found = penstock.nvme.probe(self.folder, size="16MiB", duration="1s", profile=profile)
        self.assertEqual(found["schema"].split("/")[0], "penstock.nvme.probe")
        self.assertTrue(profile.exists())
        self.assertEqual(penstock.plan("gpt2", machine=profile, tokens=1024)["model"]["name"], "gpt2")


def public_callables(module):
    """The functions that a module of the package defines for others, and the methods of its classes with all that they
    inherit within the package."""
    for name, found in vars(module).items():
        if name.startswith("_") or getattr(found, "__module__", None) != module.__name__:
            continue
        if inspect.isfunction(found):
            yield found
        for owner in inspect.getmro(found) if inspect.isclass(found) else ():
            for member, value in vars(owner).items() if owner.__module__.startswith("penstock.") else ():
                value = getattr(value, "fget", value)  # a property's
                if inspect.isfunction(value) and (member == "__init__" or not member.startswith("_")):
                    yield value


class Hints(Case):
    MODULES = ("optimizers", "planning", "nvme", "run", "_refusal")
    NEED_NUMPY = ("data.prepared", "data.packing", "data.sources", "data.writing", "data.chat", "data.model", "data.encoder",
                  "data.options", "data.prepare", "data.show")

    def test_every_public_callable_says_what_it_takes_and_gives(self):
        there = self.MODULES + (self.NEED_NUMPY if importlib.util.find_spec("numpy") else ())
        found = [one for name in there for one in public_callables(importlib.import_module(f"penstock.{name}"))]
        names = {one.__qualname__ for one in found}
        self.assertLessEqual({"AdamW.__init__", "Tiered.step", "Tiered.gradient_norm", "plan", "probe", "Run.log"}, names)
        for function in found:
            told = typing.get_type_hints(function).keys()  # each names a type that is there
            wanted = {*inspect.signature(function).parameters, "return"} - {"self"}
            self.assertEqual(wanted - told, set(), f"{function.__module__}.{function.__qualname__}")

    def test_what_the_package_offers_is_what_its_hints_offer(self):
        """Names are found when they are asked for, which a type checker does not do."""
        imports = inspect.getsource(penstock).partition("if TYPE_CHECKING:")[2].partition("__version__: str")[0]
        offered = {name.strip() for line in imports.splitlines() for name in line.partition(" import ")[2].split(",")}
        self.assertEqual(offered - {""}, set(penstock.__all__))
        for name in penstock.__all__:
            self.assertIsNotNone(getattr(penstock, name))


class FromC(Case):
    def test_a_c_program_trains_to_the_same_bits(self):
        first, second, root = 70001, 48, Path(__file__).parents[2]

        def value(step):
            return ((torch.arange(first + second) * 37 + step * 101) % 257 - 128).float() / 256

        params = [nn.Parameter(value(0)[:first].clone()), nn.Parameter(value(0)[first:].clone())]
        groups = [dict(params=params[:1], lr=1e-2, weight_decay=0.1),
                  dict(params=params[1:], betas=(0.8, 0.99), weight_decay=0.0)]
        optimizer = self.tiered(groups)
        for step in range(1, 21):
            optimizer.param_groups[1]["lr"] = 3e-3 / step
            params[0].grad = value(step)[:first]
            params[1].grad = None if step % 3 == 0 else value(step)[first:]
            optimizer.step()
        library, program, weights = os.environ["PENSTOCK_LIBRARY"], self.folder / "same_bits", self.folder / "weights"
        subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Werror", f"-I{root}",
                        Path(__file__).parent / "same_bits.c", "-o", program, library,
                        f"-Wl,-rpath,{Path(library).parent}"], check=True)
        subprocess.run([program, self.folder / "c", weights], check=True)
        ours = b"".join(p.detach().numpy().tobytes() for p in params)
        self.assertEqual(ours, weights.read_bytes())

    def test_the_library_and_the_command_need_no_torch(self):
        for file in ("PENSTOCK_LIBRARY", "PENSTOCK_COMMAND"):
            needed = subprocess.run(["ldd", os.environ[file]], capture_output=True, text=True, check=True).stdout
            self.assertIn("libc.so", needed)
            for foreign in ("libtorch", "libc10", "libpython"):
                self.assertNotIn(foreign, needed)


class Examples(Case):
    def goes_on_after_a_kill(self, name, steps, kill_at, launcher=(), more=()):
        """Killed there and started again, it makes the steps that it has made, or would have."""
        example = Path(__file__).parents[2] / "tools" / "examples" / name
        self.assertLessEqual(len(example.read_text().splitlines()), 40)

        def run(folder, kill_at=None):
            lines = []
            arguments = [sys.executable, *launcher, example, self.folder / folder, *more]
            with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
                for line in program.stdout:
                    lines += [line] if line.startswith("step ") else []
                    if kill_at and line.startswith(f"step {kill_at} "):
                        ranks = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
                        for process in (program.pid, *map(int, ranks if launcher else ())):
                            os.kill(process, signal.SIGKILL)
                        break
                errors = program.stderr.read()
            self.assertEqual(program.returncode != 0, kill_at is not None, errors)
            return lines

        killed, rest = run("killed", kill_at), run("killed")
        self.assertTrue(0 < len(rest) < steps, rest)
        again = killed[steps - len(rest):]
        if len(again) < 2:  # from the very step on
            again = run("whole")[steps - len(rest):]
        self.assertEqual(again, rest[: len(again)])

    def test_torch_loop(self):
        self.goes_on_after_a_kill("torch_loop.py", 12, 4, more=["12"])

    def test_accelerate(self):
        if importlib.util.find_spec("accelerate") is None:
            self.skipTest("accelerate is not installed (tools/setup --checks installs it)")
        self.goes_on_after_a_kill("accelerate_loop.py", 20, 8)

    def test_distributed_checkpoint(self):
        self.goes_on_after_a_kill("dcp.py", 20, 8)

    def test_distributed_data_parallel(self):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        self.goes_on_after_a_kill("ddp.py", 20, 8, launcher)

    def test_what_docstrings_show(self):
        import doctest

        from penstock import _command, _fingerprint, _sizes, nvme, optimizers, planning

        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.enterContext(tempfile.TemporaryDirectory(prefix="penstock-python-")))
        for module, examples in ((_sizes, 3), (_fingerprint, 5), (_command, 1), (planning, 4), (nvme, 0), (optimizers, 10)):
            with self.subTest(module.__name__):
                failed, tried = doctest.testmod(module)
                self.assertEqual(failed, 0)
                self.assertGreaterEqual(tried, examples)


if __name__ == "__main__":
    unittest.main(verbosity=2)
