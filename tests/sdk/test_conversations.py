"""An application that uses the OpenAI SDK keeps its conversation on one worker, however it names it."""

import asyncio

import openai
import pytest

from conversation import ROUTED, Conversation
from fleet import MODEL

TURNS = range(1, 6)


def assert_sticky(turns):
    assert len({turn.worker for turn in turns}) == 1, [turn.worker for turn in turns]
    assert all(turn.text for turn in turns)
    assert all(turn.cached > 0 for turn in turns[1:]), [turn.cached for turn in turns]


@pytest.mark.parametrize("way", ["turn", "streamed_turn"])
def test_turns_named_by_rid_stay_on_one_worker(client, key, way):
    talk = getattr(Conversation(client), way)
    assert_sticky([talk(extra_body={"rid": f"{key}_t{n}"}) for n in TURNS])


@pytest.mark.parametrize("way", ["turn", "streamed_turn"])
def test_turns_named_by_header_stay_on_one_worker(client, key, way):
    talk = getattr(Conversation(client), way)
    assert_sticky([talk(extra_headers={"x-smg-routing-key": key}) for _ in TURNS])


def test_a_client_wide_header_names_every_request(client, key):
    named = client.with_options(default_headers={"x-smg-routing-key": key})
    conversation = Conversation(named)
    assert_sticky([conversation.turn(), conversation.streamed_turn(), conversation.turn()])


def test_conversations_spread_over_the_fleet(client, key, running):
    workers = [Conversation(client).turn(extra_body={"rid": f"{key}-{n}_t1"}).worker for n in range(9)]
    assert set(workers) == {engine.url for engine in running.engines}


def test_turns_without_a_name_follow_the_policy(client):
    conversation = Conversation(client)
    assert len({conversation.turn().worker for _ in range(3)}) == 3


def test_an_aborted_stream_leaves_the_conversation_where_it_was(client, key):
    conversation = Conversation(client)
    first = conversation.streamed_turn(extra_body={"rid": f"{key}_t1"})
    assert conversation.broken_turn(extra_body={"rid": f"{key}_t2"}) == first.worker
    again = conversation.streamed_turn(extra_body={"rid": f"{key}_t2_r1"})
    assert_sticky([first, again])


def test_parallel_conversations_do_not_disturb_one_another(running, key):
    async def one(client, number):
        workers = set()
        for turn in TURNS:
            reply = await client.chat.completions.with_raw_response.create(
                model=MODEL, messages=[{"role": "user", "content": f"{number}: {turn}"}], max_tokens=4,
                extra_body={"rid": f"{key}-{number}_t{turn}"},
            )
            workers.add(reply.headers[ROUTED])
        return workers

    async def all_at_once():
        url = f"{running.gateway.url}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*[one(client, number) for number in range(12)])

    assert [len(workers) for workers in asyncio.run(all_at_once())] == [1] * 12


def test_completions_stick_like_chat(client, key):
    workers = set()
    for turn in TURNS:
        reply = client.completions.with_raw_response.create(
            model=MODEL, prompt="once upon a time " * turn, max_tokens=4, extra_body={"rid": f"{key}_t{turn}"},
        )
        workers.add(reply.headers[ROUTED])
        assert reply.parse().choices[0].text
    assert len(workers) == 1


def test_completions_stream(client, key):
    chunks = list(client.completions.create(
        model=MODEL, prompt="once upon a time", max_tokens=8, stream=True, extra_body={"rid": f"{key}_t1"},
    ))
    assert "".join(choice.text for chunk in chunks for choice in chunk.choices)


def test_models_of_the_fleet_are_listed(client):
    assert MODEL in [model.id for model in client.models.list()]
