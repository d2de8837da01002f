"""Which tokens of chats and completions are learnt, by the templates of known families. data_test.py runs these."""
import unittest.mock

import tokenizers
import transformers

from data_support import SPECIAL, chat, model_folder, template_of, write_lines
from penstock.data import sources
from penstock.data.__main__ import main
from prepared_support import CHATS, WITH_SYSTEM, Prepared

TOOLS = {"messages": [
    {"role": "user", "content": "How warm is it?"},
    {"role": "assistant", "content": "I look.", "tool_calls": [{"type": "function", "function": {
        "name": "warmth", "arguments": {"place": "here"}}}]},
    {"role": "tool", "content": "21"},
    {"role": "assistant", "content": "It is 21 degrees."}]}
REASONING = [
    chat("2+2?", "<think>\nTwo and two.\n</think>\n\nFour."),
    chat("2+2?", "<think>\nTwo and two.\n</think>\n\nFour.", "And 3?", "<think>\nHm.\n</think>\n\nSeven."),
]


def chats_of(family):
    more = [] if family == "gemma" else WITH_SYSTEM
    return CHATS + more + {"qwen2.5": [TOOLS], "qwen3": REASONING}.get(family, [])


class Masks(Prepared):
    def test_are_those_of_transformers_where_templates_mark_what_is_generated(self):
        for family in SPECIAL:
            with self.subTest(family):
                records = chats_of(family)
                found = self.in_order(records, family=family, out=f"set-{family}")
                marked = transformers.AutoTokenizer.from_pretrained(self.model(family))
                marked.chat_template = template_of(family, marked=True)
                self.assertEqual(len(found), len(records))
                for record, (tokens, learnt) in zip(records, found):
                    theirs = marked.apply_chat_template(record["messages"], return_dict=True,
                                                        return_assistant_tokens_mask=True)
                    self.assertEqual(tokens, list(theirs["input_ids"]))
                    self.assertEqual(learnt, list(theirs["assistant_masks"]), marked.convert_ids_to_tokens(tokens))
                    self.assertGreater(sum(learnt), 0)

    def test_are_the_same_by_a_template_with_marks_and_by_one_without(self):
        for family in ("llama3", "qwen3"):
            for turns in ("all", "last"):
                with self.subTest(family, turns=turns):
                    both = []
                    for marked in (False, True):
                        model = model_folder(self.folder / f"{family}-{marked}", family, template_of(family, marked))
                        both.append(self.in_order(chats_of(family), "--turns", turns, model=model,
                                                  out=f"{family}-{turns}-{marked}"))
                    self.assertEqual(*both)

    LEARNT = {  # of two turns: all, and where the last is learnt alone
        "llama3": (["First.<|eot_id|>", "Second.<|eot_id|>"]),
        "qwen2.5": (["First.<|im_end|>", "Second.<|im_end|>"]),
        "qwen3": (["First.<|im_end|>", "<think>\n\n</think>\n\nSecond.<|im_end|>"]),
        "mistral": (["First.</s>", "Second.</s>"]),
        "chatml": (["First.<|im_end|>", "Second.<|im_end|>"]),
        "gemma": (["First.<end_of_turn>", "Second.<end_of_turn>"]),
    }

    def test_are_the_answers_with_their_end_and_nothing_else(self):
        for family, expected in self.LEARNT.items():
            for turns, answers in (("all", expected), ("last", expected[-1:])):
                with self.subTest(family, turns=turns):
                    [(tokens, learnt)] = self.in_order([chat("One?", "First.", "Two?", "Second.")], "--turns", turns,
                                                       family=family, out=f"{family}-{turns}")
                    tokenizer = transformers.AutoTokenizer.from_pretrained(self.model(family))
                    text = tokenizer.decode([t for t, mark in zip(tokens, learnt) if mark])
                    self.assertEqual("".join(text.split(" ")), "".join("".join(answers).split(" ")))

    def test_follow_the_tools_of_a_chat(self):
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.model("qwen2.5"))
        [(tokens, learnt)] = self.in_order([TOOLS], family="qwen2.5")
        text = tokenizer.decode([t for t, mark in zip(tokens, learnt) if mark])
        self.assertEqual(text, 'I look.\n<tool_call>\n{"name": "warmth", "arguments": {"place": "here"}}\n</tool_call>'
                               '<|im_end|>It is 21 degrees.<|im_end|>')

    def learnt_text(self, tokens, learnt):
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.model())
        return tokenizer.decode([t for t, mark in zip(tokens, learnt) if mark])

    def test_leave_out_an_answer_of_weight_0(self):
        """Whether or not the template marks what is generated, and which turns are asked for."""
        records = [chat("One?", "First.", "Two?", "Second."), chat("One?", "First.", "Two?", "Second."), chat("Three?", "Third.")]
        records[0]["messages"][1]["weight"] = records[1]["messages"][3]["weight"] = 0
        for marked in (False, True):
            model_folder(self.model(), "chatml", template_of("chatml", marked))
            for turns, answers in (("all", ["Second.", "First.", "Third."]), ("last", ["Second.", "Third."])):
                with self.subTest(marked=marked, turns=turns):
                    found = self.in_order(records, "--turns", turns, out=f"{marked}-{turns}")
                    self.assertEqual([self.learnt_text(*one) for one in found], [f"{answer}<|im_end|>" for answer in answers])

    def test_are_refused_where_marks_do_not_say_which_answer_has_the_weight_0(self):
        template = "{% for x in messages %}{{ x.role }}: {% if loop.last %}{% generation %}{{ x.content }}{% endgeneration %}{% endif %}{% endfor %}"
        record = chat("One?", "First.", "Two?", "Second.")
        record["messages"][1]["weight"] = 0
        self.assertIn("line 1: the chat template marks 1 answers of 2", self.refused_template(template, record))

    def test_are_of_the_parts_of_a_content_without_anything_between(self):
        record = chat("One?", "")
        record["messages"][1]["content"] = [{"type": "text", "text": "Fir"}, {"type": "text", "text": "st."}]
        [found] = self.in_order([record])
        self.assertEqual(self.learnt_text(*found), "First.<|im_end|>")

    def test_of_a_chat_that_a_developer_begins(self):
        record = chat("One?", "First.", system="Be brief.")
        record["messages"][0]["role"] = "developer"
        [found] = self.in_order([record])
        self.assertEqual(self.learnt_text(*found), "First.<|im_end|>")

    def test_leave_out_what_comes_behind_the_last_answer(self):
        found = self.prepared([chat("One?", "First.", "Two?"), chat("Three?", "Third.")], "--layout", "padded", "--validation", 0)
        self.assertEqual(found.manifest["counts"]["prompts_at_the_end"], 1)
        tokenizer = transformers.AutoTokenizer.from_pretrained(self.model())
        self.assertNotIn("Two", tokenizer.decode(found.document(0)[0]))

    def test_end_once_where_the_tokenizer_ends_a_text_itself(self):
        """The end is learnt then, too, and is none between the parts in which a long text is read."""
        fast = transformers.AutoTokenizer.from_pretrained(self.model())
        fast.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
            single="$A <|im_end|>", special_tokens=[("<|im_end|>", fast.eos_token_id)])
        fast.save_pretrained(self.model())
        self.assertEqual(fast("a")["input_ids"][1:], [fast.eos_token_id])
        records = [{"text": "One line"}, {"text": "It ends<|im_end|>"}, {"prompt": "To be or", "completion": " not to be"}]
        texts = [self.learnt_text(tokens, [1] * len(tokens)) for tokens, _ in self.in_order(records)]
        self.assertEqual(texts, ["One line<|im_end|>", "It ends<|im_end|>", "To be or not to be<|im_end|>"])
        self.assertEqual([learnt[-1] for _, learnt in self.in_order(records, out="again")], [1, 1, 1])
        with unittest.mock.patch.object(sources, "CHUNK_BYTES", 100):
            (self.folder / "book.txt").write_text("Of Man's first disobedience\n" * 50)
            found = self.prepared(self.folder / "book.txt", "--validation", 0, out="book")
        self.assertGreater(found.manifest["counts"]["samples"], 5)
        self.assertEqual(int((found.tokens == fast.eos_token_id).sum()), 1)

    def test_of_a_completion_are_its_tokens_and_the_end(self):
        for family in ("llama3", "chatml", "gemma"):
            with self.subTest(family):
                [(tokens, learnt)] = self.in_order([{"prompt": "To be or", "completion": " not to be"}], family=family,
                                                   out=family)
                tokenizer = transformers.AutoTokenizer.from_pretrained(self.model(family))
                begin, end, _ = SPECIAL[family]
                self.assertEqual(tokenizer.decode([t for t, m in zip(tokens, learnt) if m]).strip(), f"not to be{end}")
                self.assertEqual(tokens[0] == tokenizer.bos_token_id, begin is not None)

    def refused_template(self, template, record, *options):
        model = model_folder(self.folder / "odd", "chatml", template)
        path = write_lines(self.folder / "odd.jsonl", [record])
        code, _, err = self.command(main, path, "--model", model, "--out", self.folder / "refused", *options)
        self.assertEqual(code, 5, err)
        self.assertFalse((self.folder / "refused").exists())
        return err

    def test_are_refused_where_the_prompt_changes_once_it_is_answered(self):
        # As Mistral's v3 does: the system's message goes into the last message, if that is the user's.
        template = ("{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set m = messages[1:] %}"
                    "{% else %}{% set s = '' %}{% set m = messages %}{% endif %}{% for x in m %}{% if x.role == 'user' %}"
                    "[INST] {{ s if loop.last else '' }}{{ x.content }} [/INST]{% else %} {{ x.content }}{{ eos_token }}"
                    "{% endif %}{% endfor %}")
        err = self.refused_template(template, WITH_SYSTEM[0])
        self.assertIn("where the answer begins cannot be known", err)
        self.assertIn("line 1: message 3", err)

    def test_are_refused_where_the_generation_prompt_is_not_in_the_chat(self):
        template = template_of("chatml").replace("assistant\\n' }}{% endif %}", "assistant\\n<think>\\n' }}{% endif %}")
        self.assertIn("where the answer begins cannot be known", self.refused_template(template, CHATS[0]))

    def test_are_refused_without_a_generation_prompt(self):
        template = template_of("chatml").partition("{% if add_generation_prompt %}")[0]
        self.assertIn("has no generation prompt", self.refused_template(template, CHATS[0]))

    def test_are_refused_where_no_special_token_ends_a_changed_turn(self):
        template = ("{% for x in messages %}{% if x.role == 'user' %}Q: {{ x.content }}\n{% else %}A: {{ x.content }}"
                    "{% if loop.last %}!{% endif %}\n{% endif %}{% endfor %}{% if add_generation_prompt %}A: {% endif %}")
        err = self.refused_template(template, CHATS[1])
        self.assertIn("where the answer ends cannot be known", err)
        self.assertIn("--turns last", err)
        self.in_order([CHATS[1]], "--turns", "last", model=self.folder / "odd")

    def test_say_that_a_turn_without_end_does_not_teach_to_stop(self):
        template = ("{% for x in messages %}{% if x.role == 'user' %}Q: {{ x.content }}\n{% else %}A: {{ x.content }}\n"
                    "{% endif %}{% endfor %}{% if add_generation_prompt %}A: {% endif %}")
        model = model_folder(self.folder / "odd", "chatml", template)
        found = self.prepared([CHATS[1]], model=model)
        self.assertEqual(found.manifest["counts"]["turns_without_end"], 3)
        self.assertGreater(found.manifest["counts"]["tokens_across_borders"], 0)  # the space before an answer
        self.assertTrue(any("learn to stop" in remark for remark in found.manifest["remarks"]))
