"""A conversation as an application holds it: the whole history goes out again with every turn."""

import uuid
from dataclasses import dataclass

from fleet import MODEL

ROUTED = "x-smg-routed-worker-id"


@dataclass
class Turn:
    worker: str
    text: str
    cached: int


class Conversation:
    """Its opening is like no other, so whatever the engine finds cached is from an earlier turn."""

    def __init__(self, client):
        self.client = client
        opening = " ".join(uuid.uuid4().hex for _ in range(60))
        self.messages = [{"role": "system", "content": opening}]
        self.turns = 0

    def ask(self):
        self.turns += 1
        self.messages.append({"role": "user", "content": f"question {self.turns}: " + "and then what? " * 20})
        return {"model": MODEL, "messages": self.messages, "max_tokens": 16}

    def heard(self, worker, text, usage):
        self.messages.append({"role": "assistant", "content": text})
        return Turn(worker, text, usage.prompt_tokens_details.cached_tokens)

    def turn(self, **extra):
        reply = self.client.chat.completions.with_raw_response.create(**self.ask(), **extra)
        answer = reply.parse()
        return self.heard(reply.headers[ROUTED], answer.choices[0].message.content, answer.usage)

    def streamed_turn(self, **extra):
        ask = self.ask() | {"stream": True, "stream_options": {"include_usage": True}}
        with self.client.chat.completions.with_streaming_response.create(**ask, **extra) as reply:
            pieces, usage = [], None
            for chunk in reply.parse():
                pieces.extend(choice.delta.content or "" for choice in chunk.choices)
                usage = chunk.usage or usage
            return self.heard(reply.headers[ROUTED], "".join(pieces), usage)

    def broken_turn(self, **extra):
        """Hangs up after the first chunk; the question is withdrawn. Answers with the worker that was asked."""
        ask = self.ask() | {"stream": True, "max_tokens": 400}
        with self.client.chat.completions.with_streaming_response.create(**ask, **extra) as reply:
            assert next(iter(reply.parse())).choices, "no first chunk"
            worker = reply.headers[ROUTED]
        self.messages.pop()
        return worker
