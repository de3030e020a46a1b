"""An agent that uses the Anthropic SDK: it counts tokens, calls tools side by side, streams, and stays on one worker."""

import uuid

import anthropic
import pytest

from conversation import ROUTED
from fleet import MODEL

BETAS = ["claude-code-20250219", "interleaved-thinking-2025-05-14"]
TOOLS = [
    {"name": name, "description": f"To {name} a file.", "input_schema": {"type": "object", "properties": {}}}
    for name in ["read", "grep", "write"]
]


@pytest.fixture
def agent(running):
    with anthropic.Anthropic(base_url=running.gateway.url, api_key="none", max_retries=0) as client:
        yield client


class Task:
    """What an agent has on its desk: the whole of it goes out with every step."""

    def __init__(self, key):
        self.headers = {"x-smg-routing-key": key}
        self.messages = [{"role": "user", "content": "Find out why the build is red."}]
        # Like no other, so whatever the engine finds cached is from an earlier step.
        opening = " ".join(uuid.uuid4().hex for _ in range(60))
        self.system = [{"type": "text", "text": opening, "cache_control": {"type": "ephemeral"}}]

    def ask(self):
        return {
            "model": MODEL, "max_tokens": 32, "system": self.system, "tools": TOOLS, "messages": self.messages,
            "betas": BETAS, "extra_headers": self.headers,
        }

    def count(self, agent):
        ask = {name: value for name, value in self.ask().items() if name != "max_tokens"}
        return agent.beta.messages.count_tokens(**ask).input_tokens

    def step(self, agent):
        reply = agent.beta.messages.with_raw_response.create(**self.ask())
        return self.heard(reply.parse(), reply.headers[ROUTED])

    def streamed_step(self, agent):
        with agent.beta.messages.stream(**self.ask()) as stream:
            kinds = [event.type for event in stream]
            assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
            return self.heard(stream.get_final_message(), stream.response.headers[ROUTED])

    def heard(self, message, worker):
        self.messages.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
        calls = [block for block in message.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": "nothing there"} for call in calls]
        self.messages.append({"role": "user", "content": results or "And then?"})
        return message, calls, worker


@pytest.mark.parametrize("way", ["step", "streamed_step"])
def test_an_agent_stays_on_one_worker_and_its_tools_run_side_by_side(agent, key, way):
    task, workers = Task(key), set()
    for number in range(6):
        counted = task.count(agent)
        message, calls, worker = getattr(task, way)(agent)
        workers.add(worker)
        usage = message.usage
        assert usage.input_tokens + usage.cache_read_input_tokens == counted
        assert number == 0 or usage.cache_read_input_tokens > 0
        # Two calls in one answer, then an answer to their results.
        assert [call.name for call in calls] == (["read", "grep"] if number % 2 == 0 else [])
        assert message.stop_reason == ("tool_use" if calls else "end_turn")
        assert all("call" in call.input for call in calls)
    assert len(workers) == 1


def test_counting_tokens_needs_no_worker_of_its_own(agent, running, key):
    # Whatever is counted in between, tasks go round.
    workers = []
    for number in range(6):
        task = Task(f"{key}-{number}")
        task.count(agent)
        workers.append(task.step(agent)[2])
    assert {workers.count(engine.url) for engine in running.engines} == {2}


def test_a_refusal_is_raised_as_the_exception_for_it(agent):
    hello = [{"role": "user", "content": "hello"}]
    with pytest.raises(anthropic.NotFoundError) as caught:
        agent.messages.create(model="no-such-model", max_tokens=4, messages=hello)
    assert caught.value.body["error"]["type"] == "not_found_error"
    assert caught.value.response.headers["x-smg-error-code"] == "model_not_found"
    with pytest.raises(anthropic.BadRequestError):
        agent.messages.create(model=MODEL, max_tokens=4, messages=None)
