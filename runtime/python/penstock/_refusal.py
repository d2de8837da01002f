"""What the Python verbs of the command refuse, in the manner of the others: one sentence, what to do, an exit code."""

USAGE, DOES_NOT_FIT, ENVIRONMENT, CORRUPT, INTERRUPTED = 2, 3, 4, 5, 130


class Refusal(Exception):
    """`message` says what, where and how much; `remedy` what to do; `code` is the command's exit code."""

    def __init__(self, message, remedy="", code=USAGE):
        super().__init__(message)
        self.message, self.remedy, self.code = message, remedy, code
