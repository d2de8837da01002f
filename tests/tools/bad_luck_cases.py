"""What bad luck gets from the verbs that use stores: full drives, limits, interrupts, roots that are lost.

bad_input_stores_test.py runs these.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import time

from bad_input_support import (
    DOES_NOT_FIT, ENVIRONMENT, INTERRUPTED, LONELY, MUCH, PENSTOCK, TRIED, StoreRefusals, mounted,
    need_no_sanitizer, need_root, run,
)


class BadLuckOfStores(StoreRefusals):
    def test_no_space_for_the_store(self):
        need_root()
        with mounted(40 << 20) as mount:
            for space, parameters, offered in (("double", "2400k", True), ("double", "6M", False), ("single", "6M", False)):
                ran = run("update", "--params", parameters, "--space", space, "--store", mount / "new", "--budget", MUCH)
                lines = ran.stderr.splitlines()
                TRIED.append((f"a store larger than the drive, {space}", "update", ran.returncode, lines[-2:]))
                self.assertEqual(ran.returncode, DOES_NOT_FIT, ran.stderr)
                self.assertRegex(lines[-2], r"^penstock: .*/new: the store needs [0-9.]+ MiB here and [0-9.]+ MiB are free$")
                self.assertEqual("--space single" in lines[-1], offered, lines[-1])  # where half of it fits
                self.assertEqual([path.name for path in mount.iterdir()], ["lost+found"])

    def test_a_store_on_a_drive_that_is_too_full_to_be_measured(self):
        need_root()
        with mounted(40 << 20) as mount:
            usual = ("--params", "1M", "--store", mount / "store", "--budget", MUCH, "--strike-share", "0.5")
            made = run("update", *usual, "--steps", "2", "--json")
            self.assertEqual(made.returncode, 0, made.stderr)
            self.assertRegex(made.stderr, "steps are not predicted: create scratch file: .* 16.00 MiB to spare, [0-9.]+ MiB are free")
            answer = json.loads(made.stdout)
            self.assertEqual([answer["predicted_s"], answer["floor_s"], answer["log"][0]["predicted_s"]], [None] * 3)
            with open(mount / "filler", "wb") as filler:
                os.posix_fallocate(filler.fileno(), 0, shutil.disk_usage(mount).free // 2)
            resumed = run("update", *usual, "--steps", "4")
            self.assertEqual(resumed.returncode, 0, resumed.stderr)
            self.assertIn("not predicted: the drives were not measured", resumed.stdout)
            verified = run("verify", *usual, "--steps", "4")
            self.assertEqual(verified.returncode, 0, verified.stderr)

    def test_fewer_threads_than_it_takes(self):
        need_root()
        need_no_sanitizer("starts threads of its own")
        with mounted(512 << 20) as mount:  # where another user may go, wherever the build lies
            mount.chmod(0o777)
            self.refuse_fewer_threads_than_it_takes(mount)

    def refuse_fewer_threads_than_it_takes(self, folder):
        # Neither the probe nor libaio starts a thread of its own.
        probed = run("nvme", "probe", folder, "--size", "64MiB", "--duration", "100ms", "--profile",
                     folder / "profile", "--json")
        self.assertEqual(probed.returncode, 0, probed.stderr)
        usual = ("--machine", folder / "profile", "--budget", MUCH, "--threads", "3")
        for granted, engine, what in ((1, "libaio", "start decision thread: 0 of 1"),
                                      (2, "libaio", "start update threads: 0 of 3"),
                                      (4, "libaio", "start update threads: 2 of 3"),
                                      (1, "threads", "start I/O threads: 0 of 16"),
                                      (16, "threads", "start I/O threads: 15 of 16")):
            shutil.rmtree(folder / "store", True)
            ran = run("update", "--params", "1M", "--store", folder / "store", "--engine", engine, *usual, user=LONELY,
                      threads=granted)
            lines = ran.stderr.splitlines()[-2:]
            TRIED.append((f"{granted} threads, by {engine}", "update", ran.returncode, lines))
            self.assertEqual(ran.returncode, ENVIRONMENT, ran.stderr)
            self.assertIn(what, lines[0])
            self.assertIn("EAGAIN", lines[0])
            self.assertRegex(lines[1], "^try: .*raise `ulimit -u`")
        libaio = ("update", "--params", "1M", "--store", folder / "store", "--engine", "libaio")
        enough = run(*libaio, *usual, user=LONELY, threads=5)
        self.assertEqual(enough.returncode, 0, enough.stderr)
        measured = run(*libaio, "--budget", MUCH, "--threads", "1", user=LONELY, threads=2)
        self.assertIn("start update threads: 0 of 1", measured.stderr, "the drives are measured by the threads that run")

    def test_a_limit_of_file_sizes(self):
        file = self.make_store()
        usual = ("--params", "1M", "--budget", MUCH, "--durability", "step", "--steps", "9")
        for store, what in (("new", r"create .*/new/new\.rank0\.tiles"), ("store", r"write \d+ B at \d+ of .*/rank0\.tiles")):
            ran = run("update", *usual, "--store", self.folder / store, file_bytes=4 << 20)
            lines = ran.stderr.splitlines()[-2:]
            TRIED.append(("ulimit -f", "update", ran.returncode, lines))
            self.assertEqual(ran.returncode, DOES_NOT_FIT, ran.stderr)
            self.assertRegex(lines[0], f"^penstock: {what}: EFBIG")
            self.assertRegex(lines[1], "^try: raise `ulimit -f`")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["store"])
        goes_on = run("verify", *usual, "--store", file.parent)
        self.assertEqual(goes_on.returncode, 0, goes_on.stderr)

    def test_results_that_nobody_gets(self):
        store = self.make_store().parent
        for arguments in (("checkpoint", "ls", store), ("checkpoint", "ls", store, "--json"), ("--version",)):
            with self.subTest(arguments=arguments), open("/dev/null", "rb") as unwritable:
                ran = subprocess.run([PENSTOCK, *map(str, arguments)], stdout=unwritable, stderr=subprocess.PIPE,
                                     text=True, timeout=120, check=False)
                TRIED.append(("stdout takes nothing", arguments[0], ran.returncode, ran.stderr.splitlines()))
                self.assertEqual(ran.returncode, ENVIRONMENT, ran.stderr)
                self.assertRegex(ran.stderr, r"^penstock: print results: stdout: EBADF .*\ntry: .+\n$")
        # Who reads the first line alone has not failed.
        reader, writer = os.pipe()
        os.close(reader)
        ran = subprocess.run([PENSTOCK, "manual"], stdout=writer, stderr=subprocess.PIPE, timeout=120, check=False)
        os.close(writer)
        self.assertEqual((ran.returncode, ran.stderr), (0, b""))

    def interrupted_update(self, *flags):
        """Exit code, stderr, stdout before the interrupt and stdout at the end."""
        out = self.folder / "out"
        with open(out, "w", encoding="utf-8") as file:
            process = subprocess.Popen([PENSTOCK, "update", "--params", "1M", "--store", self.folder / "store", "--budget",
                                        MUCH, "--steps", "1000000", *flags], stdout=file, stderr=subprocess.PIPE, text=True)
        lines = []
        before = None
        for line in process.stderr:
            lines.append(line)
            if ("% step" in line or line.startswith('{"step"')) and before is None:
                before = out.read_text(encoding="utf-8")
                process.send_signal(signal.SIGINT)
        code = process.wait()
        process.stderr.close()
        TRIED.append(("SIGINT", "update", code, lines[-2:]))
        return code, lines, before, out.read_text(encoding="utf-8")

    def test_an_interrupted_run_is_committed(self):
        store = self.folder / "store"
        code, lines, before, after = self.interrupted_update()
        self.assertEqual(code, INTERRUPTED, lines)
        said = re.fullmatch(r"penstock: interrupted: step (\d+) is committed\n", lines[-2])
        self.assertTrue(said, lines)
        self.assertEqual(lines[-1], "try: the same command continues from there\n")
        found = json.loads(run("checkpoint", "ls", store, "--json").stdout)
        self.assertEqual(found["step"], int(said[1]))
        self.assertEqual([path.name for path in store.iterdir()], ["rank0.tiles"])
        # Every row comes as its step ends, not only at the end of the run.
        rows = re.compile(r"^ +(\d+) +confirmed ", re.MULTILINE)
        self.assertEqual(rows.findall(before)[:1], ["1"], before)
        self.assertEqual(rows.findall(after), [str(step + 1) for step in range(found["step"])])
        self.assertIn(" s a step", after)

        code, lines, before, after = self.interrupted_update("--json")
        answer = json.loads(after)
        self.assertEqual((code, before, answer["error"]["code"]), (INTERRUPTED, "", INTERRUPTED), lines)
        first = found["step"] + 1
        self.assertGreaterEqual(answer["steps"], first)
        self.assertEqual([step["step"] for step in answer["log"]], list(range(first, answer["steps"] + 1)))

        # A program that reads along gets each step when it ends, and nothing before the refusal that is not an object.
        code, lines, before, after = self.interrupted_update("--json", "--progress", "json")
        answer, objects = json.loads(after), [json.loads(line) for line in lines[:-2]]
        self.assertEqual((code, lines[-1][:5]), (INTERRUPTED, "try: "), lines)
        self.assertEqual([one["step"] for one in objects if "step" in one], answer["log"])
        self.assertIn({"note": f"resuming after step {answer['log'][0]['step'] - 1}"}, objects)
        self.assertTrue(all(0 <= one["progress"]["share"] <= 1 for one in objects if "progress" in one), objects)

    def test_an_interrupted_creation_leaves_nothing(self):
        process = subprocess.Popen([PENSTOCK, "update", "--params", "60M", "--store", self.folder / "store", "--budget",
                                    MUCH, "--steps", "1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("creating a store"):
                process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(), INTERRUPTED, lines)
        self.assertEqual(process.stdout.read(), "")
        process.stdout.close()
        process.stderr.close()
        TRIED.append(("SIGINT while the store is made", "update", process.returncode, lines[-2:]))
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_plan_that_takes_long_says_so_and_ends_when_it_is_interrupted(self):
        takes_long = [PENSTOCK, "plan", "--model", "llama-3-70b", "--machine", "8h200-8gen5", "--ranks", "8",
                      "--nodes", "4", "--network", "50", "--advise"]
        for line in (takes_long, [*takes_long, "--json"]):
            process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            said = process.stderr.readline()
            self.assertIn("% planning with ", said)
            process.send_signal(signal.SIGINT)
            asked = time.monotonic()
            out, err = process.communicate()
            self.assertLess(time.monotonic() - asked, 5)
            self.assertEqual(process.returncode, INTERRUPTED)
            self.assertIn("penstock: interrupted: nothing was changed", err)
            if line is takes_long:
                self.assertEqual(out, "")
                continue
            answer = json.loads(out)
            self.assertEqual((answer["schema"], answer["error"]["code"]), ("penstock.plan/1", INTERRUPTED))

    def test_an_older_step_is_never_gone_on_from_without_a_word(self):
        file = self.make_store()
        bad = bytearray(file.read_bytes())
        bad[4096 + 99] ^= 1  # the second root, which is step 1's
        file.write_bytes(bad)
        again = ("update", "--params", "1M", "--store", file.parent, "--budget", MUCH, "--steps", "1")
        ran = run(*again, "--json")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        said = json.loads(ran.stdout)["remarks"]
        self.assertEqual(len(said), 3, said)
        self.assertIn("every block of step 0 was verified", said[0])
        self.assertIn("step 1 is lost, the store is at step 0", said[1])
        self.assertIn("store: " + said[0], ran.stderr.splitlines())
        ran = run(*again)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("nothing to do: the store is at step 1 already", ran.stdout)
