#!/usr/bin/env python3
"""Runs as their folders tell them: reading, the page, the terminal, and files for other programs.

Usage: report_test.py [CASE...], with PYTHONPATH set.
"""
import html
import html.parser
import io
import json
import math
import os
import re
import unittest
import unittest.mock

from penstock import Run, _command, charts, wording
from penstock import report as reporting
from penstock import watch as watching
from penstock.page import page
from penstock.summary import Summary, done_text, why_text
from exports_cases import OtherPrograms  # noqa: F401
from report_support import BUSY, HOSTILE, PLAN, Runs, line
from watch_cases import Holders, Terminal  # noqa: F401


class Reading(Runs):
    def test_gives_the_log_as_dicts_and_as_columns(self):
        run = self.run_of([line(1), line(2, eval_loss=3.0), line(3)])
        self.assertEqual([entry["step"] for entry in run.log], [1, 2, 3])
        columns = run.columns()
        self.assertEqual(columns["loss"], [5.0, 2.5, 5 / 3])
        self.assertEqual(columns["eval_loss"], [None, 3.0, None])
        self.assertEqual(run.config["max_steps"], 40)

    def test_takes_of_a_step_that_was_done_again_the_last(self):
        run = self.run_of([line(1), line(2), line(3), line(4), line(3, loss=9.0)])
        self.assertEqual([(e["step"], e["loss"]) for e in run.log], [(1, 5.0), (2, 2.5), (3, 9.0)])

    def test_waits_for_the_end_of_a_line_that_is_being_written(self):
        run = self.run_of([line(1)], tail='{"step": 2, "lo')
        self.assertEqual((len(run.log), run.bad_lines), (1, 0))

    def test_tells_what_rules_about_the_loss_did_and_where_one_ended_the_run(self):
        skip = {"batch": 2, "loss": None, "why": "not_finite", "action": "skip", "samples": ["a.txt, tokens 16 to 31"]}
        back = {"batch": 5, "step": 4, "loss": 9.5, "highest": 3.25, "why": "spike", "action": "rollback", "back_to": 2,
                "first_left_out": 4, "samples": ["a.txt, tokens 0 to 15"]}
        lines = [line(1), line(2, loss_events=[skip]), line(3), line(2, loss_events=[skip]), line(3, loss_events=[back])]
        run = self.run_of(lines)
        self.assertEqual(run.loss_events, [{"step": 2, **skip}, back])
        self.assertIsNone(run.stopped)
        end = {"step": 4, "batch": 8, "loss": None, "stopped": True, "loss_events": [{**skip, "batch": 8, "action": "stop"}]}
        run = self.run_of([*lines, end])
        self.assertEqual(([entry["step"] for entry in run.log], run.stopped), ([1, 2, 3], end))
        summary = Summary(run)
        self.assertEqual(([event["batch"] for event in summary.fields()["loss_events"]], summary.steps), ([2, 5, 8], 3))
        shown = page(summary)
        for words in ("stopped at step 4: batch 8: its loss is not finite", "its loss is a spike, 9.5 above 3.25",
                      "back to step 2, batches 4 to 5 left out", "a.txt, tokens 16 to 31"):
            self.assertIn(words, shown)
        self.assertIn("stopped at step 4: batch 8: its loss is not finite", "\n".join(watching.panel(summary, 120)))
        out = io.StringIO()
        watching._follow(run, out, lambda _: self.fail("it waits for a run that has ended"))
        self.assertIn("batch 5: its loss is a spike, 9.5 above 3.25: back to step 2, batches 4 to 5 left out", out.getvalue())
        self.assertTrue(out.getvalue().endswith("stopped at step 4: batch 8: its loss is not finite\n"), out.getvalue())
        # Gone on with, it has not stopped any more.
        self.assertIsNone(self.run_of([*lines, end, line(4)]).stopped)
        self.refused("stopped at step 1", reporting.Summary, self.run_of([{**end, "step": 1}]))

    def test_says_of_a_batch_what_was_done_about_it(self):
        lowered = {"why": "gradients_not_finite", "loss": 2.5, "action": "lower_rate", "rate_factor": 0.25}
        self.assertEqual(why_text(lowered), "its gradients are not finite, its loss is 2.5")
        self.assertEqual(done_text(lowered), "left out, rates are 0.25 of the schedule's")
        self.assertEqual(done_text({"action": "skip"}), "left out")

    def test_exports_from_all_stores_of_the_run(self):
        run = self.run_of([line(1)], {"penstock": {"stores": ["/a", "/b"]}})
        with unittest.mock.patch.object(_command, "run") as command:
            self.assertEqual(run.export(self.folder / "out", "--dtype", "bf16"), self.folder / "out")
        command.assert_called_once_with(["checkpoint", "export", "/a,/b", str(self.folder / "out"), "--dtype", "bf16"])
        self.refused("names no stores", self.run_of([line(1)]).export, self.folder / "out")

    def test_counts_what_it_cannot_read(self):
        run = self.run_of([line(1)], tail='nonsense\n[1]\n{"loss": 1}\n' + json.dumps(line(2)) + "\n")
        self.assertEqual(([e["step"] for e in run.log], run.bad_lines), ([1, 2], 3))

    def test_refuses_what_is_no_run(self):
        self.refused("no such folder", Run, self.folder / "absent")
        self.refused("neither log.jsonl nor config.json", Run, self.folder)


class Markup(html.parser.HTMLParser):
    VOID = {"meta", "line", "circle", "path", "br"}

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.attributes, self.texts, self.wrong = [], [], [], [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        self.texts.append(data)


class Page(Runs):
    def page(self, lines, config=None, plan=None, tail=""):
        return page(Summary(self.run_of(lines, config, tail, plan)))

    @staticmethod
    def rows(page, title):
        """The cells of each row of the tables below a heading."""
        section = page.split(f"<h2>{title}</h2>")[1].split("<h2>")[0]
        return [[html.unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row)]
                for row in re.findall(r"<tr>(.*?)</tr>", section)]

    def test_evaluations_are_shown_by_set_where_there_are_several(self):
        sets = [{"set": "<a>.txt", "loss": 3.5, "perplexity": 33.1, "tokens": 60}, {"set": "b", "loss": 4.5, "perplexity": 90.0, "tokens": 40}]
        page = self.page([line(1), line(2, eval_loss=3.9, eval_perplexity=49.4, eval_tokens=100, eval_sets=sets)])
        rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr>(.*?)</tr>", page)]
        self.assertIn(["&lt;a&gt;.txt", "3.5", "33.1", "60"], rows)
        self.assertIn(["b", "4.5", "90", "40"], rows)
        self.assertNotIn("set, at step", self.page([line(1), line(2, eval_loss=3.9)]))

    def test_is_whole_and_needs_no_network(self):
        page = self.page([line(i, **({"eval_loss": 4.0, "eval_perplexity": 54.6, "eval_tokens": 100} if i % 10 == 0 else {}))
                          for i in range(1, 41)], {"max_steps": 40, "model": "m", "penstock": {"stores": ["/a"]}})
        markup = Markup(page)
        self.assertEqual((markup.wrong, markup.open), ([], []))
        self.assertFalse(set(markup.tags) & {"script", "link", "img", "iframe", "object"})
        self.assertFalse([a for a in markup.attributes if a[0] in ("src", "href", "srcset")])
        self.assertNotRegex(page, r"https?:|@import|url\(")
        self.assertIn("width=device-width", page)
        text = " ".join(markup.texts)
        for word in ("40 of 40", "1.25 s", "predicted; it took 1.25 of that", "nvme read", "20.0 %", "penstock.stores", "held-out loss"):
            self.assertIn(word, text)
        self.assertEqual(page.count('class="wide"'), page.count('class="narrow"'))
        self.assertGreaterEqual(page.count('class="wide"'), 7)

    def test_lets_no_name_become_markup(self):
        page = self.page([line(1, stall_s={HOSTILE: 1.0}), line(2, stall_s={HOSTILE: 1.0})],
                         {"model": HOSTILE, HOSTILE: {HOSTILE: HOSTILE}})
        self.assertNotIn("script", Markup(page).tags)
        self.assertEqual(Markup(page).wrong, [])

    def test_shows_how_busy_each_lane_was_beside_what_was_planned(self):
        page = self.page([line(1, busy_s={"nvme_read": 1.25})] + [line(i, busy_s=BUSY) for i in range(2, 12)], plan=PLAN)
        self.assertEqual(self.rows(page, "Lanes"), [["lane", "busy", "as planned", "a tenth faster"],
                                                    ["nvme read", "60 %", "60 %", ""], ["update", "20 %", "20 %", "0 %"],
                                                    ["drives", "–", "90 %", "8 %"]])
        self.assertIn("a step is bound by drives", page)
        for picture in re.findall(r"<svg[^>]*Busy.*?</svg>", page):
            # Of a row of 22 the first step fills all, the second 60 %.
            area = re.search(r'<rect class="strip"[^>]*y="2"[^>]*/><path d="M\S+ 24L\S+ (\S+?)L\S+ (\S+?)L', picture)
            self.assertEqual((area[1], area[2]), ("2.0", "10.8"))
        self.assertEqual(len(re.findall(r"<svg[^>]*Busy", page)), 2)

    def test_shows_what_tiers_hold_and_how_full_they_are(self):
        page = self.page([line(1)], plan=PLAN)
        self.assertIn("host: 1.5 GiB of 2 GiB, 75 %", page)
        self.assertIn("nvme: 3 GiB, without a limit", page)
        self.assertNotIn("device: ", page)
        self.assertEqual(self.rows(page, "Tiers"), [["line", "bytes"], ["windows", "1 GiB"], ["program", "512 MiB"], ["line", "bytes"],
                                                    ["slots", "3 GiB"], ["role", "host", "nvme"], ["weight", "100 MiB", ""],
                                                    ["momentum", "", "200 MiB"]])
        self.assertEqual(re.findall(r'<i style="width:([^;]*);', page), ["50%", "25%", "100%"])

    def test_shows_how_drives_wear(self):
        lines = [line(1), line(2), line(2)]  # one was done again: it was written all the same
        rows = dict(self.rows(self.page(lines, plan=PLAN), "Drive wear"))
        self.assertEqual(rows["written by the steps so far"], "6 MiB")
        self.assertEqual(rows["of what the drives are rated for"], "1.5 %")
        self.assertEqual(rows["a day at this pace"], "135 GiB")  # 2 MiB in 1.25 s
        wear = Summary(Run(self.folder)).fields()["wear"]
        self.assertAlmostEqual(wear["days_at_this_pace"], 400 / (2 / 1.25) / 86400)
        # Of two ranks' bytes half are on these drives.
        self.run_of(lines, plan={**PLAN, "drives_share": 0.5})
        half = Summary(Run(self.folder)).fields()["wear"]
        self.assertAlmostEqual(half["endurance_share"], 0.0075)
        self.assertAlmostEqual(half["days_at_this_pace"], 2 * wear["days_at_this_pace"])
        unknown = self.page(lines, plan={**PLAN, "drives": [{"path": "/a", "endurance_bytes": None}, {"path": "/b", "endurance_bytes": 1}]})
        self.assertEqual(len(self.rows(unknown, "Drive wear")), 2)
        self.assertIn("What the drives endure is not known", unknown)

    def test_shows_what_would_make_it_faster_by_the_planners_word(self):
        page = self.page([line(1)], plan=PLAN)
        self.assertEqual(self.rows(page, "What would make it faster"),
                         [["what would change", "a step", "gain"], ["as it is", "1 s", ""],
                          ["drives: one more like the last", "0.6 s", "40 %"], ["compute: twice as fast", "1 s", "0 %"]])
        self.assertIn("Other changes were not planned", page)
        self.assertNotIn("What would make it faster", self.page([line(1)], plan={**PLAN, "predicted_s": None}))

    def test_shows_the_share_of_the_floor(self):
        self.assertIn("<b>80 %</b><span>of a step is what drives or computing alone would take", self.page([line(1, floor_share=0.8)]))

    def test_is_made_of_any_plan(self):
        hostile = {"budget": [{"tier": "host", "line": HOSTILE, "bytes": 5}, 3], "lanes": {HOSTILE: 1.0}, "bottleneck": HOSTILE,
                   "predicted_s": 2.0, "state_bytes": {HOSTILE: {"host": 3}}, "advice": {"changes": [{"what": HOSTILE, "step_s": 1.0}]}}
        lists = {key: [1, None] for key in PLAN}
        for plan in (hostile, lists, {key: "x" for key in PLAN}, {key: None for key in PLAN}, {**PLAN, "advice": {"changes": 3}},
                     {"predicted_s": 0, "lanes": {"update": 1}, "budget_bytes": {"host": 0}, "budget": [{"tier": "host", "bytes": 4}]}, []):
            for busy in (BUSY, {HOSTILE: 1.0}, [1], None):
                with self.subTest(plan=plan, busy=busy):
                    run = self.run_of([line(1, busy_s=busy), line(2, busy_s=busy, step_s=0)], plan=plan)
                    markup = Markup(page(Summary(run)))
                    self.assertEqual((markup.wrong, markup.open), ([], []))
                    self.assertNotIn("script", markup.tags)
                    watching.panel(Summary(run), 80)

    def test_draws_each_number_in_its_unit(self):
        drawn = {}

        def chart(title, series, *_, **more):
            drawn[title] = {one["name"]: one["points"] for one in series}, more
            return ""

        with unittest.mock.patch("penstock.page.chart", chart):
            self.page([line(1, loss_scale=2.0), line(2, step_s=2.5)])
        self.assertEqual({title: names for title, (names, _) in drawn.items()}, {
            "Loss": {"loss of a step": [(1, 5.0), (2, 2.5)]},
            "Learning rate": {"": [(1, 1e-3), (2, 1e-3)]},
            "Gradient norm": {"": [(1, 2.5), (2, 2.5)]},
            "Loss scale": {"": [(1, 2.0), (2, 1.0)]},
            "Seconds a step": {"actual": [(1, 1.25), (2, 2.5)], "predicted": [(1, 1.0), (2, 1.0)]},
            "Tokens a second": {"": [(1, 2000.0), (2, 2000.0)]},
            "Drives, MiB a step": {"read": [(1, 3.0), (2, 3.0)], "written": [(1, 2.0), (2, 2.0)]},
            "Memory of the program, MiB": {"": [(1, 300.0), (2, 300.0)]}})

    def test_says_what_is_usual_and_what_there_was_at_most(self):
        page = self.page([line(1, step_s=10.0, rss_bytes=400 << 20), line(2, eval_loss=1.0)], plan=PLAN)
        tiles = {name: value for value, name in re.findall(r"<div><b>([^<]*)</b><span>([^<]*)</span></div>", page)}
        self.assertEqual(tiles, {
            "steps": "2 of 40", "loss, first to last": "5.000 → 2.500", "best held-out loss, step 2": "1.0000", "its perplexity": "2.718",
            "a step, usually": "1.25 s", "predicted; it took 1.25 of that": "1 s", "tokens a second": "2000", "read a step": "3 MiB",
            "written a step": "2 MiB", "program&#x27;s memory, most": "400 MiB", "time of all steps": "11.2 s"})
        self.assertIn("The program had at most 400 MiB of it, as measured.", page)

    def test_names_few_of_many_evaluations_and_always_the_last(self):
        page = self.page([line(i, eval_loss=4.0) for i in range(1, 31)])
        shown = [int(row[0]) for row in self.rows(page, "Learning") if row[0].isdigit()]
        self.assertEqual((shown[0], shown[-1]), (1, 30))
        self.assertLessEqual(len(shown), 12)

    def test_shows_what_was_answered(self):
        def asked(step, text):
            return [{"prompt": f"Who? {HOSTILE}", "text": f"{text} {step}", "tokens": [1], "ended": step > 8}, {"prompt": 3}]
        page = self.page([line(i, samples=asked(i, HOSTILE)) for i in range(1, 11)])
        self.assertIn("<h2>Samples</h2>", page)
        self.assertEqual(page.count("Who? &lt;/td&gt;"), 1)
        self.assertEqual(re.findall(r"&lt;/script&gt; (\d+)( …)?</td>", page),
                         [("1", " …"), ("3", " …"), ("5", " …"), ("7", " …"), ("9", ""), ("10", "")])
        self.assertNotIn("<h2>Samples</h2>", self.page([line(1, samples="no list")]))

    def test_is_made_of_little(self):
        for lines in ([line(1)], [{"step": 1}], [{"step": 1, "loss": None}, {"step": 2, "loss": float("nan")}],
                      [line(1, predicted_s=None, stall_s={}), line(2, loss=float("inf"), stall_s=None)],
                      [line(i, loss=1.0, grad_norm=0.0) for i in range(1, 9)]):
            with self.subTest(lines[0]):
                self.assertEqual(Markup(self.page(lines, {})).wrong, [])

    def test_says_what_went_wrong(self):
        page = self.page([line(1), line(2, loss=None), line(5, skipped=True, stopped_early=True)], tail="nonsense\n")
        self.assertIn("the loss of 1 steps is not finite, of step 2 first", page)
        self.assertIn("1 steps changed nothing", page)
        self.assertIn("2 steps are not in the log", page)
        self.assertIn("1 lines of log.jsonl could not be read", page)
        self.assertIn("stopped early at step 5", page)

    def test_stays_small_however_long_the_run(self):
        self.assertLess(len(self.page([line(i, busy_s=BUSY) for i in range(1, 20001)], plan=PLAN)), 400_000)

    def test_replaces_a_report_but_nothing_else(self):
        self.run_of([line(1), line(2)])
        for _ in range(2):
            self.assertEqual(self.verb(reporting.report, self.folder)[0], 0)
        own = self.folder / "own.html"
        own.write_text("mine")
        code, _, err = self.verb(reporting.report, self.folder, "--out", own)
        self.assertEqual((code, own.read_text()), (2, "mine"))
        self.assertIn("exists already and is no report", err)
        self.assertEqual(self.verb(reporting.report, self.folder, "--out", own, "--force")[0], 0)
        self.assertEqual(list(self.folder.glob("*.partial")), [])

    def test_makes_the_folders_that_are_missing(self):
        self.run_of([line(1)])
        made = self.folder / "absent" / "deep"
        code, _, err = self.verb(reporting.report, self.folder, "--out", made / "x.html", "--prometheus", made / "also" / "x.prom")
        self.assertEqual((code, err), (0, ""))
        self.assertTrue((made / "x.html").is_file() and (made / "also" / "x.prom").is_file())

    def test_says_what_is_in_the_way_and_writes_nothing_then(self):
        self.run_of([line(1)])
        own = self.folder / "own"
        own.write_text("mine")
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for arguments, what, remedy in (
                (("--tensorboard", own), f"{own}: is not a folder", "--tensorboard in another place"),
                (("--tensorboard", own / "events"), f"{own}: is not a folder", "--tensorboard in another place"),
                (("--out", own / "x.html"), f"{own}: is not a folder", "--out in another place"),
                (("--prometheus", own / "x.prom", "--force"), f"{own}: is not a folder", "--prometheus in another place"),
                (("--prometheus", pipe, "--force"), f"{pipe}: is not a file", "--prometheus FILE"),
                (("--out", self.folder, "--force"), f"{self.folder}: is not a file", "--out FILE")):
            with self.subTest(arguments=arguments):
                code, _, err = self.verb(reporting.report, self.folder, *arguments)
                self.assertEqual(code, 2, err)
                self.assertIn(f"penstock: report: {what}\ntry: {remedy}", err)
                self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["config.json", "log.jsonl", "own", "pipe"])
        self.assertTrue(pipe.is_fifo())
        self.assertEqual(own.read_text(), "mine")

    def test_names_the_file_that_cannot_be_written(self):
        self.run_of([line(1)])
        neighbour = self.folder / "report.html.partial"
        neighbour.write_text("mine")
        with unittest.mock.patch("os.replace", side_effect=OSError(28, "No space left on device", "a", None, "b")):
            code, _, err = self.verb(reporting.report, self.folder)
        self.assertEqual((code, err.splitlines()[0]), (3, f"penstock: {self.folder / 'report.html'}: No space left on device"))
        self.assertEqual([p.name for p in self.folder.glob("*.partial")], [neighbour.name])
        self.assertEqual(neighbour.read_text(), "mine")

    def test_has_its_numbers_as_json_too(self):
        self.run_of([line(1), line(2, eval_loss=3.5), line(3, eval_loss=4.0)])
        code, out, _ = self.verb(reporting.report, self.folder, "--json")
        answer = json.loads(out)
        self.assertEqual((code, answer["schema"]), (0, "penstock.report/1"))
        self.assertEqual((answer["steps"], answer["eval_loss_best"], answer["eval_loss_best_step"]), (3, 3.5, 2))
        self.assertAlmostEqual(answer["stall_s"]["nvme_read"], 0.75)

    def test_each_number_of_its_json_is_its_own(self):
        """What is usual leaves out the first step, which fetches everything."""
        first = line(1, step_s=10.0, predicted_s=9.0, tokens_per_s=1.0, nvme_read_bytes=1, nvme_written_bytes=2, rss_bytes=400 << 20,
                     floor_share=0.1, busy_s={"nvme_read": 10.0, "update": 1.0})
        self.run_of([first, line(2, skipped=True, floor_share=0.8, busy_s={"nvme_read": 0.25, "update": 2.5})], tail="nonsense\n", plan=PLAN)
        code, out, _ = self.verb(reporting.report, self.folder, "--json")
        answer = json.loads(out)
        wear = answer.pop("wear")
        self.assertEqual((code, wear["written_bytes"]), (0, 2 + (2 << 20)))
        self.assertEqual(answer, {
            "schema": "penstock.report/1", "run": str(self.folder), "page": str(self.folder / "report.html"), "steps": 2, "max_steps": 40,
            "loss_first": 5.0, "loss_last": 2.5, "eval_loss_best": None, "eval_loss_best_step": None, "step_s": 1.25, "predicted_s": 1.0,
            "tokens_per_s": 2000.0, "nvme_read_bytes": 3 << 20, "nvme_written_bytes": 2 << 20, "peak_rss_bytes": 400 << 20,
            "loss_events": [], "stopped": False, "stall_s": {"nvme_read": 0.5, "none": 0.1}, "skipped_steps": [2], "bad_lines": 1,
            "floor_share": 0.8, "busy_share": {"nvme_read": 0.2, "update": 1.0}, "planned_busy_s": PLAN["lanes"], "bottleneck": "drives",
            "tiers": {"host": {"planned_bytes": 3 << 29, "budget_bytes": 2 << 30}, "nvme": {"planned_bytes": 3 << 30, "budget_bytes": None}},
            "advice": PLAN["advice"]["changes"]})

    def test_waits_for_a_first_step(self):
        self.run_of([])
        self.refused("no step is in its log yet", reporting.Summary, Run(self.folder))


class Pictures(unittest.TestCase):
    def test_have_round_numbers_at_their_axes(self):
        self.assertEqual(charts.ticks(0, 10, 5), [0, 2, 4, 6, 8, 10])
        self.assertEqual([round(t, 9) for t in charts.ticks(0.13, 0.41, 3)], [0.2, 0.3, 0.4])
        self.assertEqual(charts.log_ticks(-1, 3, 4), [0.1, 1, 10, 100, 1000])
        self.assertEqual(charts.log_ticks(0.1, 0.9, 4), [2, 5])
        self.assertEqual([charts.short(n) for n in (9999, 1e4, 20000, 2.5e6, 0.012)], ["9999", "10k", "20k", "2.5M", "0.012"])

    def test_keep_the_extremes_of_what_they_leave_out(self):
        points = [(i, 100.0 if i == 7777 else math.sin(i)) for i in range(20000)]
        kept = charts.thinned(points)
        self.assertLessEqual(len(kept), charts.POINTS_MOST)
        self.assertIn((7777, 100.0), kept)
        self.assertEqual(kept, sorted(kept))

    def test_draw_where_the_values_are(self):
        frame = charts.Frame(200, 100, (0, 10), (0, 5))
        self.assertEqual(frame.at(0, 0), (frame.left, 100 - frame.bottom))
        x, y = frame.at(10, 5)
        self.assertAlmostEqual(x, 200 - frame.right)
        self.assertAlmostEqual(y, frame.top + (100 - frame.top - frame.bottom) * 0.04 / 1.04)

    def test_smooth_without_a_pull_to_zero(self):
        self.assertEqual([round(y, 9) for _, y in charts.smoothed([(i, 3.0) for i in range(50)])], [3.0] * 50)
        [_, (_, second)] = charts.smoothed([(1, 0.0), (2, 1.0)])
        self.assertAlmostEqual(second, 2 / 3)  # each weighs half of the one behind it

    def test_stack_areas_one_upon_another(self):
        with unittest.mock.patch.object(charts, "chart") as chart:
            charts.stacked("Waiting", ["a", "b"], [(1, {"a": 1.0, "b": 2.0}), (2, {"b": 4.0})])
        (_, series, _), _ = chart.call_args
        self.assertEqual([(one["name"], one["points"], one["between"]) for one in series], [
            ("a", [(1, 1.0), (2, 0.0)], [(1, 0.0), (2, 0.0)]), ("b", [(1, 3.0), (2, 4.0)], [(1, 1.0), (2, 0.0)])])


class Words(unittest.TestCase):
    def test_have_a_unit_that_fits_the_number(self):
        for say, number, text in (
                (wording.bytes_text, 1023, "1023 B"), (wording.bytes_text, 1024, "1 KiB"), (wording.bytes_text, 1000 << 20, "1000 MiB"),
                (wording.bytes_text, 3 << 29, "1.5 GiB"), (wording.bytes_text, 5 << 40, "5 TiB"), (wording.bytes_text, None, "–"),
                (wording.seconds_text, 0.0123, "0.0123 s"), (wording.seconds_text, 119, "119 s"), (wording.seconds_text, 120, "2 min"),
                (wording.seconds_text, 7140, "119 min"), (wording.seconds_text, 9000, "2.5 h"), (wording.seconds_text, math.inf, "–"),
                (wording.days_text, 12.4, "12 days"), (wording.days_text, 3649, "3649 days"), (wording.days_text, 3653, "10 years"),
                (wording.share_text, 0.5, "50 %"), (wording.share_text, 0.0123, "1.2 %"), (wording.share_text, 0, "0 %"),
                (wording.lane_text, "none", "other"), (wording.lane_text, "nvme_read", "nvme read")):
            with self.subTest(text):
                self.assertEqual(say(number), text)


if __name__ == "__main__":
    unittest.main(verbosity=1)
