"""Texts to begin with, each chosen because some head does something visible on it."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Example:
    title: str
    text: str


EXAMPLES = (
    Example("A pronoun with two candidates", "The cat sat on the mat because it was tired."),
    Example(
        "The same sentence, the other candidate",
        "The trophy did not fit into the suitcase because it was too small.",
    ),
    Example(
        "A name that comes back",
        "Mr and Mrs Lindqvist lived next door to Anna. One day Mr and Mrs Lindqvist moved away.",
    ),
    Example(
        "A pattern that repeats",
        "red square blue circle green star red square blue circle green star red square",
    ),
    Example("Agreement at a distance", "The keys to the old wooden cabinet in the hall are lost."),
    Example(
        "One word, two meanings",
        "He sat on the bank of the river and counted the money from the bank.",
    ),
    Example("Numbers and punctuation", "In 1905 (aged 26), he wrote: “3 + 4 = 7; 7 - 4 = 3.”"),
    Example(
        "A longer paragraph",
        "The lighthouse stood at the end of a narrow path. Every evening the keeper walked up the "
        "stairs, cleaned the lamp and lit it. Ships far out at sea saw the light and knew where "
        "the rocks were. One winter the keeper fell ill, and his daughter took his place. She "
        "climbed the stairs each night, and no ship was lost. When spring came, the sailors "
        "brought her flowers, and the keeper, who was well again, said that the lamp was hers now.",
    ),
)
