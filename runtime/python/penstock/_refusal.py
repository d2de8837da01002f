"""What is refused: one sentence, what to do, and the code of penstock.h, which is the command's exit code."""

USAGE, DOES_NOT_FIT, ENVIRONMENT, CORRUPT, INTERRUPTED = 2, 3, 4, 5, 130


class PenstockError(RuntimeError):
    """What the engine or the command refused, in a sentence; `code` is one of penstock.h's, `remedy` what can be done
    about it."""

    message: str
    code: int
    remedy: str

    def __init__(self, message: str, code: int = USAGE, remedy: str = "") -> None:
        super().__init__(f"{message} ({remedy})" if remedy else message)
        self.message, self.code, self.remedy = message, code, remedy


class Refusal(PenstockError):
    """The same, in the order in which the command tells it: message, remedy, code."""

    def __init__(self, message: str, remedy: str = "", code: int = USAGE) -> None:
        super().__init__(message, code, remedy)
