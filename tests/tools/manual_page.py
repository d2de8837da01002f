"""The examples of a manual page, which tests do as they say."""
import re


def blocks(page):
    """(name of the file or None, text) of each example of the page's source."""
    for before, block in re.findall(r"([^\n]*)\n\.EX\n(.*?)\n\.EE", page, re.S):
        named = re.search(r'\.\\" file: (\S+)$', before)
        yield named and named[1], block.replace("\\-", "-").replace("\\&", "").replace("\\e", "\\")
