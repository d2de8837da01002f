"""unity_groups.py FILE.cpp...: which files can be compiled as one, printed as 'GROUP FILE', a line for each.

The headers of a group are read once, which is most of the time that a file takes. Files of a group lie in one folder, and
no name that one of them declares for itself (in its unnamed namespace, by `using`, by #define) means something in another
or in a header that only the other includes.
"""

import collections
import functools
import os
import re
import sys

FILES_OF_A_GROUP = 10
LINES_OF_A_GROUP = 2500

NOT_CODE = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL)
# A namespace's content is not indented, so that what begins a line belongs to none but the file. Of a definition, the
# name is the last word before its arguments, value or body.
DECLARATION = re.compile(
    r"^(?:#\s*define\s+(?P<macro>\w+)"
    r"|(?:template\s*<.*>\s*)?(?:struct|class|union|enum(?:\s+class)?)\s+(?P<type>\w+)"
    r"|using\s+(?:[\w:]+::)?(?P<alias>\w+)\s*[=;]"
    r"|namespace\s+(?P<namespace>\w+)\s*="
    r"|(?!using|namespace|typedef|TEST|INSTANTIATE|static_assert)[A-Za-z_][\w:<>,&*\s\[\]]*?[\s&*>](?P<word>\w+)\s*(?:[\[({=;]|$))",
    re.MULTILINE)


@functools.cache
def code(file):
    with open(file, encoding="utf-8") as source:
        return source.read()


@functools.cache
def words(file):
    return frozenset(re.findall(r"[A-Za-z_]\w*", NOT_CODE.sub('""', code(file))))


@functools.cache
def declared(file):
    return frozenset(found[found.lastgroup] for found in DECLARATION.finditer(NOT_CODE.sub('""', code(file))))


@functools.cache
def headers(file):
    """The project's own that it includes, and what those include."""
    found = set()
    for name in re.findall(r'^#include "([^"]+)"', code(file), re.MULTILINE):
        if os.path.exists(name) and name not in found:
            found |= {name} | headers(name)
    return frozenset(found)


def disturbs(one, other):
    names = declared(one)
    return bool(names & words(other)) or any(names & words(header) for header in headers(other) - headers(one))


def groups(files):
    made = []
    for file in files:
        lines = code(file).count("\n")
        for group in made:
            if (len(group) < FILES_OF_A_GROUP and sum(code(other).count("\n") for other in group) + lines <= LINES_OF_A_GROUP
                    and not any(disturbs(file, other) or disturbs(other, file) for other in group)):
                group.append(file)
                break
        else:
            made.append([file])
    return made


def main(files):
    by_folder = collections.defaultdict(list)
    for file in sorted(files):
        by_folder[os.path.dirname(file)].append(file)
    for folder, of_folder in by_folder.items():
        for number, group in enumerate(groups(of_folder)):
            for file in group:
                print(f"{folder.replace('/', '_')}_{number}", file)


if __name__ == "__main__":
    main(sys.argv[1:])
