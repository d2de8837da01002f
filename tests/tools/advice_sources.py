"""The advice that the sources can give: what each `try:` line may read, as patterns.

Reads the last argument of everything that makes a refusal: Status(...), errno_status(...), and helpers that pass their
last argument on; in Python, the second of Refusal(...). Both branches of `?:` count, functions of the same
file and constants of it and its headers are looked up, and what is known only when it runs stands for any text.
"""
import ast
import itertools
import re
from pathlib import Path

FOLDERS = ("aio", "tiering", "runtime", "tools", "gpu", "cpu_optim")
# Calls whose last argument is advice, if they have so many: name and least number of arguments.
MAKERS = {"Status": 3, "errno_status": 3, "thread_status": 3, "refuse": 2, "refusal": 2}
ANY = None  # any text, within a pattern


class Advice:
    """One way in which one place may advise: literal pieces, and ANY between them."""

    def __init__(self, where, pieces):
        self.where = where
        self.pieces = pieces

    @property
    def text(self):
        return "".join("..." if piece is ANY else piece for piece in self.pieces)

    def pattern(self):
        return re.compile("".join(".*?" if piece is ANY else re.escape(piece) for piece in self.pieces), re.DOTALL)

    def names_something_to_do(self):
        """A flag, a size, a key or a verb, which can be followed word by word."""
        return re.search(r"""--[a-z]|`|"[a-z_.]+"|\b[a-z_]+\.[a-z_]+\b(?<!\.json|.\.bin|.\.txt)|\b\d+ ?([KMGT]i?)?B\b|\bpenstock [a-z]"""
                         r"""|\b[A-Z]+_[A-Z_]+\b|\b(device|host|nvme)=""", self.text) is not None


def literal_end(code, i):
    """Just behind the string or character that begins at `i`; `i` where none does."""
    if code.startswith('R"', i):
        return code.index(")" + code[i + 2:code.index("(", i)] + '"', i) + len(code[i + 2:code.index("(", i)]) + 2
    is_quote = code[i] == '"' or (code[i] == "'" and not (code[i - 1:i].isalnum() and code[i + 1:i + 2].isalnum()))  # 1'000
    if not is_quote:
        return i
    end = i + 1
    while code[end] != code[i]:
        end += 2 if code[end] == "\\" else 1
    return end + 1


def top_level(code, at=0):
    """What stands outside of literals and brackets, as (index, character); at last the bracket that closes around it."""
    depth = 0
    while at < len(code):
        if (end := literal_end(code, at)) > at:
            at = end
            continue
        closes = code[at] in ")]}"
        depth += (code[at] in "([{") - closes
        if depth == 0 and not closes or depth < 0:
            yield at, code[at]
        if depth < 0:
            return
        at += 1


def arguments(code, at):
    """Of a call whose parenthesis opens just before `at`: its arguments, and where it ends."""
    found, start = [], at
    for i, c in top_level(code, at):
        if c in ",)]}":
            found.append(code[start:i].strip())
            start = i + 1
        if c in ")]}":
            return [one for one in found if one], i
    raise ValueError("a call that does not end")


def split_top(expression, separator, first_alone=False):
    """At `separator` outside of literals and brackets; the first part alone where no more is wanted."""
    parts, start = [], 0
    for i, _ in top_level(expression):
        is_part_of_other = expression[i:i + 2] in ("::", "++", "+=") or (separator == ":" and expression[i - 1:i] == ":")
        if expression.startswith(separator, i) and not is_part_of_other:
            parts.append(expression[start:i])
            start = i + len(separator)
            if first_alone:
                break
    return [*parts, expression[start:]]


def without_comments(code):
    """The same lines, so that numbers of lines stay."""
    token = re.compile(r"""R"\((?:.*?)\)"|"(?:[^"\\\n]|\\.)*"|(?<![0-9a-fA-F])'(?:[^'\\]|\\.)'|//[^\n]*|/\*.*?\*/""", re.DOTALL)
    return token.sub(lambda found: re.sub(r"[^\n]", " ", found[0]) if found[0][:2] in ("//", "/*") else found[0], code)


LITERAL = re.compile(r'\s*(?:R"\((.*?)\)"|"((?:[^"\\]|\\.)*)")', re.DOTALL)


class Unit:
    """One C++ file."""

    def __init__(self, root, path):
        self.root, self.path = root, path.relative_to(root)
        self.code = without_comments(path.read_text(encoding="utf-8"))

    def home_of(self, name):
        """Code that may have the name: the file's own, and for a constant that of the headers that it includes."""
        yield self.code
        for header in re.findall(r'^#include "([^"]+)"', self.code, re.MULTILINE) if re.match("k[A-Z]", name) else ():
            yield without_comments((self.root / header).read_text(encoding="utf-8"))

    def alternatives(self, expression, depth=0):
        """What `expression` may read: a list of lists of pieces."""
        expression = expression.strip()
        if depth > 6 or not expression:
            return [[ANY]]
        while expression.startswith("(") and arguments(expression, 1)[1] == len(expression) - 1:
            expression = expression[1:-1].strip()
        choice = split_top(expression, "?")
        if len(choice) > 1:
            rest = "?".join(choice[1:])
            branches, open_choices = split_top(rest, ":"), 0
            for at in range(1, len(branches)):
                open_choices += len(split_top(branches[at - 1], "?")) - 1
                if open_choices == 0:
                    break
                open_choices -= 1
            return [one for branch in (":".join(branches[:at]), ":".join(branches[at:]))
                    for one in self.alternatives(branch, depth + 1)]
        sum_of = split_top(expression, "+")
        if len(sum_of) > 1:
            return self.product(sum_of, depth)
        literal, at = [], 0
        while (found := LITERAL.match(expression, at)):
            literal.append(found[1] if found[1] is not None else found[2].encode().decode("unicode_escape"))
            at = found.end()
        if literal and not expression[at:].strip():
            return [["".join(literal)]]
        call = re.match(r"(?:std::)?(?:\w+::)*(\w+)\s*[({]", expression)
        if call and call[1] in ("text", "string", "move"):
            return self.product(arguments(expression, call.end())[0], depth)
        if call:
            return self.returned_by(call[1], depth)
        if (constant := re.fullmatch(r"(?:\w+::)*(\w+)", expression)):
            return self.named(constant[1], depth)
        return [[ANY]]

    def product(self, parts, depth):
        return [[piece for one in chosen for piece in one]
                for chosen in itertools.product(*(self.alternatives(part, depth + 1) for part in parts))]

    def named(self, name, depth):
        begin = rf"(?:const\*?|constexpr|std::string|char\*)[\w:*& ]*\b{name}\s*(?:\[\])?\s*=\s*"
        known = next(((code, found) for code in self.home_of(name) if (found := re.search(begin, code))), None)
        if not known:
            return [[ANY]]
        code, found = known
        first = self.alternatives(split_top(code[found.end():], ";", True)[0], depth + 1)
        return [[*pieces, ANY] for pieces in first] if re.search(rf"\b{name} \+=", self.code) else first

    def returned_by(self, name, depth):
        found = re.search(rf"^[\w:<>&* ]+\b{name}\((?:[^;{{}}]|\{{\}})*\)(?: const)? \{{$(.*?)^\}}", self.code, re.DOTALL | re.MULTILINE)
        if not found:
            return [[ANY]]
        return [one for line in re.finditer(r"\breturn\b", found[1])
                for one in self.alternatives(split_top(found[1][line.end():], ";", True)[0], depth + 1)]

    def advices(self):
        for made in re.finditer(r"\b(Status|errno_status|thread_status|refuse|refusal)\(", self.code):
            before = self.code[max(0, made.start() - 40):made.start()]
            if re.search(r"(Result<|class |::|~|explicit |Status |auto )$", before):
                continue
            given, _ = arguments(self.code, made.end())
            if len(given) < MAKERS[made[1]]:
                continue
            where = f"{self.path}:{self.code.count(chr(10), 0, made.start()) + 1}"
            for pieces in self.alternatives(given[-1]):
                yield Advice(where, merged(pieces))


def merged(pieces):
    whole = []
    for piece in pieces:
        if piece == "":
            continue
        if whole and piece is not ANY and whole[-1] is not ANY:
            whole[-1] += piece
        elif not (whole and piece is ANY and whole[-1] is ANY):
            whole.append(piece)
    return whole


def of_cpp(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".cpp", ".h", ".cu"):
                yield from Unit(root, path).advices()


def of_python(root):
    for path in sorted((root / "runtime/python/penstock").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") not in ("Refusal", "PenstockError"):
                continue
            second = 1 if node.func.id == "Refusal" else 2
            if len(node.args) > second:
                for pieces in python_alternatives(node.args[second]):
                    yield Advice(f"{path.relative_to(root)}:{node.lineno}", merged(pieces))


def python_alternatives(node):
    if isinstance(node, ast.Constant):
        return [[node.value]]
    if isinstance(node, ast.JoinedStr):
        return [[part.value if isinstance(part, ast.Constant) else ANY for part in node.values]]
    if isinstance(node, ast.IfExp):
        return python_alternatives(node.body) + python_alternatives(node.orelse)
    return [[ANY]]


def of(root):
    """Every advice of the sources that says anything."""
    return [one for one in itertools.chain(of_cpp(Path(root)), of_python(Path(root))) if one.pieces]
