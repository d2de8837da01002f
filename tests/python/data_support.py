"""Folders of models as Hugging Face has them, with tokenizers trained here and the chat templates of known families."""
import contextlib
import io
import json
import os
import re
import tempfile
import unittest
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # tests fork

HERE = Path(__file__).parent
TEXT = HERE.parent.parent / "tools" / "data" / "paradise-lost.txt"
MARKS = re.compile(r"\{%-?\s*(?:end)?generation\s*-?%\}")
VOCABULARY = 800

# Beginning, end of a text, and what the family's turns are made of.
SPECIAL = {
    "llama3": ("<|begin_of_text|>", "<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>"]),
    "qwen2.5": (None, "<|im_end|>", ["<|im_start|>", "<|endoftext|>"]),
    "qwen3": (None, "<|im_end|>", ["<|im_start|>", "<|endoftext|>"]),
    "mistral": ("<s>", "</s>", ["[INST]", "[/INST]"]),
    "chatml": (None, "<|im_end|>", ["<|im_start|>"]),
    "gemma": ("<bos>", "<eos>", ["<start_of_turn>", "<end_of_turn>"]),
}
_trained = {}


def trained(metaspace):
    """A tokenizer without special tokens: bytes as GPT-2 and its heirs have them, or words with spaces as marks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if metaspace not in _trained:
        tokenizer = Tokenizer(models.BPE(byte_fallback=metaspace, unk_token="<unk>" if metaspace else None))
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        special = ["<unk>"] if metaspace else []
        if metaspace:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
            tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
            special += [f"<0x{i:02X}>" for i in range(256)]
            alphabet = []
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(vocab_size=VOCABULARY - 20, special_tokens=special, initial_alphabet=alphabet,
                                      show_progress=False)
        tokenizer.train_from_iterator(TEXT.read_text(encoding="utf-8").splitlines()[:1500], trainer)
        _trained[metaspace] = tokenizer.to_str()
    return Tokenizer.from_str(_trained[metaspace])


def template_of(family, marked=False):
    template = (HERE / "chat_templates" / f"{family}.jinja").read_text(encoding="utf-8").removesuffix("\n")
    return template if marked else MARKS.sub("", template)


def model_folder(folder, family, template=None, context=4096, vocabulary=VOCABULARY, **more):
    """config.json and the tokenizer of a small model of that family. The folder's path."""
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    begin, end, others = SPECIAL[family]
    tokenizer = trained(metaspace=family in ("mistral", "gemma"))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=begin, eos_token=end, pad_token=end,
                                   extra_special_tokens=others)
    if begin:
        fast.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{begin} $A", special_tokens=[(begin, fast.convert_tokens_to_ids(begin))])
    fast.chat_template = template_of(family) if template is None else template or None
    folder = Path(folder)
    fast.save_pretrained(folder)
    config = {"model_type": "llama", "vocab_size": vocabulary, "max_position_embeddings": context,
              "eos_token_id": fast.eos_token_id, **more}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def chat(*turns, system=None):
    messages = [{"role": "system", "content": system}] if system else []
    return {"messages": messages + [{"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(turns)]}


def write_lines(path, records):
    Path(path).write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


class Folders(unittest.TestCase):
    """A scratch folder for each test; a command's outcome as (code, stdout, stderr)."""

    beside = None  # where the folder is

    def setUp(self):
        made = tempfile.TemporaryDirectory(prefix="penstock-data-", dir=self.beside)
        self.folder = Path(self.enterContext(made))

    @staticmethod
    def command(main, *arguments):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(word) for word in arguments])
        return code, out.getvalue(), err.getvalue()
