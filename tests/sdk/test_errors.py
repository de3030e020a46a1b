"""A refusal reaches the application as the exception that the SDK has for it, with a code to act on."""

import openai
import pytest

from fleet import MODEL, fleet

HELLO = [{"role": "user", "content": "hello"}]


def code_in_header(error):
    return error.response.headers.get("x-smg-error-code")


def test_an_unknown_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no-such-model", messages=HELLO)
    assert caught.value.code == code_in_header(caught.value) == "model_not_found"


def test_an_unknown_model_is_not_found_before_a_stream_starts(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="no-such-model", messages=HELLO, stream=True)
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize("body", [{"model": MODEL}, {"model": MODEL, "messages": "hello"}], ids=["missing", "wrong type"])
def test_a_request_without_messages_is_bad(client, body):
    # The SDK's own methods would not send this.
    with pytest.raises(openai.BadRequestError) as caught:
        client.post("/chat/completions", body=body, cast_to=object)
    assert caught.value.code
    assert code_in_header(caught.value) in (None, caught.value.code)


def test_a_fleet_without_a_healthy_worker_is_unavailable(tmp_path):
    probes = ["--health-check-interval-secs", "1", "--health-failure-threshold", "1"]
    with fleet(tmp_path / "smg.log", engines=1, flags=probes) as running:
        with openai.OpenAI(base_url=f"{running.gateway.url}/v1", api_key="none", max_retries=0) as client:
            assert client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4).choices
            running.engines[0].stop()
            running.gateway.wait_for_workers(0)
            with pytest.raises(openai.InternalServerError) as caught:
                client.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=4)
    assert caught.value.status_code == 503
    assert caught.value.code == code_in_header(caught.value) == "no_available_workers"
