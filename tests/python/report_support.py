"""A run's folder as training leaves it, made up: for the tests of what is read from it."""
import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

from penstock import Refusal, Run
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
