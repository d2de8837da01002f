"""Prepared sets: made by the command, of chats that the tests of penstock.data share. Needs transformers."""
from pathlib import Path

from data_support import Folders, chat, model_folder, write_lines
from penstock.data.__main__ import main
from penstock.data.prepared import PreparedSet

SEED = 7
CHATS = [
    chat("Who wrote Paradise Lost?", "John Milton did."),
    chat("One?", "First.", "Two?", "Second.", "Three?", "The third one."),
    chat("  spaces around \n", "\n kept or trimmed  "),
    chat("naïve café — \U0001f600?", "Übermut \U0001f680\U0001f680", "日本", "は\n\nい"),
    chat("a", "b", "c", "d" * 300),
]
WITH_SYSTEM = [chat("Who?", "I.", "And?", "You.", system="Be brief.")]
RECORDS = [chat(f"Number {i}?", f"It is {i}.") for i in range(50)]


class Prepared(Folders):
    def prepared(self, records, *options, model=None, family="chatml", name="chats.jsonl", out="set"):
        """The set made of records, or of a file."""
        model = model or self.model(family)
        path = records if isinstance(records, Path) else write_lines(self.folder / name, records)
        code, text, err = self.command(main, path, "--model", model, "--out", self.folder / out, *options)
        self.assertEqual(code, 0, err)
        found = PreparedSet(self.folder / out)
        found.verify()
        self.assertFalse((self.folder / f"{out}.partial").exists())
        return found

    def model(self, family="chatml", **more):
        path = self.folder / f"model-{family}"
        return path if path.exists() and not more else model_folder(path, family, **more)

    def in_order(self, records, *options, **more):
        """Tokens and marks of each document, in the order of the file."""
        found = self.prepared(records, "--layout", "padded", "--validation", 0, "--keep-duplicates", *options, **more)
        return [tuple(part.tolist() for part in found.document(i)) for i in range(len(found.documents) - 1)]
