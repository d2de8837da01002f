#!/usr/bin/env python3
"""Every `try:` line that names a flag, a size, a key or a verb is followed: it succeeds, or another error comes.

Usage: advice_test.py PENSTOCK Command|Python [WORD...]; words choose cases, and show all that is said. Runs each case of advice_cases.py, does what its `try:` line says by the rules of
advice_rules.py, and follows what comes then, three times at most; the same message never comes twice. All advice that the
sources can give (advice_sources.py) is met by a case, or stands in advice_cases.ELSEWHERE with the test that meets it.
"""
import concurrent.futures
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import advice_cases
import advice_rules
import advice_sources

ROOT = Path(__file__).resolve().parent.parent.parent
PENSTOCK = Path(sys.argv[1]).resolve()
LIMITS = {"-f": resource.RLIMIT_FSIZE, "-v": resource.RLIMIT_AS, "-u": resource.RLIMIT_NPROC}


class Outcome:
    def __init__(self, ran):
        self.code = ran.returncode
        self.output = ran.stdout + ran.stderr
        lines = ran.stderr.splitlines()
        tried = [at for at, line in enumerate(lines) if line.startswith("try: ")]
        said = [line for line in lines if line.startswith("penstock: ")]
        self.message = said[-1] if said else ran.stderr[-400:] if ran.returncode else ""
        self.advice = "\n".join(lines[tried[-1]:])[len("try: "):] if tried else ""

    @property
    def what(self):
        """The message without its numbers: `raise it` that is said again with another number helps nobody."""
        return re.sub(r"\d+(\.\d+)?( [KMGT]?i?B)?", "N", self.message)


def run(attempt, folder):
    set_by_case = {name: value.replace("BIN", str(folder / "bin")) for name, value in attempt.env.items()}
    env = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CONFIG_HOME": str(folder / "xdg"), "PATH": f"{PENSTOCK.parent}:{os.environ['PATH']}",
           "HF_HUB_OFFLINE": "1", **set_by_case}
    for old, new in attempt.renames:
        if (folder / old).exists():
            shutil.move(folder / old, folder / new)
    config = folder / "config.json"
    if attempt.keys and not config.exists():
        config.write_text("{}")
    if attempt.keys or attempt.drops:
        content = json.loads(config.read_text())
        for key, value in attempt.keys.items():
            at = content
            *outer, last = key.split(".")
            for name in outer:
                at = at.setdefault(name, {})
            at[last] = {**at[last], **value} if isinstance(value, dict) and isinstance(at.get(last), dict) else value
        config.write_text(json.dumps(content))

    def limit():
        for name, value in attempt.limits.items():
            if name == "uring":
                advice_cases.refuse_io_uring()
            else:
                resource.setrlimit(LIMITS[name], (value, value))

    words = [str(PENSTOCK) if attempt.words[0] == "penstock" else attempt.words[0], *attempt.words[1:]]
    return Outcome(subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, errors="replace", timeout=120, check=False,
                                  preexec_fn=limit if attempt.limits else None, stdin=subprocess.DEVNULL))


class Trial:
    """A case: its folder, what it met, and what went wrong."""

    def __init__(self, case, scratch):
        self.case, self.scratch = case, scratch
        self.met, self.wrong, self.followed, self.skipped, self.log = [], [], 0, "", []

    def go(self):
        begun = time.monotonic()
        try:
            self.in_new_folder(self.case.attempt(), 0, [])
        except advice_cases.Skip as why:
            self.skipped = str(why)
        except Exception as error:  # of the case itself
            self.wrong.append(f"{type(error).__name__}: {error}")
        self.seconds = time.monotonic() - begun
        return self

    def in_new_folder(self, attempt, depth, done):
        with tempfile.TemporaryDirectory(dir=self.scratch) as name, self.case.laid_out(Path(name)):
            for one in done:
                run(one, Path(name))
            return self.walk(attempt, depth, done, Path(name))

    def walk(self, attempt, depth, done, folder):
        """Runs `attempt` in the folder, where all of `done` have run; then what it is told to try: the first of it there, and
        whatever else in folders where only the same has run."""
        outcome = run(attempt, folder)
        self.log.append((depth, " ".join(attempt.words), outcome))
        if depth == 0 and not (outcome.code and outcome.advice):
            self.wrong.append(f"was to be refused with advice: {outcome.code}: {outcome.message}")
        if not outcome.advice or depth >= self.case.rounds:
            return outcome
        self.met.append((outcome.message, outcome.advice))
        asked = advice_rules.follow(attempt, outcome.message, outcome.advice, advice_cases.MAKER)
        if not asked and depth == 0:
            self.wrong.append(f"nothing to follow in: {outcome.advice}")
        for number, next_one in enumerate(asked if depth == 0 else asked[:1]):
            self.followed += 1
            after = [*done, attempt]
            then = self.in_new_folder(next_one, depth + 1, after) if number else self.walk(next_one, depth + 1, after, folder)
            again = f"{outcome.message}\n      try: {outcome.advice}\n      `{' '.join(next_one.words)}`"
            if then.code != 0 and then.what == outcome.what:
                self.wrong.append(f"{again} says the same: {then.message}")
            if then.code < 0 or (then.code and not then.message.startswith("penstock: ")):
                self.wrong.append(f"{again}: code {then.code}: {then.output[-400:]}")
        return outcome


def learn_flags():
    verbs = ["nvme probe", "nvme bench", "nvme tune", "nvme compare", "checkpoint ls", "checkpoint scrub", "checkpoint export",
             "checkpoint import", "checkpoint reshard", "checkpoint snapshot", "checkpoint rollback", "checkpoint rm", "plan", "data",
             "train", "generate", "report", "watch", "update", "verify", "manual", "completion", "doctor", "config check"]
    for verb in verbs:
        advice_rules.learn(verb, subprocess.run([PENSTOCK, *verb.split(), "--help"], capture_output=True, text=True, check=True).stdout)


def unmet(trials, subject):
    """What the sources can advise and nothing here has followed; and how much there is."""
    met = {advice for trial in trials for _, advice in trial.met}
    skipped = {advice for trial in trials if trial.skipped for advice in trial.case.meets}
    every = [one for one in advice_sources.of(ROOT) if str(one.where).startswith("runtime/python/") == (subject == "Python")]
    named = [one for one in every if one.names_something_to_do()]
    missing, elsewhere = {}, set()
    for one in named:
        pattern = one.pattern()
        if any(pattern.fullmatch(advice) for advice in met):
            continue
        if one.text in advice_cases.ELSEWHERE[subject]:
            elsewhere.add(one.text)
        elif one.text not in skipped:
            missing.setdefault(one.text, []).append(one.where)
    return every, named, missing, elsewhere


def wrong_exceptions(elsewhere, subject):
    """An exception is for something that is there and that nothing here meets, and the test that it names exists."""
    wrong = []
    tests = {path: path.read_text(encoding="utf-8", errors="replace") for path in (ROOT / "tests").rglob("*") if path.suffix in (".cpp", ".py", ".sh", ".cmake")}
    cmake = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tools/cmake").glob("*.cmake"))
    for text, (reason, test) in advice_cases.ELSEWHERE[subject].items():
        if text not in elsewhere:
            wrong.append(f"ELSEWHERE has what the sources do not advise, or a case meets: {text}")
        if test and not any(test in content for content in (*tests.values(), cmake)):
            wrong.append(f"ELSEWHERE: {text}: no test has '{test}'")
    return wrong


def main():
    begun = time.monotonic()
    subject, words = sys.argv[2], sys.argv[3:]
    learn_flags()
    with tempfile.TemporaryDirectory(dir=PENSTOCK.parent, prefix="advice-") as scratch:
        advice_cases.make_kit(PENSTOCK, Path(scratch) / "kit", subject)
        made = time.monotonic() - begun
        chosen = [case for case in advice_cases.CASES[subject] if all(word in case.line for word in words)]
        with concurrent.futures.ThreadPoolExecutor(max(3, os.cpu_count() or 2)) as workers:
            trials = list(workers.map(lambda case: Trial(case, scratch).go(), chosen))
    wrong = 0
    for trial in trials:
        if trial.skipped:
            print(f"skipped: {trial.case.line}: {trial.skipped}")
        if trial.wrong or words:
            print(f"\n{trial.case.line}  ({trial.seconds:.1f} s)")
            for depth, line, outcome in trial.log:
                print(f"{'   ' * depth}$ {line}\n{'   ' * depth}{outcome.code}: {outcome.message} | try: {outcome.advice}")
        for one in trial.wrong:
            wrong += 1
            print(f"   WRONG: {one}")
    every, named, missing, elsewhere = unmet(trials, subject)
    texts = {one.text for one in named}
    print(f"\n{len({one.where for one in every})} places give advice, in {len(every)} ways; {len(named)} of these, with {len(texts)} "
          f"wordings, name a flag, a size, a key or a verb; {len(texts) - len(missing) - len(elsewhere)} wordings were met and followed here by {len(trials)} cases "
          f"({sum(trial.followed for trial in trials)} times), {len(elsewhere)} are met elsewhere, {len(missing)} by nothing; "
          f"{time.monotonic() - begun:.0f} s, {made:.0f} of them to prepare")
    slow = sorted(trials, key=lambda trial: -trial.seconds)[:5]
    print("slowest: " + "; ".join(f"{trial.seconds:.1f} s {trial.case.line}" for trial in slow))
    if words:
        return wrong > 0
    for text, where in sorted(missing.items()):
        print(f"NO CASE: {text}   ({', '.join(where)})")
    for one in wrong_exceptions(elsewhere, subject):
        wrong += 1
        print(f"WRONG: {one}")
    return wrong > 0 or bool(missing)


if __name__ == "__main__":
    sys.exit(main())
