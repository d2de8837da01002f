"""Files as samples: JSONL of chats, of prompts with completions, of texts; and plain text."""

from __future__ import annotations

import codecs
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from .._refusal import CORRUPT, Refusal

TEXT_ENDINGS = (".txt", ".md")
LINE_MOST_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20  # of plain text that are tokenised at once; it is cut where a line ends

ROLES = ("system", "developer", "user", "assistant", "tool")
FOLLOWS = {  # what may come before
    "system": (None,),
    "developer": (None,),
    "user": (None, "system", "developer", "assistant"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}
_MARKS = ((codecs.BOM_UTF32_LE, "UTF-32"), (codecs.BOM_UTF32_BE, "UTF-32"), (codecs.BOM_UTF16_LE, "UTF-16"),
          (codecs.BOM_UTF16_BE, "UTF-16"))
_PACKED = ((b"\x1f\x8b", "gzip", "gunzip"), (b"\x28\xb5\x2f\xfd", "zstd", "unzstd"), (b"BZh", "bzip2", "bunzip2"),
           (b"PK\x03\x04", "zip", "unzip"), (b"PAR1", "Parquet", "to_json(lines=True) of datasets or pandas"))


class BadLine(Exception):
    """What is wrong with a line, as the end of a sentence that begins with its number."""


@dataclass
class Line:
    """A line of a file, or a chunk of plain text. `record` is None where there is nothing; `wrong` says what is wrong."""

    number: int
    next_byte: int
    record: dict[str, Any] | None = None
    is_chunk: bool = False  # its record then is {"plain": text}
    wrong: str = ""
    more_wrong: list[tuple[int, str]] = field(default_factory=list)  # (number, what): of the lines of a chunk


def is_text(path: str | os.PathLike[str]) -> bool:
    return os.fspath(path).endswith(TEXT_ENDINGS)


def check_file(path: str | os.PathLike[str]) -> int:
    """Refuses what is not a file of lines in UTF-8, as far as its beginning tells. Its size in bytes."""
    if not (is_text(path) or os.fspath(path).endswith((".jsonl", ".ndjson", ".json"))):
        raise Refusal(f"data: {path}: its name does not say what it holds", "name it .jsonl, .txt or .md")
    with open(path, "rb") as file:
        head = file.read(64)
        size = os.fstat(file.fileno()).st_size
    for magic, name, tool in _PACKED:
        if head.startswith(magic):
            raise Refusal(f"data: {path}: is {name}, not text", f"unpack it with {tool}", CORRUPT)
    for mark, name in _MARKS:
        if head.startswith(mark):
            raise Refusal(f"data: {path}: is {name}, UTF-8 expected", f"iconv -f {name} -t UTF-8", CORRUPT)
    if b"\0" in head:
        raise Refusal(f"data: {path}: has zero bytes, byte {head.index(0) + 1} for one; text in UTF-8 expected",
                      "if it is UTF-16: iconv -f UTF-16LE -t UTF-8; else take them out: tr -d '\\0'", CORRUPT)
    if not is_text(path) and head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"[":
        raise Refusal(f"data: {path}: is a JSON array, one object on each line expected",
                      f"jq -c '.[]' {path} > {os.path.splitext(path)[0]}.jsonl", CORRUPT)
    return size


def lines_of(path: str | os.PathLike[str], first_byte: int, first_number: int) -> Iterator[Line]:
    """The lines of a file from a byte on, which begins line `first_number`."""
    with open(path, "rb") as file:
        file.seek(first_byte)
        if is_text(path):
            yield from _chunks(file, first_number)
        else:
            yield from _records(file, first_number)


def _records(file: BinaryIO, number: int) -> Iterator[Line]:
    while line := file.readline(LINE_MOST_BYTES):
        if len(line) == LINE_MOST_BYTES and not line.endswith(b"\n"):
            while (rest := file.readline(LINE_MOST_BYTES)) and not rest.endswith(b"\n"):
                pass
            found = Line(number, file.tell(), wrong=f"longer than {LINE_MOST_BYTES >> 20} MiB")
        else:
            found = Line(number, file.tell())
            try:
                found.record = _record(line, number)
            except BadLine as bad:
                found.wrong = str(bad)
        yield found
        number += 1


def _record(line: bytes, number: int) -> dict[str, Any] | None:
    try:
        text = _decoded(line.removeprefix(codecs.BOM_UTF8) if number == 1 else line)
        if not text.strip():
            return None
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise BadLine(f"not JSON: {error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise BadLine("JSON that is nested too deeply") from error
    if not isinstance(record, dict):
        raise BadLine(f"a JSON {_kind(record)}, an object expected")
    return record


def _decoded(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadLine(f"not UTF-8: byte 0x{line[error.start]:02x} at column {error.start + 1}") from error


def _kind(value: object) -> str:
    kinds = {type(None): "null", bool: "boolean", int: "number", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")


def _chunks(file: BinaryIO, number: int) -> Iterator[Line]:
    while chunk := file.read(CHUNK_BYTES):
        chunk += file.readline(CHUNK_BYTES)
        if not chunk.endswith(b"\n") and (begun := _begun_character(chunk)):  # a line without end
            chunk = chunk[:-begun]
            file.seek(-begun, os.SEEK_CUR)
        lines = chunk.count(b"\n")
        found = Line(number, file.tell(), is_chunk=True)
        if number == 1:
            chunk = chunk.removeprefix(codecs.BOM_UTF8)
        try:
            text = chunk.decode("utf-8")
        except UnicodeDecodeError:
            parts = []
            for i, line in enumerate(io.BytesIO(chunk)):
                try:
                    parts.append(_decoded(line))
                except BadLine as bad:
                    found.more_wrong.append((number + i, str(bad)))
            text = "".join(parts)
        found.record = {"plain": text}
        yield found
        number += lines


def _begun_character(chunk: bytes) -> int:
    """Bytes at the end that begin a character of UTF-8 and do not end it."""
    for back in range(1, min(4, len(chunk))):
        byte = chunk[-back]
        if byte >= 0xC0:
            return back if back < (2 if byte < 0xE0 else 3 if byte < 0xF0 else 4) else 0
        if byte < 0x80:
            return 0
    return 0


def kind_of(record: dict[str, Any]) -> str:
    """"chat", "completion" or "text"; refuses what is none of them."""
    if "messages" in record:
        return "chat"
    if "prompt" in record and "completion" in record:
        return "completion"
    if "text" in record:
        return "text"
    keys = ", ".join(repr(key) for key in list(record)[:5]) or "none"
    hint = ""
    if "conversations" in record:
        hint = "; a chat is {\"messages\": [{\"role\": \"user\", \"content\": ...}, ...]}"
    raise BadLine(f"its keys are {keys}; 'messages', 'prompt' and 'completion', or 'text' expected{hint}")


def string_of(record: dict[str, Any], key: str) -> str:
    value = record[key]
    if not isinstance(value, str):
        raise BadLine(f"{key!r} is a JSON {_kind(value)}, a string expected")
    return encodable(value, repr(key))


def encodable(text: str, where: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise BadLine(f"{where} has half of a surrogate pair, \\u{ord(text[error.start]):04x}") from error
    return text


def messages_of(record: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a chat up to its last answer, checked; [] if there is nothing to learn in them."""
    messages = record["messages"]
    if not isinstance(messages, list):
        raise BadLine(f"'messages' is a JSON {_kind(messages)}, an array expected")
    checked: list[dict[str, Any]] = []
    before, calls = None, False
    for number, message in enumerate(messages, 1):
        message = _message(message, f"message {number}")
        role = message["role"]
        if before not in FOLLOWS[role] or (role == "tool" and before == "assistant" and not calls):
            place = "at the beginning" if before is None else f"after one of {before!r}"
            raise BadLine(f"message {number}: a message of {role!r} {place}"
                          + (" that calls no tool" if role == "tool" and before == "assistant" else ""))
        before, calls = role, bool(message.get("tool_calls"))
        checked.append(message)
    answers = [i for i, m in enumerate(checked) if m["role"] == "assistant"]
    if checked and not answers:
        raise BadLine("no message is of 'assistant', so that nothing can be learnt")
    if not any((checked[i].get("content") or "").strip() or checked[i].get("tool_calls") for i in answers):
        return []
    return checked[:answers[-1] + 1]


def _message(message: object, where: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise BadLine(f"{where} is a JSON {_kind(message)}, an object expected")
    role = message.get("role")
    if role not in ROLES:
        raise BadLine(f"{where}: its role is {role!r}; " + ", ".join(ROLES[:-1]) + f" or {ROLES[-1]} expected")
    content = message.get("content")
    if isinstance(content, list):
        content = _joined(content, where)
        message = {**message, "content": content}
    if content is None and message.get("tool_calls"):
        return {**message, "content": ""}
    if not isinstance(content, str):
        wrong = f"is a JSON {_kind(content)}, a string expected" if "content" in message else "is missing"
        raise BadLine(f"{where}: its 'content' {wrong}")
    encodable(content, f"{where}: its 'content'")
    return message


def _joined(parts: list[object], where: str) -> str:
    texts = []
    for part in parts:
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, dict) else _kind(part)
            raise BadLine(f"{where}: a part of its 'content' is {kind!r}; only text can be learnt")
        texts.append(part["text"])
    return "".join(texts)


def refused(path: str | os.PathLike[str], number: int, wrong: str) -> Refusal:
    return Refusal(f"data: {path}: line {number}: {wrong}",
                   "mend the line, or give --skip-bad, which counts such lines and leaves them out", CORRUPT)

