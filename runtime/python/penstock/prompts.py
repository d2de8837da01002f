"""Prompts as the model sees them, for the trainer, which has no tokenizer: python -m penstock.prompts FOLDER PROMPT...

FOLDER has a tokenizer as Hugging Face has it. A PROMPT is JSON: a string is asked by the chat template where there is
one, {"messages": [...]} is a chat, and {"text": ...} is continued as it is. What is printed is one JSON object:

    prompts  [{"text", "tokens"}]
    ends     tokens that end an answer
    lengths  of the bytes that each token of the vocabulary stands for, from 0 on; special tokens stand for none
    bytes    all of them one after another, as base64
"""

import base64
import json
import re
import sys
from pathlib import Path

from ._refusal import ENVIRONMENT, Refusal

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def load(folder):
    if not Path(folder).is_dir():  # transformers would take it for a name on the network
        raise Refusal(f"samples: {folder}: no such folder",
                      "a folder with a tokenizer as Hugging Face has it, in samples.tokenizer or --tokenizer")
    try:
        import transformers
    except ImportError as error:
        raise Refusal(f"samples: {error}: prompts are tokenised by transformers", "pip install transformers tokenizers",
                      ENVIRONMENT) from error
    transformers.logging.set_verbosity_error()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # whatever is wrong with its files
        reason = " ".join(str(error).split())[:300]
        raise Refusal(f"samples: {folder}: its tokenizer cannot be loaded: {reason}",
                      "name another in samples.tokenizer") from error
    if not tokenizer.is_fast:
        raise Refusal(f"samples: {folder}: its tokenizer has no tokenizer.json",
                      "load it with transformers, and save it with save_pretrained()")
    return tokenizer


def text_of(tokenizer, prompt):
    if isinstance(prompt, dict) and "text" in prompt:
        return prompt["text"]
    if isinstance(prompt, str) and not tokenizer.chat_template:
        return prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt["messages"]
    if not tokenizer.chat_template:
        raise Refusal(f"samples: {json.dumps(prompt)[:100]}: the tokenizer has no chat template", 'give {"text": ...}')
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a template raises what it likes
        raise Refusal(f"samples: {json.dumps(prompt)[:100]}: the chat template refuses it: {error}") from error


def tokens_of(tokenizer, prompt):
    """As the model was taught: what a template writes has its special tokens already."""
    text = text_of(tokenizer, prompt)
    is_rendered = not (isinstance(prompt, dict) and "text" in prompt) and tokenizer.chat_template
    return {"text": text, "tokens": tokenizer(text, add_special_tokens=not is_rendered)["input_ids"]}


def ends_of(tokenizer, folder):
    """What generation_config.json says, or config.json, or the tokenizer."""
    for name in ("generation_config.json", "config.json"):
        try:
            config = json.loads((Path(folder) / name).read_bytes())
            found = config.get("eos_token_id", config.get("text_config", {}).get("eos_token_id"))
        except (OSError, ValueError, AttributeError):
            continue
        if found is not None:
            return found if isinstance(found, list) else [found]
    return [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]


def _byte_alphabet():
    """Characters of GPT-2's alphabet to bytes: what can be printed stands for itself, the rest follows behind 255."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + i): byte for i, byte in enumerate(hidden)}


def _kinds(decoder):
    if not isinstance(decoder, dict):
        return set()
    return {decoder.get("type")}.union(*(_kinds(part) for part in decoder.get("decoders", [])))


def texts_of(tokenizer):
    """For each token the bytes it stands for within a text."""
    kinds = _kinds(json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder"))
    alphabet = _byte_alphabet()
    special = set(tokenizer.all_special_ids) | {i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
    added = tokenizer.added_tokens_decoder
    texts = []
    for i, token in enumerate(tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))):
        if token is None or i in special:
            texts.append(b"")
        elif i in added:
            texts.append(added[i].content.encode())
        elif "ByteLevel" in kinds:
            texts.append(bytes(alphabet[c] for c in token) if all(c in alphabet for c in token) else token.encode())
        elif "ByteFallback" in kinds and (byte := _BYTE.fullmatch(token)):
            texts.append(bytes([int(byte[1], 16)]))
        else:
            texts.append(token.replace("\u2581", " ").encode())
    return texts


def main(folder, *prompts):
    try:
        tokenizer = load(folder)
        texts = texts_of(tokenizer)
        answer = {"prompts": [tokens_of(tokenizer, json.loads(prompt)) for prompt in prompts],
                  "ends": ends_of(tokenizer, folder), "lengths": [len(text) for text in texts],
                  "bytes": base64.b64encode(b"".join(texts)).decode()}
    except Refusal as refusal:
        answer = {"error": {"code": refusal.code, "message": refusal.message, "try": refusal.remedy}}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
