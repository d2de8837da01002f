"""Following advice word by word: from a command line and its `try:` line to the command lines that it asks for.

Nothing here knows a message. A clause with `--flag VALUE` sets the flag, `leave --flag out` removes it, `fewer --flag`
halves it, `penstock verb ...` is run, `"key": value` goes into the config, and alternatives are tried one by one.
"""
import json
import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "kB": 10**3, "MB": 10**6, "GB": 10**9,
         "TB": 10**12}
FAR = 64  # how much smaller something becomes of which `a smaller one` is all that is said
LESS = ("fewer", "smaller", "shorter", "lower", "less", "larger tiles")
MORE = ("more", "larger", "longer", "raise", "higher")
# What stands for a value in advice, and what a user would put there.
PLACES = {"FILE...": "chats.jsonl", "FILE": "a-file", "PATH": "a-folder", "FOLDER": "a-folder", "NEW": "a-new-folder",
          "STORE": "store", "N": "1", "FOLDER...": "a-folder"}
EXAMPLES = {"--into": "a-folder", "--params": "7e9", "--layers": "32", "--hidden": "512", "--machine": "cpu-2core", "--lora-rank": "8"}
FLAG = r"--[a-z][a-z-]*"


@dataclass
class Attempt:
    """A command line, and what is around it."""

    words: list
    env: dict = field(default_factory=dict)
    limits: dict = field(default_factory=dict)  # such as {"-f": bytes}
    keys: dict = field(default_factory=dict)    # what the config gets
    drops: tuple = ()                           # what the config loses
    renames: tuple = ()                         # files that get another name
    before: list = field(default_factory=list)  # commands that are run first

    def value(self, flag):
        for at, word in enumerate(self.words):
            if word == flag and at + 1 < len(self.words) and not self.words[at + 1].startswith("--"):
                return self.words[at + 1]
        return None

    def with_flag(self, flag, value=None):
        words = self.without(flag).words
        return replace(self, words=[*words, flag] + ([] if value is None else [value]))

    def without(self, flag):
        words, at = [], 0
        while at < len(self.words):
            if self.words[at] == flag:
                at += 2 if at + 1 < len(self.words) and not self.words[at + 1].startswith("--") else 1
            else:
                words.append(self.words[at])
                at += 1
        return replace(self, words=words)


def clauses_of(advice):
    """The alternatives of an advice; what is quoted stays whole."""
    kept = []

    def keep(found):
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    masked = re.sub(r"`[^`]*`|\{.*\}|\"[^\"]*\"(?:: (?:\0\d+\0|[^\s,;]+))?|\([^()]*\)", keep, advice)
    parts = re.split(r"; or |, or |; |(?<=\S) or (?!more\b|later\b|newer\b)", masked)
    whole = []
    for part in parts:
        pieces = re.split(r", (?=(?:a|an|another|fewer|more|smaller|shorter|larger|leave|give|set) |--)", part)
        clause = pieces[0]
        for piece in pieces[1:]:
            if re.match(rf"{FLAG}(?: and| of|$)", piece) and re.search(rf"{FLAG}$", clause):
                clause += ", " + piece
            else:
                whole.append(clause)
                clause = piece
        whole.append(clause)
    unmasked = []
    for clause in whole:
        while "\0" in clause:
            clause = re.sub(r"\0(\d+)\0", lambda found: kept[int(found[1])], clause)
        if unmasked and re.match(r"(?:leave|leave out) ", unmasked[-1]) and re.fullmatch(FLAG, clause):
            clause = "leave out " + clause
        unmasked.append(clause.strip())
    return [clause for clause in unmasked if clause]


def scaled(written, factor):
    """1MiB, 512k, 7e9 or 4 times `factor`, as bytes or a plain count."""
    number, unit = re.fullmatch(r"([0-9.e+]+)([A-Za-z]*)", written).groups()
    times = UNITS.get(unit, {"k": 10**3, "M": 10**6, "B": 10**9}.get(unit, 1))
    return str(max(1, int(float(number) * times * factor)))


def bytes_of(written):
    number, unit = re.fullmatch(r"([0-9.]+) ?([KMGTk]?i?B)", written).groups()
    return float(number) * UNITS[unit]


def budget_of(attempt, tier):
    for part in (attempt.value("--budget") or "").split(","):
        if part.startswith(tier + "="):
            return part[len(tier) + 1:]
    return None


def with_budget(attempt, tier, size):
    parts = [part for part in (attempt.value("--budget") or "").split(",") if part and not part.startswith(tier + "=")]
    if size is not None:
        parts.append(f"{tier}={size}")
    return attempt.with_flag("--budget", ",".join(parts)) if parts else attempt.without("--budget")


def place_of_store(attempt):
    stores = attempt.value("--store")
    if stores:
        return stores.split(",")
    at = 3 if attempt.words[1:2] == ["checkpoint"] else 2
    return [word for word in attempt.words[at:at + 1] if not word.startswith("--")] or ["store"]


def command_in(attempt, written):
    """`penstock verb ...` as a command line of its own, with what it leaves open filled in."""
    words = [PLACES.get(word, word) for word in shlex.split(written)]
    for at, word in enumerate(words):
        for place, value in PLACES.items():
            if place in ("FOLDER", "PATH") and word == place:
                words[at] = value
    if words[1:2] == ["checkpoint"] and len(words) == 3:
        words += place_of_store(attempt)
        if words[2] == "export":
            words.append("exported")
    if words[:3] == ["penstock", "nvme", "probe"] and len(words) == 3:
        words += ["."]
    if words[:3] in (["penstock", "nvme", "probe"], ["penstock", "nvme", "bench"]):
        words += ["--size", "16MiB", "--duration", "20ms"]
    if words[1:2] == ["data"] and "--out" not in words:
        words += ["--out", "a-new-folder"]
    return Attempt(words, dict(attempt.env), dict(attempt.limits))


def follow_clause(attempt, message, clause, maker):
    """The attempts that one clause asks for; none where it names nothing to follow."""
    commands = re.findall(r"`(penstock [^`]*|cmake [^`]*)`", clause) or re.findall(r"(?:^|: )(penstock [^&(;,]*)", clause)
    commands = [command for command in commands if command.startswith("penstock ")]
    if re.search(r"folder that `penstock train --run` was given", clause):
        return [replace(attempt, words=[*attempt.words[:2], "run", *attempt.words[3:]])]
    if re.match(r"`penstock train --force` replaces", clause):
        return [replace(maker, words=["penstock", "train", "--force", *attempt.words[2:]])] if attempt.words[1] == "train" else []
    if commands and not re.search(r"that `penstock|of `penstock", clause):
        return [command_in(attempt, re.sub(r" (lists|makes|lists the verbs|lists all)$", "", command)) for command in commands]
    if "raise sysctl" in clause or "seccomp" in clause:
        return [replace(attempt, limits={})]
    limits = re.findall(r"`?ulimit (-[a-z])`?", clause)
    if limits and any(limit in attempt.limits for limit in limits):
        left = {limit: value for limit, value in attempt.limits.items() if limit not in limits}
        return [replace(attempt, limits=left)]
    budget = re.search(r"\b(lower|raise) --budget (device|host|nvme)=(?: by at least ([0-9.]+ [KMGT]?i?B))?", clause)
    if budget:
        size = bytes_of(re.sub(r"(?<=\d)(?=[A-Za-z])", " ", budget_of(attempt, budget[2]) or "1 GiB"))
        by = bytes_of(budget[3]) * 1.001 if budget[3] else size / 2
        return [with_budget(attempt, budget[2], f"{max(0, int(size + (by if budget[1] == 'raise' else -by)))}B")]
    tier = re.match(r"leave (device|host|nvme)= out", clause)
    if tier:
        return [with_budget(attempt, tier[1], None)]
    if re.match(r"(?:start |start again )?without |leave |leave out ", clause) and re.search(FLAG, clause):
        for flag in re.findall(FLAG, clause):
            attempt = attempt.without(flag)
        return [attempt]
    alone = re.match(rf"(?:either )?({FLAG}) alone", clause)
    if alone:
        kept = (alone[1], "--machine", "--budget")
        for word in [word for word in attempt.words if word.startswith("--") and word not in kept]:
            attempt = attempt.without(word)
        return [attempt]
    other = re.match(rf"(?:give )?another ({FLAG})", clause)
    if other:
        value = attempt.value(other[1]) or "a"
        return [attempt.with_flag(other[1], scaled(value, 2) if re.fullmatch(r"\d+", value) else value + "-other")]
    size = re.search(rf"\b({'|'.join(LESS + MORE)}) (?=--)", clause)
    if size:
        for flag in re.findall(FLAG, clause[size.start():]):
            if attempt.value(flag):
                attempt = attempt.with_flag(flag, scaled(attempt.value(flag), 1 / FAR if size[1] in LESS else FAR))
        return [attempt]
    if re.search(r"--force\b", clause):
        if not takes(attempt, "--force"):
            attempt = replace(maker, env=dict(attempt.env), limits=dict(attempt.limits))
        return [attempt.with_flag("--force")]
    listed = re.search(rf"({FLAG}) one of ([^\s,]+)", clause)
    if listed:
        return [attempt.with_flag(listed[1], listed[2])]
    multiple = re.match(rf"({FLAG}) a multiple of ({FLAG})", clause)
    if multiple:
        for first, second in re.findall(rf"({FLAG})(?: a multiple)? of ({FLAG})", clause):
            at_least = int(attempt.value(second) or 1)
            attempt = attempt.with_flag(first, str(at_least * max(1, int(attempt.value(first) or 1) // at_least)))
        return [attempt]
    instead = re.search(rf"instead of ({FLAG})", clause)
    if instead:
        clause, attempt = clause[:instead.start()], attempt.without(instead[1])
    setting = re.findall(rf"({FLAG})(?: ([^\s,;:]+))?", clause)
    setting = [(flag, PLACES.get(value, value)) for flag, value in setting]
    if setting:
        for flag, value in setting:
            if value == "a":
                value = EXAMPLES.get(flag)
            if value in ("", "and", "for", "or", "with", "gives", "names", "into", "lists"):
                value = attempt.value(flag) or (None if not needs_value(attempt, flag) else EXAMPLES.get(flag, "12"))
            if value is not None and "/mnt/nvme0" in value:
                value = value.replace("/mnt/nvme0", ".")
            attempt = attempt.with_flag(flag, value)
        if "the other sizes" in clause:
            attempt = attempt.without("--model")
        return [attempt]
    pairs = re.findall(r'"([a-z_.]+)": (\{.*\}|\[.*\]|[^\s,;{}]+)', clause)
    if pairs:
        keys = {}
        for key, value in pairs[:1]:
            keys[key] = json.loads(re.sub('"FOLDER"', '"a-folder"', value))
        return [replace(attempt, keys={**attempt.keys, **keys})]
    key = re.search(r"\b([a-z_]+\.[a-z_]+)\b", clause)
    if key and re.search(rf"\b({'|'.join(LESS + MORE)})\b", clause):
        return [replace(attempt, keys={**attempt.keys, key[1]: 4 if re.search("|".join(LESS), clause) else 1000})]
    if re.match(r"(?:wte|embed_tokens|lm_head)$", clause):
        return []
    variable = re.findall(r"\b([A-Z]+(?:_[A-Z]+)+|RANK)\b(?:=(\w+))?", clause)
    if variable:
        usual = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "23456", "PENSTOCK_PYTHON": "python3"}
        return [replace(attempt, env={**attempt.env, **{name: value or usual[name] for name, value in variable}})]
    named = re.match(r"name it (\.\w+)", clause)
    if named:
        data = attempt.value("--data") or attempt.words[2]
        moved = str(Path(data).with_suffix(named[1]))
        return [replace(attempt, words=[moved if word == data else word for word in attempt.words], renames=((data, moved),))]
    if re.match(r"(?:choose |give )?another (?:folder|path|name|place)|name another folder", clause):
        paths = [word for word in attempt.words[2:] if word.strip("./").split(",")[0] and word.strip("./").split(",")[0] in message
                 and not word.startswith("-")]
        if paths:
            return [replace(attempt, words=[word + "-other" if word == paths[-1] else word for word in attempt.words])]
    return values_for(attempt, message, clause)


def values_for(attempt, message, clause):
    """`write 0.5 for half`, `one of a, b` or plain values, for the flag that the message is about."""
    flag = re.search(rf"({FLAG}): ", message)
    if not flag or attempt.value(flag[1]) is None and flag[1] not in attempt.words:
        return []
    such = re.search(r"such as ([^\s,]+)", clause)
    written = re.match(r"write ([0-9.e-]+)", clause)
    listed = re.match(r"(?:one of )?([\w:.-]+(?:, [\w:.-]+)*)$", clause)
    values = [such[1]] if such else [written[1]] if written else listed[1].split(", ") if listed else []
    return [attempt.with_flag(flag[1], value.replace("every:N", "every:2")) for value in values]


_helps = {}


def takes(attempt, flag):
    return flag in _helps.get(verb_of(attempt.words), "")


def needs_value(attempt, flag):
    return re.search(rf"^  {flag} \S", _helps.get(verb_of(attempt.words), ""), re.MULTILINE) is not None


def verb_of(words):
    return " ".join(words[1:3]) if words[1:2] in (["nvme"], ["checkpoint"], ["config"]) or words[1:3] == ["data", "show"] \
        else " ".join(words[1:2])


def learn(verb, page):
    """The flags that `verb` takes, as its --help says."""
    _helps[verb] = page


def follow(attempt, message, advice, maker):
    """Every attempt that the advice asks for, alternative by alternative."""
    if re.fullmatch(r"one of \S+(, \S+)*", advice) or re.match(r"write a number and one of|step, every:N", advice):
        found = []
        for clause in [advice] if not advice.startswith("step,") else ["step", "every:N", "exit", "auto"]:
            found += values_for(attempt, message, clause)
        return found
    corrected = re.match(rf"((?:{FLAG}|[a-z-]+)(?: \S+)?) \((penstock .*--help) lists all\)$", advice)
    if corrected:
        wrong = re.search(r"(?:unknown flag|unknown verb|unexpected argument): (\S+): ", message)[1]
        words = [word for written in attempt.words for word in (corrected[1].split() if written == wrong else [written])]
        return [replace(attempt, words=words),
                Attempt(corrected[2].split())]
    return [one for clause in clauses_of(advice) for one in follow_clause(attempt, message, clause, maker)]
