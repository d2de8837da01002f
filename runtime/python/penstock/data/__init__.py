"""Training data out of chats, prompts with completions, and plain text: `penstock data`.

prepared   the format of a prepared set on disk, and its reader: the contract with the trainer
sources    lines of files as samples, and what is wrong with those that are none
chat       which tokens of a chat are learnt
model      the tokenizer of a model's folder, and what its config.json says
encoder    records into tokens, with the marks of what is learnt
packing    samples into rows
writing    a set that is being made, and can be gone on with
options    what `penstock data` is told
prepare    all of it, in order: `penstock data`
show       `penstock data show`
"""
