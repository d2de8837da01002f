"""`penstock watch`: a run in the terminal, as it goes on. report_test.py runs these."""
import io
import json
import re

from penstock import Run
from penstock import watch as watching
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
                     "faster    drives: one more like the last: 0.6 s a step instead of 1 s"):
            self.assertIn(word, text)
        # What gains less than a hundredth is not worth a line.
        run = self.run_of([line(1)], plan={**PLAN, "advice": {"changes": PLAN["advice"]["changes"][1:]}})
        self.assertNotIn("faster", "\n".join(watching.panel(Summary(run), 100)))

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
