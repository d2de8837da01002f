"""What gpu-check found so far, and the commands that find it: on disk after each of them."""
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DONE, USAGE, ENVIRONMENT, FAILED, STOPPED = 0, 2, 4, 6, 130
OUT_OF_TIME = "not done after"


class Refusal(Exception):
    """Ends the script: a sentence, what to try, and the exit code."""

    def __init__(self, code, sentence, remedy):
        super().__init__(sentence)
        self.code, self.remedy = code, remedy


class Stopped(Exception):
    """SIGTERM or SIGINT came."""


def kill_group(process):
    """The build tool's compilers and a test's workers too."""
    for sent in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sent)
            process.wait(timeout=3)
        except (ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            pass


class Report:
    """All that was found so far, on disk after every step."""

    def __init__(self, out, minutes, machine):
        self.out = out
        self.started = time.monotonic()
        self.deadline = self.started + 60 * minutes
        self.result = {"schema": "penstock.gpu-check/1", "verdict": "", "seconds": 0, "machine": machine, "steps": [],
                       "tests": {}, "figures": [], "training": {}}
        try:
            out.mkdir(parents=True, exist_ok=True)
            self.log_path = out / "gpu-check.log"
            self.log_path.write_bytes(b"")
            self.log = open(self.log_path, "ab", buffering=0)
        except OSError as error:
            raise Refusal(ENVIRONMENT, f"write the results: {out}: {error.strerror}", "another folder, by --out") from error
        self.write("under way")

    def left_s(self):
        return max(0, int(self.deadline - time.monotonic()))

    def of(self, kind):
        return [step for step in self.result["steps"] if step["result"] == kind]

    def write(self, end):
        missed = [f for f in self.result["figures"] if f["goal"] and f["ratio"] < f["goal"]]
        self.result["seconds"] = round(time.monotonic() - self.started, 1)
        self.result["verdict"] = (f"{end}: {len(self.of('ok'))} steps ok, {len(self.of('failed'))} failed, "
                                  f"{len(self.of('skipped'))} skipped; {len(missed)} of {len(self.result['figures'])} "
                                  "figures below their goal")
        for name, content in (("json", json.dumps(self.result, indent=1) + "\n"), ("txt", self.text())):
            whole = self.out / f"gpu-check.{name}"
            part = self.out / f"gpu-check.{name}.part"
            try:
                part.write_text(content, encoding="utf-8")
                part.replace(whole)
            except OSError as error:
                raise Refusal(ENVIRONMENT, f"write the results: {whole}: {error.strerror}",
                              "a folder with space, by --out") from error

    def text(self):
        lines = [f"{key}: {value}" for key, value in self.result["machine"].items()] + [""]
        lines += [step_line(step) for step in self.result["steps"]] + [""]
        for name, counts in self.result["tests"].items():
            lines.append(f"{name}: {counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
            lines += [f"    failed: {test}" for test in counts["failed_names"]]
            lines += [f"    skipped: {reason}" for reason in counts["skip_reasons"]]
        lines.append("")
        for f in self.result["figures"]:
            met = "" if not f["goal"] else "  met" if f["ratio"] >= f["goal"] else "  MISSED"
            lines.append(f"{f['case']:<24} {f['value']:>9.2f} {f['unit']}, {f['against']} {f['against_value']:.2f}: "
                         f"{f['ratio']:.3f} [{f['ratio_min']:.3f}-{f['ratio_max']:.3f}], goal {f['goal']}{met}")
        lines += ["", f"in all {self.result['seconds']:.0f} s; {self.result['verdict']}"]
        return "\n".join(lines) + "\n"

    def note(self, name, result, seconds=0.0, reason=""):
        self.result["steps"].append({"step": name, "result": result, "seconds": round(seconds, 1), "reason": reason})
        print(step_line(self.result["steps"][-1]), flush=True)
        self.write("under way")

    def skip(self, name, reason):
        self.note(name, "skipped", reason=reason)

    def run(self, name, command, limit_s, env, judge=None):
        """Runs the command. `judge` may turn what it printed into another outcome. Returns (the outcome, the output)."""
        limit_s = min(limit_s, self.left_s())
        if limit_s < 5:
            self.skip(name, "no time left; run it again with a larger --minutes: what was built is kept")
            return "skipped", ""
        self.log.write(f"\n=== {name}: {' '.join(map(str, command))}\n".encode())
        begin = self.log_path.stat().st_size
        self.write(f"under way: {name}")
        started = time.monotonic()
        process, stopped = None, None
        try:
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=self.log,
                                       stderr=subprocess.STDOUT, preexec_fn=os.setpgrp)
            code = process.wait(timeout=limit_s)
            failure = "" if code == 0 else f"signal {-code}" if code < 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            failure = f"{OUT_OF_TIME} {limit_s} s (a larger --minutes gives more)"
        except OSError as error:
            failure = str(error)
        except Stopped as signal_name:
            stopped = signal_name
            failure = f"stopped by {signal_name}"
        if process is not None and process.returncode is None:
            kill_group(process)
        with open(self.log_path, "rb") as log:
            log.seek(begin)
            output = log.read().decode(errors="replace")
        result, reason = ("failed", f"{failure}, see {self.log_path}") if failure else ("ok", "")
        if judge:
            result, reason = judge(result, reason, output)
        self.note(name, result, time.monotonic() - started, reason)
        if stopped:
            raise stopped
        if result == "failed":
            print("    " + "\n    ".join(telling_lines(output)), flush=True)
        return result, output


def step_line(step):
    return f"{step['step']:<44} {step['result']:<8} {step['seconds']:6.1f} s  {step['reason']}".rstrip()


def telling_lines(output):
    """The first errors, with what stands right below them, and the end."""
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [i for i, line in enumerate(lines) if re.search(r"\berror\b|FAILED", line, re.IGNORECASE)][:4]
    told = sorted({i for error in errors for i in range(error, error + 3)} | set(range(len(lines) - 8, len(lines))))
    return [lines[i] for i in told if 0 <= i < len(lines)]
