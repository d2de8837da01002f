#!/usr/bin/env python3
"""Runs as their folders tell them: reading, the page, the terminal, and files for other programs.

Usage: report_test.py [CASE...], with PYTHONPATH set.
"""
import contextlib
import html
import html.parser
import io
import json
import math
import os
import re
import struct
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

from penstock import Refusal, Run, charts, exports
from penstock import report as reporting
from penstock import watch as watching
from penstock._verb import run as run_verb

HOSTILE = '</td><script>alert("x")</script>'


def line(step, **more):
    return {"step": step, "loss": 5 / step, "lr": 1e-3, "grad_norm": 2.5, "step_s": 1.25, "predicted_s": 1.0,
            "tokens_per_s": 2000.0, "nvme_read_bytes": 3 << 20, "nvme_written_bytes": 2 << 20,
            "stall_s": {"nvme_read": 0.25, "none": 0.05}, "rss_bytes": 300 << 20, "skipped": False, "loss_scale": 1.0, **more}


PLAN = {"predicted_s": 1.0, "bottleneck": "drives", "lanes": {"drives": 0.9, "nvme_read": 0.6, "collective": 0.0, "update": 0.2},
        "saved_by_a_tenth_faster_s": {"drives": 0.08, "update": -0.001},
        "budget_bytes": {"host": 2 << 30, "nvme": "unbounded", "device": 0},
        "budget": [{"tier": "host", "line": "program", "bytes": 512 << 20}, {"tier": "host", "line": "windows", "bytes": 1 << 30},
                   {"tier": "nvme", "line": "slots", "bytes": 3 << 30}],
        "state_bytes": {"weight": {"device": 0, "host": 100 << 20, "nvme": 0}, "momentum": {"device": 0, "host": 0, "nvme": 200 << 20}},
        "drives": [{"path": "/a", "endurance_bytes": 100 << 20}, {"path": "/b", "endurance_bytes": 300 << 20}], "drives_share": 1,
        "advice": {"changes": [{"what": "drives: one more like the last", "step_s": 0.6, "drive_life_days": None},
                               {"what": "compute: twice as fast", "step_s": 1.0, "drive_life_days": None}], "complete": False}}
BUSY = {"nvme_read": 0.75, "update": 0.25}  # of the 1.25 s that a line's step takes


class Runs(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory(prefix="penstock-run-")))

    def run_of(self, lines, config=None, tail="", plan=None):
        if plan is not None:
            self.folder.joinpath("plan.json").write_text(json.dumps(plan))
        self.folder.joinpath("config.json").write_text(json.dumps(config if config is not None else {"max_steps": 40}))
        self.folder.joinpath("log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in lines) + tail)
        return Run(self.folder)

    def refused(self, word, function, *arguments):
        with self.assertRaises(Refusal) as caught:
            function(*arguments)
        self.assertIn(word, caught.exception.message)

    @staticmethod
    def verb(function, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run_verb("report", function, [str(word) for word in arguments])
        return code, out.getvalue(), err.getvalue()


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
        summary = reporting.Summary(run)
        self.assertEqual(([event["batch"] for event in summary.fields()["loss_events"]], summary.steps), ([2, 5, 8], 3))
        page = reporting.page(summary)
        for words in ("stopped at step 4: batch 8: its loss is not finite", "its loss is a spike, 9.5 above 3.25",
                      "back to step 2, batches 4 to 5 left out", "a.txt, tokens 16 to 31"):
            self.assertIn(words, page)
        self.assertIn("stopped at step 4: batch 8: its loss is not finite", "\n".join(watching.panel(summary, 120)))
        out = io.StringIO()
        watching._follow(run, out, lambda _: self.fail("it waits for a run that has ended"))
        self.assertIn("batch 5: its loss is a spike, 9.5 above 3.25: back to step 2, batches 4 to 5 left out", out.getvalue())
        self.assertTrue(out.getvalue().endswith("stopped at step 4: batch 8: its loss is not finite\n"), out.getvalue())
        # Gone on with, it has not stopped any more.
        self.assertIsNone(self.run_of([*lines, end, line(4)]).stopped)
        self.refused("stopped at step 1", reporting.Summary, self.run_of([{**end, "step": 1}]))

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
    def page(self, lines, config=None, plan=None):
        return reporting.page(reporting.Summary(self.run_of(lines, config, plan=plan)))

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
        wear = reporting.Summary(Run(self.folder)).fields()["wear"]
        self.assertAlmostEqual(wear["days_at_this_pace"], 400 / (2 / 1.25) / 86400)
        # Of two ranks' bytes half are on these drives.
        self.run_of(lines, plan={**PLAN, "drives_share": 0.5})
        half = reporting.Summary(Run(self.folder)).fields()["wear"]
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
                    markup = Markup(reporting.page(reporting.Summary(run)))
                    self.assertEqual((markup.wrong, markup.open), ([], []))
                    self.assertNotIn("script", markup.tags)
                    watching.panel(reporting.Summary(run), 80)

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
        page = self.page([line(1), line(2, loss=None), line(5, skipped=True)])
        self.assertIn("the loss of 1 steps is not finite, of step 2 first", page)
        self.assertIn("1 steps changed nothing", page)
        self.assertIn("2 steps are not in the log", page)

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
        self.assertEqual(self.verb(reporting.report, self.folder, "--out", self.folder / "absent" / "x.html")[0], 2)
        self.assertEqual(list(self.folder.glob("*.partial")), [])

    def test_has_its_numbers_as_json_too(self):
        self.run_of([line(1), line(2, eval_loss=3.5), line(3, eval_loss=4.0)])
        code, out, _ = self.verb(reporting.report, self.folder, "--json")
        answer = json.loads(out)
        self.assertEqual((code, answer["schema"]), (0, "penstock.report/1"))
        self.assertEqual((answer["steps"], answer["eval_loss_best"], answer["eval_loss_best_step"]), (3, 3.5, 2))
        self.assertAlmostEqual(answer["stall_s"]["nvme_read"], 0.75)

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


class Terminal(Runs):
    def test_shows_a_panel_that_fits(self):
        self.run_of([line(i) for i in range(1, 21)])
        for width in (40, 80, 200):
            lines = watching.panel(reporting.Summary(Run(self.folder)), width)
            self.assertLessEqual(max(map(len, lines)), width)
        text = "\n".join(lines)
        for word in ("step 20 of 40, 25 s to go", "50 %", "nvme read 20 %", "predicted 1 s"):
            self.assertIn(word, text)

    def test_shows_lanes_tiers_wear_and_what_helps_most(self):
        run = self.run_of([line(i, busy_s=BUSY) for i in range(1, 4)], plan=PLAN)
        text = "\n".join(watching.panel(reporting.Summary(run), 100))
        for word in ("busy      nvme read 60 %, update 20 %", "tiers     host 1.5 GiB of 2 GiB, nvme 3 GiB",
                     "wear      6 MiB written, 1.5 % of the drives' rating; ",
                     "faster    drives: one more like the last: 0.6 s a step instead of 1 s"):
            self.assertIn(word, text)
        # What gains less than a hundredth is not worth a line.
        run = self.run_of([line(1)], plan={**PLAN, "advice": {"changes": PLAN["advice"]["changes"][1:]}})
        self.assertNotIn("faster", "\n".join(watching.panel(reporting.Summary(run), 100)))

    def test_shows_the_last_answers_on_lines_of_their_own(self):
        samples = [{"prompt": "Who?\n", "text": "A\033[2Jfox", "ended": True}]
        run = self.run_of([line(1, samples=[{"prompt": "Who?\n", "text": "x", "ended": True}]), line(2, samples=samples), line(3)])
        shown = watching.panel(reporting.Summary(run), 60)
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


def varint_of(message, at):
    """The number that begins at `at`, and where it ends: seven bits a byte, the last without its highest bit."""
    value, shift = 0, 0
    while True:
        value, shift, at = value | (message[at] & 0x7F) << shift, shift + 7, at + 1
        if message[at - 1] < 0x80:
            return value, at


def fields_of(message):
    """(number, value) of a protocol buffer's message, without its description."""
    at = 0
    while at < len(message):
        key, at = varint_of(message, at)
        kind = key & 7
        if kind == 1:
            value, at = struct.unpack_from("<d", message, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<f", message, at)[0], at + 4
        else:
            value, at = varint_of(message, at)
            if kind == 2:
                value, at = message[at:at + value], at + value
        yield key >> 3, value


def records_of(content):
    """Of a file in LevelDB's log format behind a header of 7 bytes: what is in blocks of 32 KiB, joined."""
    at, whole = 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        whole += content[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield whole
            whole = b""


class OtherPrograms(Runs):
    def test_event_files_have_checksums_that_others_compute(self):
        # CRC-32C's check value is e3069283 for 123456789; masked as TensorFlow masks it.
        crc = 0xE3069283
        self.assertEqual(exports.masked_crc32c(b"123456789"), ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    def test_event_files_say_what_the_log_says(self):
        run = self.run_of([line(1), line(300, eval_loss=3.0, busy_s=BUSY)])
        path = exports.write_tensorboard(self.folder / "events", run)
        content, at, events = Path(path).read_bytes(), 0, []
        while at < len(content):
            length, = struct.unpack_from("<Q", content, at)
            self.assertEqual(struct.unpack_from("<I", content, at + 8)[0], exports.masked_crc32c(content[at:at + 8]))
            event = content[at + 12:at + 12 + length]
            self.assertEqual(struct.unpack_from("<I", content, at + 12 + length)[0], exports.masked_crc32c(event))
            events.append(dict(fields_of(event)))
            at += 16 + length
        self.assertEqual(events[0][3], b"brain.Event:2")
        self.assertEqual([e[2] for e in events[1:]], [1, 300])
        self.assertAlmostEqual(events[2][1] - events[1][1], 1.25, places=3)
        scalars = {bytes(dict(fields_of(v))[1]).decode(): dict(fields_of(v))[2] for n, v in fields_of(events[2][5])}
        self.assertAlmostEqual(scalars["train/loss"], 5 / 300, places=6)
        self.assertAlmostEqual(scalars["eval/loss"], 3.0)
        self.assertAlmostEqual(scalars["stall_s/nvme_read"], 0.25)
        self.assertAlmostEqual(scalars["busy_s/nvme_read"], 0.75)

    def test_event_files_are_read_by_tensorboard(self):
        try:
            from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
        except ImportError as error:
            self.skipTest(str(error))
        exports.write_tensorboard(self.folder / "events", self.run_of([line(i) for i in range(1, 6)]))
        events = EventAccumulator(str(self.folder / "events"))
        events.Reload()
        self.assertEqual([(e.step, round(e.value, 4)) for e in events.Scalars("train/loss")],
                         [(i, round(5 / i, 4)) for i in range(1, 6)])

    def test_wandb_gets_steps_and_samples(self):
        """The real package, offline: what it wrote is read by its own records."""
        try:
            import wandb
            from wandb.proto.wandb_internal_pb2 import Record
        except ImportError as error:
            self.skipTest(f"{error} (tools/setup --checks installs it)")
        self.addCleanup(wandb.teardown)  # its helper ends before this process does
        samples = [{"prompt": "Who?", "text": "A fox.", "ended": True}]
        self.run_of([line(i, **({"samples": samples} if i == 3 else {})) for i in range(1, 6)], {"seed": 7})
        with unittest.mock.patch.dict(os.environ, {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}):
            code, out, err = self.verb(reporting.report, self.folder, "--wandb", "penstock-test")
        self.assertEqual(code, 0, err)
        wandb.teardown()  # all is in the file when its helper has ended
        kept = Path(out.splitlines()[-1])
        self.assertTrue(kept.is_relative_to(self.folder.resolve()))
        [file] = kept.glob("*.wandb")
        histories = {}
        for content in records_of(file.read_bytes()):
            record = Record.FromString(content)
            if record.WhichOneof("record_type") == "run":
                self.assertEqual((record.run.project, record.run.display_name), ("penstock-test", self.folder.name))
            if record.WhichOneof("record_type") == "history":
                items = {"/".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
                histories[int(items["_step"])] = items
        self.assertEqual({step: json.loads(items["train/loss"]) for step, items in histories.items()},
                         {i: 5 / i for i in range(1, 6)})
        self.assertEqual([step for step, items in histories.items() if any(key.startswith("samples") for key in items)], [3])

    def test_wandb_that_is_absent_is_named(self):
        self.run_of([line(1)])
        with unittest.mock.patch.dict(sys.modules, {"wandb": None}):
            code, _, err = self.verb(reporting.report, self.folder, "--wandb", "x")
        self.assertEqual(code, 4)
        self.assertIn("pip install wandb", err)

    def test_prometheus_gets_the_last_step(self):
        text = exports.prometheus_text(reporting.Summary(self.run_of([line(1), line(2, eval_loss=3.0, busy_s=BUSY, grad_norm=float("nan"))])))
        for each in text.splitlines():
            self.assertRegex(each, r'^# (HELP|TYPE) penstock_\w+ .+$|^penstock_\w+\{run="[^"]*"(,lane="\w+")?\} (\S+)$')
        values = dict(re.findall(r"^penstock_(\w+)\{[^}]*?(?:,lane=\"\w+\")?\} (\S+)$", text, re.M))
        self.assertEqual((values["step"], values["loss"], values["eval_loss"], values["gradient_norm"]), ("2", "2.5", "3.0", "NaN"))
        self.assertIn('stall_seconds{run="%s",lane="nvme_read"} 0.25' % self.folder.name, text)
        self.assertIn('busy_seconds{run="%s",lane="nvme_read"} 0.75' % self.folder.name, text)
        self.assertEqual(values["written_bytes"], str(4 << 20))


if __name__ == "__main__":
    unittest.main(verbosity=1)
