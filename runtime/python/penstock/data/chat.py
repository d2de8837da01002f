"""Which tokens of a chat are learnt: those that the model is to write itself, which are the assistant's turns.

Where the template marks them ({% generation %}), the marks count. Where it does not, the chat is rendered as the model
will see it: everything before an answer, with the prompt that asks for one. If that is a prefix of the whole chat, what
follows is the answer. It ends where the chat up to and with the answer ends, if that is a prefix too; or else with the
special token that follows its content. What cannot be known in this way is refused: a guess would teach something else.

The end-of-turn token is learnt, what a template writes after it (a line's end) is not: generation has stopped by then.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from .sources import BadLine

Message = dict[str, Any]
Tools = list[Any] | None
_MARK = re.compile(r"\{%-?\s*generation\s*-?%\}")


def special_tokens(tokenizer: Any) -> list[str]:
    found = {t.content for t in tokenizer.added_tokens_decoder.values() if t.special}
    if tokenizer.eos_token:
        found.add(tokenizer.eos_token)
    return sorted(found, key=len, reverse=True)


class Chats:
    """Chats of one template. `turns`: "all" of the assistant's are learnt, or the "last"."""

    def __init__(self, tokenizer: Any, turns: str) -> None:
        self.tokenizer, self.turns = tokenizer, turns
        self.special = special_tokens(tokenizer)
        self.marked = bool(_MARK.search(tokenizer.chat_template or ""))
        self.turns_without_end = 0

    def render(self, messages: list[Message], tools: Tools, prompt: bool = False) -> str:
        return self._apply(messages, tools, tokenize=False, add_generation_prompt=prompt)

    def _apply(self, messages: list[Message], tools: Tools, **more: object) -> Any:
        try:
            return self.tokenizer.apply_chat_template(messages, tools=tools, **more)
        except Exception as error:  # a template raises what it likes
            raise BadLine(f"the chat template refuses it: {error or type(error).__name__}") from error

    def marked_tokens(self, messages: list[Message], tools: Tools) -> tuple[list[int], list[int]]:
        """Tokens and marks, by the template's own marks. REQUIRES: self.marked."""
        found = self._apply(messages, tools, return_dict=True, return_assistant_tokens_mask=True)
        tokens, marks = list(found["input_ids"]), list(found["assistant_masks"])
        kept = self._weighed(marks, messages)
        if self.turns == "last":
            end = len(marks) - next((i for i, mark in enumerate(reversed(marks)) if mark), len(marks))
            first = end - next((i for i, mark in enumerate(reversed(marks[:end])) if not mark), end)
            kept = [mark if first <= i < end else 0 for i, mark in enumerate(kept)]
        return tokens, kept

    @staticmethod
    def _weighed(marks: list[int], messages: list[Message]) -> list[int]:
        """Without those of answers of weight 0, as text_and_spans() leaves them out."""
        weights = [message.get("weight", 1) for message in messages if message["role"] == "assistant"]
        if all(weights):
            return marks
        firsts = [mark > before for before, mark in zip([0, *marks], marks)]
        if sum(firsts) != len(weights):
            raise BadLine(f"the chat template marks {sum(firsts)} answers of {len(weights)}, so which of them has the weight 0 "
                          f"cannot be known")
        numbers = itertools.accumulate(firsts)
        return [int(mark and weights[number - 1] != 0) for mark, number in zip(marks, numbers)]

    def text_and_spans(self, messages: list[Message], tools: Tools) -> tuple[str, list[tuple[int, int]]]:
        """The chat as text, and where in it what is learnt begins and ends."""
        whole = self.render(messages, tools)
        answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        if self.turns == "last":
            answers = answers[-1:]
        spans = []
        for i in answers:
            if messages[i].get("weight", 1):  # of OpenAI's files: 0 is not learnt
                spans.append(self._span(whole, messages, tools, i))
        return whole, spans

    def _span(self, whole: str, messages: list[Message], tools: Tools, i: int) -> tuple[int, int]:
        before = self.render(messages[:i], tools, prompt=True)
        if not whole.startswith(before):
            raise BadLine(f"message {i + 1}: the chat template renders what comes before this answer otherwise once the "
                          f"answer follows, so where the answer begins cannot be known{self._advice(messages, i)}")
        first = len(before)
        through = self.render(messages[:i + 1], tools)
        stand_in = self._with_stand_in(messages, tools, i)
        if stand_in and before == self.render(messages[:i], tools) and stand_in[0][first:].strip():
            raise BadLine(f"message {i + 1}: the chat template has no generation prompt, and writes "
                          f"{stand_in[0][first:]!r} before an answer, so where the answer begins cannot be known; a "
                          f"template that honours add_generation_prompt is needed")
        if whole.startswith(through):
            end = self._without_tail(whole, first, len(through))
        elif stand_in and whole.endswith(stand_in[1]) and (token := self._special_at(stand_in[1])):
            end = len(whole) - len(stand_in[1]) + len(token)
        else:
            raise BadLine(f"message {i + 1}: the chat template renders this answer otherwise once something follows, so "
                          f"where the answer ends cannot be known{self._advice(messages, i)}")
        if end <= first:
            raise BadLine(f"message {i + 1}: the chat template renders nothing of this answer")
        if not any(whole.endswith(token, first, end) for token in self.special):
            self.turns_without_end += 1
        return first, end

    def _advice(self, messages: list[Message], i: int) -> str:
        return "" if i == len(messages) - 1 else "; --turns last needs to know only of the last"

    def _with_stand_in(self, messages: list[Message], tools: Tools, i: int) -> tuple[str, ...] | None:
        """What stands before and after the content of message i, found with another content in its place."""
        if not isinstance(messages[i].get("content"), str):
            return None
        word = "stand-in"
        while any(word in str(message) for message in messages):
            word += "-in"
        try:
            text = self.render(messages[:i] + [{**messages[i], "content": word}] + messages[i + 1:], tools)
        except BadLine:
            return None
        return tuple(text.split(word)) if text.count(word) == 1 else None

    def _special_at(self, text: str) -> str | None:
        return next((token for token in self.special if text.startswith(token)), None)

    def _without_tail(self, whole: str, first: int, end: int) -> int:
        stripped = first + len(whole[first:end].rstrip())
        return stripped if any(whole.endswith(token, first, stripped) for token in self.special) else end
