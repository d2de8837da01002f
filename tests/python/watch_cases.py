"""`penstock watch`: a run in the terminal, as it goes on. report_test.py runs these."""
import contextlib
import fcntl
import io
import json
import os
import re
import unittest.mock

from penstock import Run, holders
from penstock import watch as watching
from penstock.page import page
from penstock.summary import Summary
from report_support import BUSY, PLAN, Runs, line


class Terminal(Runs):
    def test_shows_a_panel_that_fits(self):
        self.run_of([line(i) for i in range(1, 21)])
        for width in (40, 80, 200):
            lines = watching.panel(Summary(Run(self.folder)), width)
            self.assertLessEqual(max(map(len, lines)), width)
        text = "\n".join(lines)
        for word in ("step 20 of 40, 25 s to go", "50 %", "nvme read 20 %", "predicted 1 s"):
            self.assertIn(word, text)

    def test_shows_lanes_tiers_wear_and_what_helps_most(self):
        run = self.run_of([line(i, busy_s=BUSY) for i in range(1, 4)], plan=PLAN)
        text = "\n".join(watching.panel(Summary(run), 100))
        for word in ("busy      nvme read 60 %, update 20 %", "tiers     host 1.5 GiB of 2 GiB, nvme 3 GiB",
                     "wear      6 MiB written, 1.5 % of the drives' rating; ",
                     "faster    drives: one more like the last: by the plan 0.6 s a step instead of 1 s"):
            self.assertIn(word, text)
        # What gains less than a hundredth is not worth a line.
        run = self.run_of([line(1)], plan={**PLAN, "advice": {"changes": PLAN["advice"]["changes"][1:]}})
        self.assertNotIn("faster", "\n".join(watching.panel(Summary(run), 100)))

    def test_shows_of_the_last_step_each_number_and_the_best_evaluation(self):
        run = self.run_of([line(1, eval_loss=3.5, skipped=True, nvme_read_bytes=1), line(2, eval_loss=3.0), line(3, eval_loss=3.25, loss=1.5)])
        shown = watching.panel(Summary(run), 100)
        for words in ("loss      1.5000  █▃▁", "held out  3.2500 at step 3, best 3.0000 at 2", "rate      0.001   gradient norm 2.5",
                      "bytes     3 MiB read, 2 MiB written; memory 300 MiB", "skipped   1 steps"):
            self.assertIn(words, shown)

    def test_names_the_change_that_helps_most_wherever_it_stands(self):
        changes = [{"what": "some", "step_s": 0.9}, {"what": "most", "step_s": 0.5}, {"what": "more", "step_s": 0.7}]
        run = self.run_of([line(1)], plan={**PLAN, "advice": {"changes": changes}})
        self.assertIn("faster    most: by the plan 0.5 s a step instead of 1 s", watching.panel(Summary(run), 100))

    def test_a_bar_is_the_mean_of_its_part(self):
        self.assertEqual(watching.spark([0, 1, 2, 3], 10), "▁▃▆█")
        self.assertEqual(watching.spark([0, 0, 0, 0, 6, 8], 3), "▁▁█")
        self.assertEqual((watching.spark([2.0, 2.0], 10), watching.spark([], 10)), ("▁▁", ""))

    def test_shows_the_last_answers_on_lines_of_their_own(self):
        samples = [{"prompt": "Who?\n", "text": "A\033[2Jfox", "ended": True}]
        run = self.run_of([line(1, samples=[{"prompt": "Who?\n", "text": "x", "ended": True}]), line(2, samples=samples), line(3)])
        shown = watching.panel(Summary(run), 60)
        self.assertEqual([entry for entry in shown if entry.startswith("sample")], ["sample    Who?  => A [2Jfox"])
        self.assertEqual(watching.plain(line(2, samples=samples)).splitlines()[1:], ["    Who?  => A [2Jfox"])

    def test_says_each_step_once_until_the_run_ends(self):
        run = self.run_of([line(1), line(2)], {"max_steps": 5})
        more = iter([[line(3)], [], [line(4), line(5, eval_loss=3.0)]])

        def pause(_):
            with open(run.path / "log.jsonl", "a") as file:
                file.writelines(json.dumps(entry) + "\n" for entry in next(more))

        out = io.StringIO()
        watching.watch([str(self.folder)], None, out, pause)
        said = out.getvalue().splitlines()
        self.assertEqual([int(re.match(r"step (\d+):", s)[1]) for s in said], [1, 2, 3, 4, 5])
        self.assertIn("held out 3.0000", said[-1])

    def test_says_steps_again_that_are_done_again(self):
        """Of a run that went back: all of them, however many come at once. A loss that is no number is no other one."""
        run = self.run_of([line(1), line(2), line(3, loss=float("nan")), line(4, loss=9.0)], {"max_steps": 5})
        more = iter([[line(4, loss=8.0)], [line(2, loss=7.0)], [line(3), line(4), line(5)]])

        def pause(_):
            with open(run.path / "log.jsonl", "a") as file:
                file.writelines(json.dumps(entry) + "\n" for entry in next(more))

        out = io.StringIO()
        watching.watch([str(self.folder)], None, out, pause)
        said = [re.match(r"step (\d+): loss ([\w.]+),", each).groups() for each in out.getvalue().splitlines()]
        self.assertEqual(said, [("1", "5.0"), ("2", "2.5"), ("3", "nan"), ("4", "9.0"), ("4", "8.0"), ("2", "7.0"), ("3", "1.6667"),
                                ("4", "1.25"), ("5", "1.0")])

    def test_ends_with_a_run_that_has_stopped_early(self):
        self.run_of([line(1), line(2, stopped_early=True)])
        self.assertEqual(watching.watch([str(self.folder)], None, io.StringIO(), lambda _: self.fail("it waits")), ("", {}))

    def test_draws_over_what_it_drew(self):
        out = io.StringIO()
        screen = watching.Screen(out)
        screen.show(["a", "b"])
        screen.show(["c"])
        self.assertEqual(out.getvalue(), "\033[Ka\n\033[Kb\n\033[J\033[2A\033[Kc\n\033[J")

    def test_ends_quietly_when_it_is_interrupted(self):
        self.run_of([line(1)])

        def pause(_):
            raise KeyboardInterrupt

        self.assertEqual(watching.watch([str(self.folder)], None, io.StringIO(), pause), ("", {}))

    def test_says_of_the_last_step_what_was_predicted_of_it(self):
        run = self.run_of([line(step, predicted_s=2.0 if step < 9 else 0.5) for step in range(1, 11)])
        self.assertIn("step      1.25 s, predicted 0.5 s; usually 1.25 s, 2000 tokens/s", watching.panel(Summary(run), 100))


class TtyOutput(io.StringIO):
    def isatty(self):
        return True


class Holders(Runs):
    """A run that a process has, by a lock on its folder, and one that nobody has."""

    GONE = "stopped at step 3 of 40, and is not running; `penstock train --store /a,/b` goes on"
    CONFIG = {"max_steps": 40, "penstock": {"stores": ["/a", "/b"]}}

    @contextlib.contextmanager
    def held(self):
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(descriptor)

    def watched(self, *pauses, out=None):
        """What watch says; each of its pauses does what is given for it, and the run must end with the last."""
        out, more = out or io.StringIO(), iter(pauses)
        self.assertEqual(watching.watch([str(self.folder)], None, out, lambda _: next(more)()), ("", {}))
        self.assertEqual(list(more), [], "it ended too early")
        return out.getvalue()

    @staticmethod
    def nothing():
        pass

    def test_are_known_by_the_lock(self):
        self.run_of([line(1)])
        self.assertIs(holders.is_held(self.folder), False)
        with self.held():
            self.assertIs(holders.is_held(self.folder), True)
        # The look itself has left no lock.
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        self.addCleanup(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def test_are_not_known_where_locks_are_of_one_machine_or_none_or_an_older_trainer_writes(self):
        self.run_of([line(1)])
        for kind in ("nfs4", "fuse.sshfs"):
            with unittest.mock.patch.object(holders, "_file_system", return_value=kind):
                self.assertIsNone(holders.is_held(self.folder))
        with unittest.mock.patch.object(fcntl, "flock", side_effect=OSError(95, "Operation not supported")):
            self.assertIsNone(holders.is_held(self.folder))
        with open(self.folder / "log.jsonl", "a"):
            self.assertIsNone(holders.is_held(self.folder))
        with open(self.folder / "log.jsonl"):  # a reader writes nothing
            self.assertIs(holders.is_held(self.folder), False)

    def test_kinds_of_file_systems_are_those_of_mount(self):
        mounts = ("36 35 98:0 /mnt1 /mnt/a rw,noatime master:1 - ext3 /dev/root rw,errors=continue\n"
                  "37 35 0:52 / /home rw,relatime - nfs4 server:/home rw\n")
        with unittest.mock.patch("builtins.open", unittest.mock.mock_open(read_data=mounts)):
            found = [holders._file_system(os.makedev(*device)) for device in ((98, 0), (0, 52), (8, 1))]
        self.assertEqual(found, ["ext3", "nfs4", ""])

    def test_a_run_that_was_killed_is_said_to_be_gone_and_how_it_goes_on(self):
        self.run_of([line(1), line(2), line(3)], self.CONFIG)
        said = self.watched(*[self.nothing] * (watching.LOOKS_ALONE - 1)).splitlines()
        self.assertEqual((len(said), said[-1]), (4, self.GONE))
        screen = self.watched(*[self.nothing] * (watching.LOOKS_ALONE - 1), out=TtyOutput())
        last = screen.rpartition(f"{self.folder.name}: ")[2]
        self.assertTrue(last.startswith("step 3 of 40, not running\n"), last)
        self.assertTrue(last.endswith(self.GONE + "\n"), last)
        text, fields = watching.watch([str(self.folder), "--once"], None)
        self.assertEqual((text.splitlines()[-1], fields["running"]), (self.GONE, False))
        self.assertNotIn("to go", text)

    def test_a_run_of_several_ranks_goes_on_by_its_own_command(self):
        """Its stores do not say how many ranks it had."""
        (self.folder / "b").mkdir()
        (self.folder / "b" / "rank1.tiles").touch()
        for stores in (["/a", str(self.folder / "b")], [], None):
            self.run_of([line(3)], {"max_steps": 40, "penstock": {"stores": stores}})
            text, _ = watching.watch([str(self.folder), "--once"], None)
            self.assertEqual(text.splitlines()[-1], "stopped at step 3 of 40, and is not running; its command goes on")

    def test_a_run_that_a_process_has_is_waited_for_until_it_is_killed(self):
        self.run_of([line(1), line(2), line(3)], self.CONFIG)
        with contextlib.ExitStack() as process:
            process.enter_context(self.held())
            text, fields = watching.watch([str(self.folder), "--once"], None)
            self.assertIn("step 3 of 40, 46.2 s to go\n", text)
            self.assertIs(fields["running"], True)
            said = self.watched(*[self.nothing] * 10, process.close, *[self.nothing] * (watching.LOOKS_ALONE - 1))
        self.assertEqual(said.splitlines()[-1], self.GONE)

    def test_a_run_without_a_step_is_waited_for(self):
        self.run_of([])

        def ends():
            self.run_of([line(1)], {"max_steps": 1})

        self.assertIn("step 1:", self.watched(*[self.nothing] * 10, ends))

    def test_a_run_that_nobody_is_known_to_have_is_waited_for(self):
        self.run_of([line(1), line(2), line(3)], self.CONFIG)

        def ends():
            self.run_of([line(40)])

        with unittest.mock.patch.object(watching, "is_held", return_value=None):
            self.assertNotIn("not running", self.watched(*[self.nothing] * 10, ends))

    def test_a_log_that_is_beyond_its_config_is_not_over_while_a_process_has_the_run(self):
        self.run_of([line(step) for step in range(1, 58)], {"max_steps": 2})
        with contextlib.ExitStack() as process:
            process.enter_context(self.held())
            shown = self.watched(*[self.nothing] * 10, process.close, out=TtyOutput())
        self.assertIn("step 57, although config.json says 2 in all\n", shown)
        self.assertNotIn("%]", shown.replace(" ", ""))
        for percent in re.findall(r"(\d+) %", shown):
            self.assertLessEqual(int(percent), 100)
        summary = Summary(Run(self.folder))
        self.assertIsNone(summary.fields()["max_steps"])
        self.assertIn("config.json says 2 steps in all, and the log has step 57", page(summary))
