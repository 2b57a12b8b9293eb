"""Requests with shared prefixes: conversations, completions of texts and of token ids."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pydoc_data.topics import topics
from typing import Any

TEXTS = [topics[name] for name in sorted(topics) if 2_000 <= len(topics[name]) <= 6_000]


@dataclass
class Conversation:
    """Grows by a question and the engine's own answer with each turn."""

    messages: list[dict[str, str]] = field(default_factory=list)
    waiting: bool = False

    def ask(self, question: str) -> list[dict[str, str]]:
        self.waiting = True
        self.messages.append({"role": "user", "content": question})
        return list(self.messages)

    def answered(self, text: str) -> None:
        self.waiting = False
        self.messages.append({"role": "assistant", "content": text})


@dataclass(frozen=True)
class Call:
    """One request: path, body, and the conversation its answer continues, if it is one."""

    path: str
    body: dict[str, Any]
    conversation: Conversation | None = None


def calls(count: int, seed: int, model: str = "tiny") -> Iterator[Call]:
    """Every conversation starts with one of few system texts; completions extend few texts.

    Draw the next call when it can be sent: turns continue only conversations that were answered.
    """
    rng = random.Random(seed)
    systems = rng.sample(TEXTS, 6)
    stories = rng.sample(TEXTS, 6)
    ids = [[rng.randrange(10, 2000) for _ in range(900)] for _ in range(4)]
    talks: list[Conversation] = []
    for number in range(count):
        common = {"model": model, "temperature": 0, "max_tokens": rng.choice((8, 24, 40))}
        if rng.random() < 0.3:
            common |= {"stream": True, "stream_options": {"include_usage": True}}
        kind = rng.choices(("new", "turn", "text", "ids"), (3, 4, 2, 2))[0]
        idle = [t for t in talks if not t.waiting]
        if kind == "turn" and not idle:
            kind = "new"
        if kind == "new":
            talk = Conversation([{"role": "system", "content": rng.choice(systems)}])
            talks.append(talk)
        elif kind == "turn":
            talk = rng.choice(idle)
        if kind in ("new", "turn"):
            messages = talk.ask(f"Question {number}: {rng.choice(TEXTS)[: rng.randrange(20, 300)]}")
            yield Call("/v1/chat/completions", {**common, "messages": messages}, talk)
        elif kind == "text":
            story = rng.choice(stories)
            prompt = story[: rng.randrange(500, len(story))] + f" Ending {number}."
            yield Call("/v1/completions", {**common, "prompt": prompt})
        else:
            base = rng.choice(ids)
            tail = [rng.randrange(10, 2000) for _ in range(rng.randrange(1, 200))]
            prompt_ids = base[: rng.randrange(100, len(base))] + tail
            yield Call("/v1/completions", {**common, "prompt": prompt_ids})
