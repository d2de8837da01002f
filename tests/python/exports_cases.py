"""A run's log for other programs: TensorBoard, wandb, Prometheus. report_test.py runs these."""
import json
import os
import re
import struct
import sys
import types
import unittest
import unittest.mock
from pathlib import Path

from penstock import Run, exports
from penstock import report as reporting
from penstock.summary import Summary
from report_support import BUSY, PLAN, Runs, line


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
        written_s = os.stat(self.folder / "log.jsonl").st_mtime  # when the last step ended
        self.assertEqual([round(event[1] - written_s, 3) for event in events], [-2.5, -1.25, 0])
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

    def test_wandb_knows_a_run_again_by_where_it_is(self):
        """Another one of the same name is another run."""
        sent = []

        def init(**told):
            sent.append(told)
            return types.SimpleNamespace(log=lambda *_, **__: None, finish=lambda: None, dir="kept/files")

        wandb = types.SimpleNamespace(init=init, Settings=lambda **_: None, Error=ValueError)
        with unittest.mock.patch.dict(sys.modules, {"wandb": wandb}):
            for name in ("a/run", "a/run", "b/run"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
                (self.folder / name / "log.jsonl").write_text(json.dumps(line(1)) + "\n")
                exports.send_to_wandb("project", Run(self.folder / name))
        ids = [told["id"] for told in sent]
        self.assertEqual([told["name"] for told in sent], ["run"] * 3)
        self.assertEqual((ids[0], len(set(ids))), (ids[1], 2))

    def test_wandb_that_is_absent_is_named(self):
        self.run_of([line(1)])
        with unittest.mock.patch.dict(sys.modules, {"wandb": None}):
            code, _, err = self.verb(reporting.report, self.folder, "--wandb", "x")
        self.assertEqual(code, 4)
        self.assertIn("pip install wandb", err)

    def test_prometheus_gets_the_last_step(self):
        text = exports.prometheus_text(Summary(self.run_of([line(1), line(2, eval_loss=3.0, busy_s=BUSY, grad_norm=float("nan"))])))
        for each in text.splitlines():
            self.assertRegex(each, r'^# (HELP|TYPE) penstock_\w+ .+$|^penstock_\w+\{run="[^"]*"(,lane="\w+")?\} (\S+)$')
        values = dict(re.findall(r"^penstock_(\w+)\{[^}]*?(?:,lane=\"\w+\")?\} (\S+)$", text, re.M))
        self.assertEqual((values["step"], values["loss"], values["eval_loss"], values["gradient_norm"]), ("2", "2.5", "3.0", "NaN"))
        self.assertIn('stall_seconds{run="%s",lane="nvme_read"} 0.25' % self.folder.name, text)
        self.assertIn('busy_seconds{run="%s",lane="nvme_read"} 0.75' % self.folder.name, text)
        self.assertEqual(values["written_bytes"], str(4 << 20))

    def test_prometheus_gets_what_the_whole_run_comes_to(self):
        lines = [line(1, skipped=True), line(2, skipped=True, eval_loss=3.5), line(3, loss=float("-inf"), grad_norm=float("inf"), eval_loss=3.0)]
        text = exports.prometheus_text(Summary(self.run_of(lines, plan=PLAN)))
        values = dict(re.findall(r"^penstock_(\w+)\{run=\"[^\"]*\"\} (\S+)$", text, re.M))
        self.assertEqual(values, {
            "step": "3", "max_steps": "40", "loss": "-Inf", "learning_rate": "0.001", "gradient_norm": "+Inf", "step_seconds": "1.25",
            "predicted_step_seconds": "1.0", "tokens_per_second": "2000.0", "nvme_read_bytes": str(3 << 20),
            "nvme_written_bytes": str(2 << 20), "resident_bytes": str(300 << 20), "eval_loss": "3.0", "written_bytes": str(6 << 20),
            "endurance_share": "0.015", "skipped_steps": "2"})

    def test_prometheus_gets_a_name_as_its_format_has_it(self):
        folder = self.folder / 'a"b\\c\nd'
        folder.mkdir()
        (folder / "log.jsonl").write_text(json.dumps(line(1)) + "\n")
        self.assertIn('\npenstock_step{run="a\\"b\\\\c\\nd"} 1\n', exports.prometheus_text(Summary(Run(folder))))

    def test_prometheus_replaces_what_a_report_wrote_and_nothing_else(self):
        self.run_of([line(1)])
        own = self.folder / "poem.txt"
        for text in ("Of Mans First Disobedience\n", "", "# HELP other_step Not of a report\n", "x\n# HELP penstock_step Steps\n"):
            own.write_text(text)
            code, _, err = self.verb(reporting.report, self.folder, "--prometheus", own)
            self.assertEqual((code, own.read_text()), (2, text), err)
            self.assertIn(f"report: {own}: exists already and is no report\ntry: another --prometheus, or --force", err)
            self.assertFalse((self.folder / "report.html").exists())
        self.assertEqual(self.verb(reporting.report, self.folder, "--prometheus", own, "--force")[0], 0)
        self.assertIn("\npenstock_step{", own.read_text())
        self.run_of([line(1), line(2)])
        self.assertEqual(self.verb(reporting.report, self.folder, "--prometheus", own)[0], 0)
        self.assertRegex(own.read_text(), r"\npenstock_step\{[^}]*\} 2\n")
