"""Training data out of chats, prompts with completions, and plain text: `penstock data`.

prepared   the format of a prepared set on disk, and its reader: the contract with the trainer
sources    lines of files as samples, and what is wrong with those that are none
chat       which tokens of a chat are learnt
packing    samples into rows
writing    a set that is being made, and can be gone on with
prepare    all of it, in order: `penstock data`
show       `penstock data show`
"""
