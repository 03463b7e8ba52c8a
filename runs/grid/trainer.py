"""The trainer's own revision, where a table can read it without the rest of a plan."""

#: Part of every identity: raised when the trainer itself would give other results for the same spec.
TRAINER = 3
