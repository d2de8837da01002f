"""Model: whom data is prepared for, as the files of its folder tell."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from .._refusal import ENVIRONMENT, Refusal


class Model:
    """The tokenizer of a model's folder, and what its config.json says of the vocabulary and the context."""

    def __init__(self, folder: str | os.PathLike[str], template: str | os.PathLike[str] | None = None) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise Refusal(f"--model: {folder}: no such folder", "a folder as Hugging Face has it: config.json and a tokenizer")
        self.config = self._config()
        text = self.config.get("text_config", self.config)
        self.vocabulary = text.get("vocab_size")
        if not isinstance(self.vocabulary, int) or not 0 < self.vocabulary < 2**31:
            raise Refusal(f"--model: {folder}/config.json: vocab_size is {self.vocabulary!r}, a number expected")
        self.context = text.get("max_position_embeddings") or text.get("n_positions")
        if not any((self.folder / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
            raise Refusal(f"--model: {self.folder}: has no tokenizer", "tokenizer.json and tokenizer_config.json of the model")
        self._template = Path(template).read_text(encoding="utf-8") if template else None

    @cached_property
    def tokenizer(self) -> Any:
        """Loaded when it is first asked for, which takes seconds."""
        tokenizer = self._tokenizer()
        if self._template is not None:
            tokenizer.chat_template = self._template
        return tokenizer

    def _config(self) -> dict[str, Any]:
        path = self.folder / "config.json"
        if not path.is_file():
            raise Refusal(f"--model: {self.folder}: has no config.json", "a folder as Hugging Face has it")
        try:
            config = json.loads(path.read_bytes())
        except ValueError as error:
            raise Refusal(f"--model: {path}: not JSON: {error}") from error
        if not isinstance(config, dict):
            raise Refusal(f"--model: {path}: not a JSON object")
        return config

    def _tokenizer(self) -> Any:
        try:
            import transformers
        except ImportError as error:
            raise Refusal(f"data: {error}: chats are tokenised by transformers",
                          "pip install transformers tokenizers", ENVIRONMENT) from error
        transformers.logging.set_verbosity_error()
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
        except Exception as error:  # whatever is wrong with its files
            reason = " ".join(str(error).split())[:300]
            raise Refusal(f"--model: {self.folder}: its tokenizer cannot be loaded: {reason}") from error
        if not tokenizer.is_fast:
            raise Refusal(f"--model: {self.folder}: its tokenizer does not say which characters a token stands for",
                          "save it with tokenizer.json, as tokenizers has it")
        return tokenizer

    def remarks(self) -> list[str]:
        ends = self.config.get("eos_token_id")
        ends = ends if isinstance(ends, list) else [ends] if ends is not None else []
        own = self.tokenizer.eos_token_id
        if ends and own is not None and own not in ends:
            return [f"the tokenizer ends a text with token {own}, config.json with {', '.join(map(str, ends))}: is it "
                    f"this model's tokenizer?"]
        return []

    def padding(self) -> int:
        for token in (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id):
            if token is not None and token < self.vocabulary:
                return token
        return 0

    def hash(self) -> str:
        digest = hashlib.sha256(self.tokenizer.backend_tokenizer.to_str().encode())
        digest.update(str(self.tokenizer.chat_template).encode())
        return digest.hexdigest()

    def check(self, tokens: Sequence[int]) -> None:
        most = max(tokens, default=0)
        if most >= self.vocabulary:
            raise Refusal(f"--model: {self.folder}: its tokenizer gives token {most}, the vocabulary of its config.json has "
                          f"{self.vocabulary}", "the tokenizer that belongs to the model")
